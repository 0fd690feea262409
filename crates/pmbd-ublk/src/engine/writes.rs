//! Stores of an engine by its policy, between the check of a request's range and its fence.

use super::mark::WriteBackMark;
use super::policy::{WritePolicy, WriteScheme};
use crate::buffer::{BufferError, Buffers, Device, Slots};
use core::ops::Range;
use pm_core::fault::MediumFault;
use pm_core::line::LINE_BYTES;
use pm_core::{DirtyPages, FenceError, Pmem};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unit of comparisons and of deferred writes.
const PAGE: usize = 4096;
const PAGE_BYTES: u64 = DirtyPages::PAGE_BYTES;
const _: () = assert!(PAGE as u64 == PAGE_BYTES);

/// The length of a line.
const LINE: usize = 64;
const _: () = assert!(LINE as u64 == LINE_BYTES);

/// The number of locks of verified writes.
const STRIPES: usize = 64;

/// Why a write failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteFailure {
    /// The memory cannot be accessed.
    Medium(MediumFault),
    /// The bytes that were read back differ.
    Mismatch,
    /// A buffer was full, and the fence of its drain failed.
    Fence(FenceError),
}

impl From<MediumFault> for WriteFailure {
    fn from(fault: MediumFault) -> Self {
        Self::Medium(fault)
    }
}

impl From<WriteFailure> for BufferError {
    fn from(failure: WriteFailure) -> Self {
        match failure {
            WriteFailure::Medium(fault) => fault.into(),
            WriteFailure::Mismatch => Self::Mismatch,
            WriteFailure::Fence(error) => error.into(),
        }
    }
}

/// A policy, and its state.
#[derive(Debug)]
pub(super) struct Writes {
    policy: WritePolicy,
    /// The offset in the region of the device's first byte.
    start_bytes: u64,
    capacity_bytes: u64,
    /// The pages to write back, if writes are deferred. The lock is held by the one Flush that takes pages out and waits for them: a second that found
    /// none must not return earlier.
    deferred: Option<(DirtyPages, Mutex<()>)>,
    /// Before the device, if writes are buffered, and the mark of the device.
    buffers: Option<(Buffers, WriteBackMark)>,
    /// Empty unless writes are verified. A page is stored to and compared under its lock, because a write of another client in between would be found instead.
    locks: Box<[Mutex<()>]>,
}

impl Writes {
    pub(super) fn new(
        policy: WritePolicy,
        start_bytes: u64,
        capacity_bytes: u64,
        buffers: Option<(Buffers, WriteBackMark)>,
    ) -> Self {
        let deferred = (policy.scheme == WriteScheme::Deferred)
            .then(|| (DirtyPages::new(capacity_bytes), Mutex::new(())));
        let locks = (0..if policy.verify { STRIPES } else { 0 }).map(|_| Mutex::new(())).collect();
        Self { policy, start_bytes, capacity_bytes, deferred, buffers, locks }
    }

    pub(super) const fn policy(&self) -> WritePolicy {
        self.policy
    }

    pub(super) const fn is_buffered(&self) -> bool {
        self.buffers.is_some()
    }

    pub(super) fn buffers_mut(&mut self) -> Option<&mut Buffers> {
        self.buffers.as_mut().map(|(buffers, _)| buffers)
    }

    /// Loads the newest bytes at `at` in the region.
    #[inline]
    pub(super) fn load<P: Pmem>(&self, pmem: &P, at: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        match &self.buffers {
            None => pmem.try_load(at, out),
            Some((buffers, _)) => buffers.load(&Target { writes: self, pmem }, at - self.start_bytes, out),
        }
    }

    /// Stores `bytes` at `at` in the region. A fence makes them durable, except deferred and buffered ones, which need [`write_back`](Self::write_back).
    #[inline]
    pub(super) fn store<P: Pmem>(&self, pmem: &P, at: u64, bytes: &[u8]) -> Result<(), WriteFailure> {
        match &self.buffers {
            None => self.store_through(pmem, at, bytes),
            Some((buffers, _)) => buffers
                .store(&Target { writes: self, pmem }, at - self.start_bytes, bytes)
                .map_err(WriteFailure::Fence)?,
        }
    }

    /// Stores a killed server's buffered writes. Returns their number of blocks.
    pub(super) fn replay<P: Pmem>(&self, pmem: &P, slots: &Slots) -> Result<u64, BufferError> {
        Buffers::replay(slots, self.capacity_bytes, &Target { writes: self, pmem })
    }

    /// Stores on the device itself.
    #[inline]
    fn store_through<P: Pmem>(&self, pmem: &P, at: u64, bytes: &[u8]) -> Result<(), WriteFailure> {
        if !self.policy.only_changed && self.locks.is_empty() {
            return Ok(self.store_run(pmem, at, bytes)?);
        }
        self.store_by_pages(pmem, at, bytes)
    }

    /// Makes the bytes of one request durable at the next fence, whatever was deferred: for FUA.
    #[inline]
    pub(super) fn write_back_range<P: Pmem>(
        &self,
        pmem: &P,
        at: u64,
        len_bytes: u64,
    ) -> Result<(), MediumFault> {
        match &self.deferred {
            Some(_) => pmem.try_flush(at, len_bytes),
            None => Ok(()),
        }
    }

