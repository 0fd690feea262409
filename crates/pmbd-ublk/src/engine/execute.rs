//! The life of a request, from a checked range to the fence that makes it durable.

use super::error::{BlockError, GeometryError, WriteBackError};
use super::geometry::Geometry;
use super::mark::{WriteBackMark, write_back_all};
use super::policy::{WritePolicy, WriteScheme, WriteSetup};
use super::writes::{WriteFailure, Writes};
use crate::buffer::Buffers;
use crate::throttle::Throttle;
use core::sync::atomic::{AtomicBool, Ordering};
use pm_core::fault::MediumFault;
use pm_core::{DirtyPages, Pmem, Region};

/// A request, common to all block protocols. Its offset is an argument of [`Engine::execute`].
#[derive(Debug)]
pub enum BlockOp<'a> {
    /// Fills `out` from the device.
    Read {
        /// The destination; its length is the request's.
        out: &'a mut [u8],
    },
    /// Writes `data` to the device.
    Write {
        /// The source; its length is the request's.
        data: &'a [u8],
        /// Force unit access: durable before it completes, whatever the write cache.
        fua: bool,
    },
    /// Makes every write that completed before this request durable, including those of other queues and clients.
    Flush,
    /// The contents of a range are no longer needed. Reads of it return zeroes afterwards.
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

/// The guarantee of a completed write without FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteCache {
    /// It is durable. The device has no volatile cache, so a client needs neither Flush nor FUA; both are supported.
    WriteThrough,
    /// It may be lost at a power failure until the next Flush.
    WriteBack,
}

/// Zeroes to copy from. They stay in the L2 cache while non-temporal stores write the destination, and one window of a protected device is enough for
/// so many.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Serves block requests from a range of persistent memory, for any number of queues and clients at once.
///
/// # Durability
/// In the domains that the CPU reaches ([`Domain::Adr`](pm_core::Domain::Adr), `Eadr`, and `Volatile`, whose contents survive only a crash of the
/// process), a write is stored around the cache and fenced before it completes: **every completed write is durable**, and [`BlockOp::Flush`] has
/// nothing to do, on this queue or on any other. In the page domain this would cost a system call and a disk write for each request, so there the
/// device reports a write-back cache, and Flush and FUA make writes durable. The same holds for [`WriteScheme::Deferred`]. A [`WritePolicy`] changes how
/// writes are stored.
///
/// A power failure in the middle of a write that has not completed can leave any mixture of its old and new 8-byte words, even inside one sector, as
/// with the kernel's `pmem` driver without a BTT. File systems with checksummed journals and metadata (ext4, XFS, btrfs, ZFS) are designed for that.
///
/// A process that is killed in the middle of a write leaves such a mixture too, and some of it may be in the caches only. A new engine over the
/// same memory reads it, and a later power failure can still revert it, until a write to those bytes completes: the engine flushes nothing that it
/// did not store, because that would cost a pass over the whole device at each start. This concerns only bytes of a write that was not
/// acknowledged. A client that depends on such a range writes it again. In a takeover, ublk does so with the requests that were in flight.
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
pub struct Engine<P: Pmem = Region> {
    pmem: P,
    geometry: Geometry,
    writes: Writes,
    /// Set while writes are deferred; cleared on drop, after they were written back.
    mark: Option<WriteBackMark>,
    read_only: bool,
    /// Whether completed writes of the last server were discarded.
    has_discarded: bool,
    /// Whether its clients were given these writes as completed, so that no Flush may succeed.
    fails_flushes: AtomicBool,
}

/// Logs a failure of the medium, for the operator.
#[cold]
fn report(error: &BlockError) {
    static FAULTS: Throttle = Throttle::new();
    if let Some(suppressed) = FAULTS.admit() {
        tracing::error!(%error, suppressed, "a request failed");
    }
}

/// Turns the failure of a write into the error of the request, and logs it.
#[inline]
fn written(offset_bytes: u64, len_bytes: u64, stored: Result<(), WriteFailure>) -> Result<(), BlockError> {
    stored.map_err(|failure| {
        let error = match failure {
            WriteFailure::Fence(error) => BlockError::Medium(error),
            WriteFailure::Medium(source) => BlockError::Fault { offset_bytes, len_bytes, source },
            WriteFailure::Mismatch => BlockError::Mismatch { offset_bytes, len_bytes },
        };
        report(&error);
        error
    })
}

