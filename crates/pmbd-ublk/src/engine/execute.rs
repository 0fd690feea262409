//! The life of a request, from a checked range to the fence that makes it durable.

use super::{BlockError, Geometry, GeometryError};
use pm_core::{Pmem, Region};

/// One request, as every block protocol knows it. Offsets travel beside it, in [`Engine::execute`].
#[derive(Debug)]
pub enum BlockOp<'a> {
    /// Fills `out` from the device.
    Read {
        /// Where to; its length is the request's.
        out: &'a mut [u8],
    },
    /// Puts `data` on the device.
    Write {
        /// What; its length is the request's.
        data: &'a [u8],
        /// Force unit access: durable before it completes, whatever the write cache.
        fua: bool,
    },
    /// Makes every write that completed before this request durable, from whichever queue or client it came.
    Flush,
    /// Tells that the contents of a range are no longer needed. Reads of it return zeroes afterwards.
    Discard {
        /// Length of the range.
        len_bytes: u64,
    },
    /// Zeroes a range.
    WriteZeroes {
        /// Length of the range.
        len_bytes: u64,
        /// As in [`BlockOp::Write`].
        fua: bool,
    },
}

/// What a completed write without FUA means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteCache {
    /// It is durable. The device has no volatile cache, so that a client needs neither Flush nor FUA; both are
    /// served all the same.
    WriteThrough,
    /// It may be lost at a power failure until the next Flush.
    WriteBack,
}

/// Zeroes to copy from: one page stays in the first-level cache while the destination streams past it.
static ZEROES: [u8; 4096] = [0; 4096];

/// Serves block requests from a range of persistent memory, for any number of queues and clients at once.
///
/// # Durability
/// In the domains that the CPU reaches ([`Domain::Adr`](pm_core::Domain::Adr), `Eadr`, and `Volatile` as far as it
/// goes), a write is stored around the cache and fenced before it completes: **every completed write is durable**,
/// and [`BlockOp::Flush`] has nothing left to do, on this queue or on any other. In the page domain that would cost
/// a system call and a disk write a request, so there the device has a write-back cache, says so, and Flush and FUA
/// are what makes writes durable.
///
/// A power failure in the middle of a write that has not completed can leave any mixture of its old and new 8-byte
/// words, also inside one sector, as on the kernel's own `pmem` driver without a BTT. File systems with checksummed
/// journals and metadata (ext4, XFS, btrfs, ZFS) are made for that.
///
/// ```
/// use pmbd::{BlockOp, Engine, Geometry, SectorSize};
/// let region = pm_core::Region::anonymous(1 << 20).unwrap();
/// let engine = Engine::new(region, Geometry::new(0, 1 << 20, SectorSize::B512)?)?;
/// engine.execute(4096, BlockOp::Write { data: &[7; 512], fua: false }).unwrap(); // durable when it returns
/// let mut sector = [0; 512];
/// engine.execute(4096, BlockOp::Read { out: &mut sector }).unwrap();
/// assert_eq!(sector, [7; 512]);
/// # Ok::<(), pmbd::GeometryError>(())
/// ```
///
/// # Source
/// PMBD III-C, "Ordered persistence", and Table III: non-temporal stores and a store fence.
#[derive(Debug)]
pub struct Engine<P = Region> {
    pmem: P,
    geometry: Geometry,
    write_cache: WriteCache,
    read_only: bool,
}

impl<P: Pmem> Engine<P> {
    /// An engine over the part of `pmem` that `geometry` names.
    ///
    /// # Errors
    /// When the device would leave the region.
    pub fn new(pmem: P, geometry: Geometry) -> Result<Self, GeometryError> {
        let (start_bytes, capacity_bytes) = (geometry.start_bytes(), geometry.capacity_bytes());
        let region_bytes = pmem.len_bytes();
        if start_bytes.checked_add(capacity_bytes).is_none_or(|end| end > region_bytes) {
            return Err(GeometryError::OutsideRegion { start_bytes, capacity_bytes, region_bytes });
        }
        let write_cache =
            if pmem.domain().is_cpu_persistent() { WriteCache::WriteThrough } else { WriteCache::WriteBack };
        Ok(Self { pmem, geometry, write_cache, read_only: false })
    }