    /// Writes back what was deferred or buffered, calls `fence`, and returns its result, or the first page that could not be stored, as an offset on the
    /// device. Such pages remain to be written back.
    pub(super) fn write_back<P: Pmem, E: From<FenceError>>(
        &self,
        pmem: &P,
        fence: impl FnOnce() -> Result<(), E>,
    ) -> Result<Result<(), (u64, WriteFailure)>, E> {
        if let Some((buffers, _)) = &self.buffers {
            let drained = buffers.drain(&Target { writes: self, pmem })?;
            fence()?;
            return Ok(drained);
        }
        let Some((dirty, lock)) = &self.deferred else {
            fence()?;
            return Ok(Ok(()));
        };
        let _one_at_a_time = lock_of(lock);
        let mut result = Ok(());
        dirty.take(|range| {
            for (page, fault) in self.flush_pages(pmem, range) {
                dirty.add(page, PAGE_BYTES);
                if result.is_ok() {
                    result = Err((page, fault.into()));
                }
            }
        });
        fence()?;
        Ok(result)
    }

    /// Flushes pages of the device. Returns those that cannot be accessed.
    fn flush_pages<P: Pmem>(&self, pmem: &P, range: Range<u64>) -> Vec<(u64, MediumFault)> {
        let flush =
            |from: u64, to: u64| pmem.try_flush(self.start_bytes + from, to.min(self.capacity_bytes) - from);
        if flush(range.start, range.end).is_ok() {
            return Vec::new();
        }
        let pages = range.step_by(PAGE);
        pages.filter_map(|page| Some((page, flush(page, page + PAGE_BYTES).err()?))).collect()
    }

    /// Stores consecutive bytes by the scheme.
    #[inline]
    fn store_run<P: Pmem>(&self, pmem: &P, at: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        match &self.deferred {
            None if self.policy.scheme == WriteScheme::NonTemporal => pmem.try_store_nt(at, bytes),
            None => {
                pmem.try_store(at, bytes)?;
                pmem.try_flush(at, bytes.len() as u64)
            }
            Some((dirty, _)) => {
                let stored = pmem.try_store(at, bytes);
                // Bytes that were stored before a fault are written back too.
                dirty.add(at - self.start_bytes, bytes.len() as u64);
                stored
            }
        }
    }

    /// Makes bytes that are stored already durable at the next fence: a killed server may have left them in the caches.
    fn keep_run<P: Pmem>(&self, pmem: &P, at: u64, len_bytes: u64) -> Result<(), MediumFault> {
        match &self.deferred {
            None => pmem.try_flush(at, len_bytes),
            Some((dirty, _)) => {
                dirty.add(at - self.start_bytes, len_bytes);
                Ok(())
            }
        }
    }

    /// Stores a page at a time, with a comparison before, after, or both.
    fn store_by_pages<P: Pmem>(&self, pmem: &P, mut at: u64, mut bytes: &[u8]) -> Result<(), WriteFailure> {
        let mut page = [0; PAGE];
        while !bytes.is_empty() {
            let room = index(PAGE_BYTES - at % PAGE_BYTES);
            let (piece, rest) = bytes.split_at(room.min(bytes.len()));
            let found = &mut page[..piece.len()];
            let _locked =
                (!self.locks.is_empty()).then(|| lock_of(&self.locks[index(at / PAGE_BYTES) % STRIPES]));
            if self.policy.only_changed {
                pmem.try_load(at, found)?;
                self.store_changed(pmem, at, found, piece)?;
            } else {
                self.store_run(pmem, at, piece)?;
            }
            if self.policy.verify {
                pmem.try_load(at, found)?;
                if found != piece {
                    return Err(WriteFailure::Mismatch);
                }
            }
            at += piece.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Stores the lines of `new` that differ from `old`, which is at `at`. Adjacent lines with the same answer are one run.
    fn store_changed<P: Pmem>(&self, pmem: &P, at: u64, old: &[u8], new: &[u8]) -> Result<(), MediumFault> {
        // Lines are those of the region, so the first may be partial.
        let line_end = |from: usize| (from + LINE - (index(at) + from) % LINE).min(new.len());
        let is_equal = |from: usize| old[from..line_end(from)] == new[from..line_end(from)];
        let mut start = 0;
        while start < new.len() {
            let equal = is_equal(start);
            let mut end = line_end(start);
            while end < new.len() && is_equal(end) == equal {
                end = line_end(end);
            }
            let run_at = at + start as u64;
            if equal {
                self.keep_run(pmem, run_at, (end - start) as u64)?;
            } else {
                self.store_run(pmem, run_at, &new[start..end])?;
            }
            start = end;
        }
        Ok(())
    }
}

/// The device, as the buffers see it.
struct Target<'a, P> {
    writes: &'a Writes,
    pmem: &'a P,
}

impl<P: Pmem> Device for Target<'_, P> {
    type Error = FenceError;
    type Fault = WriteFailure;

    fn load(&self, offset_bytes: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        self.pmem.try_load(self.writes.start_bytes + offset_bytes, out)
    }

    fn store(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), WriteFailure> {
        self.writes.store_through(self.pmem, self.writes.start_bytes + offset_bytes, bytes)
    }

    fn fence(&self) -> Result<(), FenceError> {
        self.pmem.fence()
    }

    /// A CPU's fence is for the stores of its own thread. In the page domain a fence is a system call, and for those of all threads.
    fn release_stores(&self) -> Result<(), FenceError> {
        if self.pmem.domain().fences_without_system_call() { self.pmem.fence() } else { Ok(()) }
    }

    fn set_generation(&self, generation: u64) {
        if let Some((_, mark)) = &self.writes.buffers {
            mark.set_generation(self.pmem, generation);
        }
    }
}

/// A panic under a lock leaves nothing half done.
fn lock_of(lock: &Mutex<()>) -> MutexGuard<'_, ()> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a region is in memory")
}