/// Turns a medium fault into the error of the request, and logs it.
#[inline]
fn checked(offset_bytes: u64, len_bytes: u64, accessed: Result<(), MediumFault>) -> Result<(), BlockError> {
    accessed.map_err(|source| {
        let error = BlockError::Fault { offset_bytes, len_bytes, source };
        report(&error);
        error
    })
}

impl<P: Pmem> Engine<P> {
    /// An engine over the part of `pmem` that `geometry` specifies.
    ///
    /// # Errors
    /// When the device would exceed the region.
    pub fn new(pmem: P, geometry: Geometry) -> Result<Self, GeometryError> {
        let (start_bytes, capacity_bytes) = (geometry.start_bytes(), geometry.capacity_bytes());
        let region_bytes = pmem.len_bytes();
        if start_bytes.checked_add(capacity_bytes).is_none_or(|end| end > region_bytes) {
            return Err(GeometryError::OutsideRegion { start_bytes, capacity_bytes, region_bytes });
        }
        let writes = Writes::new(WritePolicy::default(), start_bytes, capacity_bytes, None);
        let fails_flushes = AtomicBool::new(false);
        Ok(Self { pmem, geometry, writes, mark: None, read_only: false, has_discarded: false, fails_flushes })
    }

    /// Makes the engine write by `policy`, without buffers: see [`with_writes`](Self::with_writes).
    ///
    /// # Errors
    /// As [`with_writes`](Self::with_writes).
    pub fn with_policy(
        self,
        policy: WritePolicy,
        mark: Option<WriteBackMark>,
    ) -> Result<Self, WriteBackError> {
        self.with_writes(WriteSetup { policy, mark, ..WriteSetup::default() })
    }

    /// Makes the engine write as `setup` says. Drop the engine when it has served its last request: then deferred and buffered writes are written back, and
    /// the mark is cleared.
    ///
    /// If the mark is set, an earlier engine did not come to that. This call then stores what its buffers hold, or, without buffers, writes back the
    /// whole device. Keep to one engine at a time.
    ///
    /// # Errors
    /// When what the earlier engine left cannot be stored or written back: a part of the device is inaccessible, or a fence failed. The mark and the
    /// earlier slots are unchanged. Also when the shape of the buffers is impossible, or has more slots than there are.
    ///
    /// # Panics
    /// If writes are deferred or buffered without a mark, or both.
    ///
    /// # Durability
    /// When it returns, everything that reads return is durable.
    pub fn with_writes(mut self, setup: WriteSetup) -> Result<Self, WriteBackError> {
        let WriteSetup { policy, mark, mut buffers, leftover } = setup;
        if let Some((options, slots)) = &buffers {
            options.check()?;
            slots.check_count(options.slot_count())?;
        }
        let (start_bytes, capacity_bytes) = (self.geometry.start_bytes(), self.geometry.capacity_bytes());
        let is_deferred = policy.scheme == WriteScheme::Deferred;
        assert!(
            !is_deferred && buffers.is_none() || mark.is_some(),
            "deferred and buffered writes need a mark"
        );
        assert!(!is_deferred || buffers.is_none(), "buffers write back at once");
        if let Some(mark) = mark {
            let found = mark.load(&self.pmem);
            if let Some(slots) = leftover.as_ref().filter(|slots| slots.session() == found) {
                slots.check_generation(mark.generation(&self.pmem))?;
                let block_count = self.writes.replay(&self.pmem, slots)?;
                tracing::info!(
                    block_count,
                    "stored the buffered writes of the last server, which was killed"
                );
            } else if found != 0 {
                tracing::info!(
                    capacity_bytes,
                    "writing back the whole device, because its last server was killed"
                );
                write_back_all(&self.pmem, start_bytes..start_bytes + capacity_bytes)?;
            }
            match &mut buffers {
                Some((_, slots)) => {
                    slots.publish(mark.generation(&self.pmem))?;
                    mark.set(&self.pmem, slots.session());
                }
                None if is_deferred => mark.set(&self.pmem, WriteBackMark::SET),
                None if found != 0 => mark.clear(&self.pmem)?,
                None => {}
            }
        }
        leftover.map_or(Ok(()), |mut slots| slots.discard())?;
        self.mark = mark.filter(|_| is_deferred || buffers.is_some());
        let buffers = buffers.zip(self.mark).map(|((options, slots), mark)| {
            let generation = mark.generation(&self.pmem);
            (Buffers::new(options, capacity_bytes, slots, generation), mark)
        });
        self.writes = Writes::new(policy, start_bytes, capacity_bytes, buffers);
        Ok(self)
    }

