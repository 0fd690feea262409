//! Windows of a region, by a method that is chosen at run time.
#![expect(unsafe_code, reason = "takes charge of a region's mapping")]

use super::choice::{Method, Protection, ProtectionError};
use super::kernel_copy;
use super::late_table::LateTable;
use super::page_table::PageTable;
use super::pkey::Pkey;
use super::watch::Watch;
use super::windows::{Access, Windows};
use crate::fault::MediumFault;
use crate::{Medium, Pmem, Region};
use core::ops::Range;

/// The windows of one region.
#[derive(Debug)]
pub struct RegionWindows {
    method: Method,
    guards_reads: bool,
    way: Way,
    /// Dropped by `Protected` before the region is unmapped. Of nothing, if everything is open.
    watch: Watch,
}

#[derive(Debug)]
enum Way {
    Open,
    PageTable(PageTable),
    Late(LateTable),
    Pkey(Pkey),
}

impl RegionWindows {
    /// Closes the region.
    pub(super) fn new(region: &Region, protection: &Protection) -> Result<Self, ProtectionError> {
        let Protection { method, guards_reads, window_bytes, batch, on_stray } = *protection;
        if method == Method::None {
            return Ok(Self { method, guards_reads: false, way: Way::Open, watch: Watch::of_nothing() });
        }
        if window_bytes != 0 && !window_bytes.is_power_of_two() {
            return Err(ProtectionError::WindowSize(window_bytes));
        }
        let is_copied = matches!(method, Method::Unmapped | Method::PrivateMap);
        if is_copied && region.is_scratch() {
            return Err(ProtectionError::Scratch);
        }
        if method == Method::Unmapped && matches!(region.medium(), Medium::DeviceDax | Medium::Hugetlbfs) {
            return Err(ProtectionError::NoWrite(region.medium()));
        }
        if method == Method::Unmapped {
            kernel_copy::prepare();
        }
        let base = region.base_ptr().addr().get();
        let len = usize::try_from(region.len_bytes()).expect("a region is mapped");
        if method == Method::Pkey {
            // SAFETY: `Protected` owns the region, and every access goes through windows. It drops this value first, so that no other mapping is taken for the region.
            let key = unsafe { Pkey::new(base..base + len, region.is_writable(), guards_reads) };
            let way = Way::Pkey(key.map_err(ProtectionError::NoKey)?);
            let watch = Watch::new(base..base + len, region.mapping_unit_bytes(), on_stray, true);
            return Ok(Self { method, guards_reads: true, way, watch });
        }
        let guards_reads = guards_reads || method == Method::PrivateMap;
        let closed = (!guards_reads).then_some(Access::Read);
        let unit = region.mapping_unit_bytes().max(window_bytes);
        // SAFETY: as above.
        let table = unsafe { PageTable::new(base, len, closed, unit) };
        let table = table.map_err(ProtectionError::Mprotect)?;
        let way = match method {
            Method::Async => {
                let opens_to = if region.is_writable() { Access::Write } else { Access::Read };
                let late = LateTable::new(table, opens_to, batch);
                Way::Late(late.map_err(|_| ProtectionError::NoThread)?)
            }
            _ => Way::PageTable(table),
        };
        let watch = Watch::new(base..base + len, region.mapping_unit_bytes(), on_stray, false);
        Ok(Self { method, guards_reads, way, watch })
    }

    /// [`Method::Async`]: closes the pages of all windows that have closed so far.
    pub fn settle(&self) {
        if let Way::Late(table) = &self.way {
            table.settle();
        }
    }

    /// The number of stray accesses so far.
    #[must_use]
    pub fn stray_count(&self) -> u64 {
        self.watch.stray_count()
    }

    /// The calls of mprotect(2) so far.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        match &self.way {
            Way::PageTable(table) => table.change_count(),
            Way::Late(table) => table.change_count(),
            Way::Pkey(_) | Way::Open => 0,
        }
    }

    /// The method.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }
}

impl RegionWindows {
    /// Closes pages that are written and are open because a stray access was let through.
    #[cold]
    fn close_again(&self, region: &Region, range: Range<u64>) {
        if !self.watch.take_let_through(&range) {
            return;
        }
        match &self.way {
            Way::PageTable(table) => table.close_again(in_memory(range)),
            // The thread that closes windows has closed them.
            Way::Late(_) | Way::Open => {}
            Way::Pkey(key) => {
                let unit = region.mapping_unit_bytes();
                let Range { start, end } = in_memory(range);
                let base = region.base_ptr().addr().get();
                let pages = (base + start) / unit * unit..(base + end).next_multiple_of(unit);
                // SAFETY: they are in the region, whose mapping has the key.
                unsafe { key.close_again(pages, region.is_writable()) };
            }
        }
    }
}

impl RegionWindows {
    /// Before bytes are stored without a window.
    #[inline]
    fn close_if_let_through(&self, region: &Region, offset: u64, bytes: &[u8]) {
        if self.watch.has_let_through() {
            self.close_again(region, offset..offset + bytes.len() as u64);
        }
    }
}

impl Windows<Region> for RegionWindows {
    /// The rights of the thread before a key was opened; else zero.
    type Opened = u32;

    #[inline]
    fn open(&self, _: &Region, range: Range<u64>, access: Access) -> Result<u32, MediumFault> {
        match &self.way {
            Way::PageTable(table) => {
                table.open(in_memory(range), access).map_err(|_| MediumFault)?;
                Ok(0)
            }
            Way::Late(table) => {
                table.open(&in_memory(range)).map_err(|_| MediumFault)?;
                Ok(0)
            }
            Way::Pkey(key) => Ok(key.open(access)),
            Way::Open => Ok(0),
        }
    }

    #[inline]
    fn close(&self, region: &Region, range: Range<u64>, access: Access, opened: u32) {
        // A key is closed in a few instructions, and so is what follows.
        let is_to_close_again = access == Access::Write && self.watch.has_let_through();
        match &self.way {
            Way::Pkey(key) => key.close(opened),
            Way::PageTable(table) => table.close(in_memory(range.clone()), access),
            Way::Late(table) => table.close(&in_memory(range.clone())),
            Way::Open => {}
        }
        if is_to_close_again {
            self.close_again(region, range);
        }
    }

    #[inline]
    fn guards_reads(&self) -> bool {
        self.guards_reads
    }

    #[inline]
    fn copy_in(&self, region: &Region, offset: u64, bytes: &[u8]) -> Option<Result<(), MediumFault>> {
        match self.method {
            Method::Unmapped => {
                self.close_if_let_through(region, offset, bytes);
                Some(kernel_copy::write(region, offset, bytes))
            }
            Method::PrivateMap => {
                self.close_if_let_through(region, offset, bytes);
                Some(region.store_in_private_map(offset, bytes))
            }
            Method::None | Method::PageTable | Method::Async | Method::Pkey => None,
        }
    }

    #[inline]
    fn copy_out(&self, region: &Region, offset: u64, out: &mut [u8]) -> Option<Result<(), MediumFault>> {
        match self.method {
            Method::Unmapped => Some(kernel_copy::read(region, offset, out)),
            Method::PrivateMap => Some(region.load_in_private_map(offset, out)),
            Method::None | Method::PageTable | Method::Async | Method::Pkey => None,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a range of a mapping")]
fn in_memory(range: Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}