    /// Refuses every request that would change the device.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The device's shape.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What a completed write means; to be told to every client.
    #[must_use]
    pub const fn write_cache(&self) -> WriteCache {
        self.write_cache
    }

    /// Whether changes are refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The memory below.
    #[must_use]
    pub const fn pmem(&self) -> &P {
        &self.pmem
    }

    /// Runs one request at `offset_bytes` of the device to its end. Allocates nothing.
    ///
    /// A Write of 4 KiB costs 64 lines and 1 fence.
    ///
    /// # Errors
    /// See [`BlockError`]. A refused request has changed nothing.
    ///
    /// # Durability
    /// See [`Engine`]. Before it returns, a crash leaves any mixture of the range's old and new 8-byte words.
    #[inline]
    pub fn execute(&self, offset_bytes: u64, op: BlockOp<'_>) -> Result<(), BlockError> {
        match op {
            BlockOp::Read { out } => {
                let at = self.locate(offset_bytes, out.len() as u64)?;
                self.pmem.load(at, out);
                Ok(())
            }
            BlockOp::Write { data, fua } => {
                let at = self.locate_writable(offset_bytes, data.len() as u64)?;
                self.pmem.store_nt(at, data);
                self.complete_write(fua)
            }
            BlockOp::Flush if self.read_only => Ok(()),
            BlockOp::Flush => self.complete_write(true),
            BlockOp::Discard { len_bytes } => self.zero(offset_bytes, len_bytes, false),
            BlockOp::WriteZeroes { len_bytes, fua } => self.zero(offset_bytes, len_bytes, fua),
        }
    }

    /// Whether a read of this range would be accepted. For transports that run a long request in pieces, and must
    /// refuse it as a whole.
    ///
    /// # Errors
    /// As [`Engine::execute`].
    pub fn check_read(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), BlockError> {
        self.locate(offset_bytes, len_bytes).map(drop)
    }

    /// Whether a change of this range would be accepted; see [`Engine::check_read`].
    ///
    /// # Errors
    /// As [`Engine::execute`].
    pub fn check_write(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), BlockError> {
        self.locate_writable(offset_bytes, len_bytes).map(drop)
    }

    fn zero(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> Result<(), BlockError> {
        let mut at = self.locate_writable(offset_bytes, len_bytes)?;
        let end = at + len_bytes;
        while at < end {
            let step = (end - at).min(ZEROES.len() as u64);
            #[expect(clippy::cast_possible_truncation, reason = "at most the length of ZEROES")]
            self.pmem.store_nt(at, &ZEROES[..step as usize]);
            at += step;
        }
        self.complete_write(fua)
    }

    /// The fence that stands between a write's stores and its completion.
    #[inline]
    fn complete_write(&self, fua: bool) -> Result<(), BlockError> {
        if fua || self.write_cache == WriteCache::WriteThrough {
            // DURABILITY POINT
            self.pmem.fence()?;
        }
        Ok(())
    }

    #[inline]
    fn locate_writable(&self, offset_bytes: u64, len_bytes: u64) -> Result<u64, BlockError> {
        if self.read_only {
            return Err(BlockError::ReadOnly);
        }
        self.locate(offset_bytes, len_bytes)
    }

    /// The region's offset for a request, after checking that it is whole sectors inside the device.
    #[inline]
    fn locate(&self, offset_bytes: u64, len_bytes: u64) -> Result<u64, BlockError> {
        let capacity_bytes = self.geometry.capacity_bytes();
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > capacity_bytes) {
            return Err(BlockError::OutOfRange { offset_bytes, len_bytes, capacity_bytes });
        }
        let sector_bytes = self.geometry.sector().bytes();
        if (offset_bytes | len_bytes) & (sector_bytes - 1) != 0 {
            return Err(BlockError::Unaligned { offset_bytes, len_bytes, sector_bytes });
        }
        Ok(self.geometry.start_bytes() + offset_bytes)
    }
}