    /// Makes the engine refuse every request that would change the device.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Notes that completed writes of the last server were discarded: see [`has_discarded`](Self::has_discarded).
    pub(crate) fn note_discarded(mut self) -> Self {
        self.has_discarded = true;
        self
    }

    /// Whether completed writes of the last server, which was killed, were discarded. A client of that server must not be served as if they were there: a
    /// transport that goes on serving it calls [`fail_flushes`](Self::fail_flushes).
    #[must_use]
    pub const fn has_discarded(&self) -> bool {
        self.has_discarded
    }

    /// Makes each later Flush, and each request with FUA, fail with [`BlockError::Discarded`]: a client would take their success for that of writes that
    /// were discarded.
    pub fn fail_flushes(&self) {
        self.fails_flushes.store(true, Ordering::Release);
    }

    /// The device's geometry.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The guarantee of a completed write. A transport must report it to every client.
    #[must_use]
    pub fn write_cache(&self) -> WriteCache {
        if self.pmem.domain().fences_without_system_call() && self.mark.is_none() {
            WriteCache::WriteThrough
        } else {
            WriteCache::WriteBack
        }
    }

    /// How it writes.
    #[must_use]
    pub const fn policy(&self) -> WritePolicy {
        self.writes.policy()
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

    /// Executes one request, at `offset_bytes` on the device, to completion. Allocates nothing.
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
        self.run(offset_bytes, op, self.geometry.sector().bytes())
    }

    /// Like [`Engine::execute`], for a range that may start and end at any byte. It changes only the bytes of its range: nothing is read, modified
    /// and written back.
    ///
    /// # Errors
    /// As [`Engine::execute`], except [`BlockError::Unaligned`].
    ///
    /// # Durability
    /// As [`Engine::execute`]. Where the range covers a word in part, that part consists of pieces of 4, 2 and 1 bytes, each aligned to its length;
    /// a crash leaves each piece old or new.
    #[inline]
    pub fn execute_bytes(&self, offset_bytes: u64, op: BlockOp<'_>) -> Result<(), BlockError> {
        self.run(offset_bytes, op, 1)
    }

    #[inline]
    fn run(&self, offset_bytes: u64, op: BlockOp<'_>, granule: u64) -> Result<(), BlockError> {
        match op {
            BlockOp::Read { out } => {
                let len_bytes = out.len() as u64;
                let at = self.locate(offset_bytes, len_bytes, granule)?;
                checked(offset_bytes, len_bytes, self.writes.load(&self.pmem, at, out))
            }
            BlockOp::Write { data, fua } => {
                let len_bytes = data.len() as u64;
                let at = self.locate_writable(offset_bytes, len_bytes, granule)?;
                written(offset_bytes, len_bytes, self.writes.store(&self.pmem, at, data))?;
                self.complete_write(offset_bytes, len_bytes, fua)
            }
            BlockOp::Flush if self.read_only => Ok(()),
            BlockOp::Flush => self.check_flushes().and_then(|()| self.flush()),
            BlockOp::Discard { len_bytes } => self.zero(offset_bytes, len_bytes, false, granule),
            BlockOp::WriteZeroes { len_bytes, fua } => self.zero(offset_bytes, len_bytes, fua, granule),
        }
    }

