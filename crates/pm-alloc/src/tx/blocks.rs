//! Blocks of bytes in a transaction: allocated, freed, read, written. The typed calls are made of these.

use super::Tx;
use super::nesting::note_in_place;
use crate::error::TxError;
use crate::format::{BLOCK_HEADER_BYTES, Lsn};
use crate::heap::Heap;
use crate::layout::Layout;
use crate::log::CommitError;
use crate::space::{Reservation, SpaceError};
use pm_core::Pmem;

/// Up to this length what is written into a new block goes through the log: two lines cost less than a fence.
pub(super) const LOGGED_UP_TO_BYTES: usize = 96;

impl<P: Pmem> Heap<P> {
    /// Stores a header in place, durably, and not by a commit: the calling transaction may have the only lane. So no live entry may aim at
    /// the header.
    fn store_header(&self, offset: u64, word: u64) -> Result<(), CommitError> {
        let (log, pmem) = (&self.log, &self.pmem());
        let last = log.last_lsn(offset, BLOCK_HEADER_BYTES);
        if !log.is_reached(last) {
            log.raise_checkpoint(pmem, last)?;
        }
        // A transaction whose fence failed may have committed, and had the extent before.
        log.check()?;
        pmem.store_u64(offset, word);
        pmem.flush(offset, BLOCK_HEADER_BYTES);
        log.fence(pmem)
    }
}

impl<P: Pmem> Tx<'_, P> {
    /// Allocates a block of at least `bytes` bytes, whose contents are whatever was there, and returns where it starts: at a
    /// multiple of 64, or of `align_bytes`, if that is more.
    pub(super) fn reserve(&mut self, bytes: u64, align_bytes: u64) -> Result<u64, TxError> {
        self.heap.log.check_open()?;
        let lines = Layout::lines_for(bytes).unwrap_or(u64::MAX);
        let carved = self.work.reservations.last_mut().and_then(|last| last.carve(lines, align_bytes));
        let fresh = match carved {
            Some(fresh) => fresh,
            None => {
                let reservation = self.find_room(lines, align_bytes)?;
                let reservation = self.prepare(reservation)?;
                let fresh = reservation.carve(lines, align_bytes).expect("that is what it was made for");
                let is_over_chunks = reservation.is_over_chunks();
                // The first headers of the chunks are zeroed durably before an entry for the block's header can be.
                self.is_in_flight |= is_over_chunks;
                // Another transaction may have given it back as it failed.
                self.heap.log.check()?;
                fresh
            }
        };
        let payload = fresh.start;
        // With the spare bytes behind what was asked for: a link into an array may lead there, too.
        self.work.fresh.push(fresh);
        Ok(payload)
    }

    /// Reserves an extent with room for a block.
    fn find_room(&self, lines: u64, align_bytes: u64) -> Result<Reservation, TxError> {
        let (space, log, pmem) = (&self.heap.space, &self.heap.log, &self.heap.pmem());
        // Freed lately? First it may be that nobody looked: before a chunk is begun, somebody does. Then what resting lanes hold back
        // is let go, at two fences.
        if let Some(found) = space.reserve_own(pmem, lines, align_bytes, log.recent_checkpoint_lsn()) {
            return Ok(found);
        }
        match space.reserve(pmem, lines, align_bytes, log.checkpoint_lsn()) {
            Err(SpaceError::Full { quarantined: true, .. }) => {
                log.raise_checkpoint(pmem, log.latest())?;
                Ok(space.reserve(pmem, lines, align_bytes, log.checkpoint_lsn())?)
            }
            result => Ok(result?),
        }
    }

    /// Takes the extent into this transaction, and makes it one free block, durably, where it is several, or to be cut.
    fn prepare(&mut self, reservation: Reservation) -> Result<&mut Reservation, TxError> {
        let (heap, pmem) = (self.heap, &self.heap.pmem());
        let (is_one_block, mut headers) = (reservation.is_one_block(), reservation.joining_headers());
        // First of all, so that it is returned if anything fails or panics: other threads may be waiting for the rest of it.
        self.work.reservations.push(reservation);
        if !is_one_block {
            headers.try_for_each(|(offset, word)| heap.store_header(offset, word))?;
            let reservation = self.work.reservations.last_mut().expect("it was pushed");
            heap.space.joined(pmem, reservation, Lsn::ZERO);
        }
        Ok(self.work.reservations.last_mut().expect("it was pushed"))
    }

    pub(super) fn free_block(&mut self, payload: u64) -> Result<(), TxError> {
        if let Some(at) = self.work.fresh.iter().position(|fresh| fresh.start == payload) {
            // Never anyone's: and it may be someone else's before this transaction commits.
            let fresh = self.work.fresh.remove(at);
            self.work.writes.forget(fresh.start, fresh.end - fresh.start);
            let at = self.work.reservations.iter_mut().position(|reservation| reservation.uncarve(payload));
            let at = at.expect("a new block lies in a reservation");
            if self.work.reservations[at].is_unused() {
                self.heap.space.return_unused(self.work.reservations.remove(at));
            }
            return Ok(());
        }
        self.heap.log.check_open()?;
        let freeing = self.heap.space.begin_free(&self.heap.pmem(), payload)?;
        self.work.freeing.push(freeing);
        Ok(())
    }

    pub(super) fn load(&self, offset: u64, out: &mut [u8]) {
        self.heap.pmem().load(offset, out);
        self.work.writes.overlay(offset, out);
    }

    /// Stores into a new block. Nobody finds it before the transaction commits. Then what is long must be durable already, for a
    /// fence of its own; what is short comes with the log.
    pub(super) fn store_fresh(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TxError> {
        if bytes.len() <= LOGGED_UP_TO_BYTES || self.work.writes.overlaps(offset, bytes.len()) {
            self.work.writes.hidden_bytes(offset, bytes);
            return Ok(());
        }
        self.heap.log.check()?;
        self.heap.pmem().store(offset, bytes);
        self.heap.pmem().flush(offset, bytes.len() as u64);
        self.is_in_flight = true;
        Ok(())
    }

    /// Stores into a block, new or old. `offset` was checked.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TxError> {
        let (start, end) = (offset, offset + bytes.len() as u64);
        if self.work.fresh.iter().rev().any(|fresh| fresh.start <= start && end <= fresh.end) {
            self.store_fresh(offset, bytes)?;
        } else if bytes.len() >= self.heap.in_place_from_bytes
            && !self.work.writes.overlaps(offset, bytes.len())
        {
            let pmem = &self.heap.pmem();
            self.lane().undo(pmem, offset, bytes.len() as u64)?;
            note_in_place(core::ptr::from_ref(self.heap).addr(), start..end);
            pmem.store(offset, bytes);
            pmem.flush(offset, bytes.len() as u64);
        } else {
            self.work.writes.bytes(offset, bytes);
        }
        Ok(())
    }
}
