//! Accesses through mappings that live for one access only.
#![expect(unsafe_code, reason = "copies to and from mappings of its own")]

use super::{Medium, Region, medium};
use crate::fault::{CopyKind, MediumFault, guarded_copy};
use crate::{Domain, Pmem};

impl Region {
    /// Stores `bytes` at `offset` through a mapping of its pages at an address that nothing else knows. The range is inside the region.
    ///
    /// # Durability
    /// As [`Pmem::store_nt`].
    pub(crate) fn store_in_private_map(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        let is_paged = self.domain() == Domain::Page;
        let kind = if is_paged { CopyKind::Store } else { CopyKind::StoreNt(self.insns()) };
        let stored = self.with_private_map(offset, bytes.len(), true, |address| {
            // SAFETY: the range is inside the new mapping, which nothing else uses; `bytes` is an ordinary slice.
            unsafe { guarded_copy(kind, address, bytes.as_ptr(), bytes.len()) }
        });
        if is_paged {
            // The range includes the bytes stored before a fault.
            self.flush(offset, bytes.len() as u64);
        }
        stored
    }

    /// Loads from `offset` likewise.
    pub(crate) fn load_in_private_map(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        self.with_private_map(offset, out.len(), false, |address| {
            // SAFETY: as above.
            unsafe { guarded_copy(CopyKind::Load, out.as_mut_ptr(), address, out.len()) }
        })
    }

    /// The start and end of each mapping of a part of the file are multiples of this length.
    pub(crate) fn mapping_unit_bytes(&self) -> usize {
        let huge = 2 << 20;
        match self.medium() {
            Medium::DeviceDax => huge,
            Medium::Hugetlbfs => {
                let found = medium::of_file_system(self.file());
                found.map_or(huge, |(_, bytes)| usize::try_from(bytes).unwrap_or(huge))
            }
            _ => rustix::param::page_size(),
        }
    }

    fn with_private_map(
        &self,
        offset: u64,
        len: usize,
        is_writable: bool,
        run: impl FnOnce(*mut u8) -> Result<(), MediumFault>,
    ) -> Result<(), MediumFault> {
        if len == 0 {
            return Ok(());
        }
        let unit = self.mapping_unit_bytes();
        let start = offset / unit as u64 * unit as u64;
        let before = usize::try_from(offset - start).map_err(|_| MediumFault)?;
        let pages =
            self.mapping().part(self.file(), start, (before + len).next_multiple_of(unit), is_writable);
        let pages = pages.map_err(|_| MediumFault)?;
        run(pages.base().wrapping_add(before))
    }
}