    /// Checks that [`Engine::execute_bytes`] would accept a read of this range. For transports that run a long request in pieces, and must refuse
    /// it as a whole.
    ///
    /// # Errors
    /// As [`Engine::execute_bytes`].
    pub fn check_read(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), BlockError> {
        self.locate(offset_bytes, len_bytes, 1).map(drop)
    }

    /// Checks that a change of this range would be accepted; see [`Engine::check_read`].
    ///
    /// # Errors
    /// As [`Engine::execute_bytes`].
    pub fn check_write(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), BlockError> {
        self.locate_writable(offset_bytes, len_bytes, 1).map(drop)
    }

    fn zero(&self, offset_bytes: u64, len_bytes: u64, fua: bool, granule: u64) -> Result<(), BlockError> {
        let mut at = self.locate_writable(offset_bytes, len_bytes, granule)?;
        let end = at + len_bytes;
        while at < end {
            let step = (end - at).min(ZEROES.len() as u64);
            #[expect(clippy::cast_possible_truncation, reason = "at most the length of ZEROES")]
            let zeroes = &ZEROES[..step as usize];
            written(offset_bytes, len_bytes, self.writes.store(&self.pmem, at, zeroes))?;
            at += step;
        }
        self.complete_write(offset_bytes, len_bytes, fua)
    }

    /// The fence between a write's stores and its completion.
    #[inline]
    fn complete_write(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> Result<(), BlockError> {
        if fua {
            self.check_flushes()?;
        }
        if fua && self.writes.is_buffered() {
            return self.flush();
        }
        if fua || self.write_cache() == WriteCache::WriteThrough {
            let at = self.geometry.start_bytes() + offset_bytes;
            checked(offset_bytes, len_bytes, self.writes.write_back_range(&self.pmem, at, len_bytes))?;
            self.make_durable()?;
        }
        Ok(())
    }

    #[inline]
    fn check_flushes(&self) -> Result<(), BlockError> {
        if self.fails_flushes.load(Ordering::Acquire) { Err(BlockError::Discarded) } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), BlockError> {
        let written_back = self.writes.write_back(&self.pmem, || self.make_durable())?;
        written_back.or_else(|(page, failure)| written(page, DirtyPages::PAGE_BYTES, Err(failure)))
    }

    #[inline]
    fn make_durable(&self) -> Result<(), BlockError> {
        // DURABILITY POINT
        Ok(self.pmem.fence().inspect_err(|error| report(&BlockError::Medium(error.clone())))?)
    }

    #[inline]
    fn locate_writable(&self, offset_bytes: u64, len_bytes: u64, granule: u64) -> Result<u64, BlockError> {
        if self.read_only {
            return Err(BlockError::ReadOnly);
        }
        self.locate(offset_bytes, len_bytes, granule)
    }

    /// The offset in the region for a request. The request must lie inside the device, and start and end at multiples of `granule`, a power of two.
    #[inline]
    fn locate(&self, offset_bytes: u64, len_bytes: u64, granule: u64) -> Result<u64, BlockError> {
        let capacity_bytes = self.geometry.capacity_bytes();
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > capacity_bytes) {
            return Err(BlockError::OutOfRange { offset_bytes, len_bytes, capacity_bytes });
        }
        if (offset_bytes | len_bytes) & (granule - 1) != 0 {
            let sector_bytes = self.geometry.sector().bytes();
            return Err(BlockError::Unaligned { offset_bytes, len_bytes, sector_bytes });
        }
        Ok(self.geometry.start_bytes() + offset_bytes)
    }
}

impl<P: Pmem> Drop for Engine<P> {
    /// Writes back deferred writes, and clears the mark. If that fails, the mark remains, and the next engine writes back the whole device.
    fn drop(&mut self) {
        let Some(mark) = self.mark else { return };
        let cleared = self.flush().and_then(|()| Ok(mark.clear(&self.pmem)?));
        if let Err(error) = cleared {
            tracing::error!(%error, "completed writes could not be written back; the next server tries again");
            return;
        }
        let discarded = self.writes.buffers_mut().map_or(Ok(()), |buffers| buffers.slots_mut().discard());
        if let Err(error) = discarded {
            tracing::warn!(%error, "the file of the buffers stays");
        }
    }
}
