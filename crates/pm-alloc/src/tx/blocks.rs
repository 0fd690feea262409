//! Blocks of bytes in a transaction: allocated, freed, read, written. The typed calls are made of these.

use super::Tx;
use crate::error::TxError;
use crate::layout::Layout;
use crate::log::CommitError;
use crate::space::SpaceError;
use pm_core::{PlaceError, Pmem};

/// From this length on a write to an existing block goes in place, behind undo entries, instead of being kept in DRAM.
/// `docs/adr/0007-one-fence-per-transaction.md` has what was measured.
pub(super) const IN_PLACE_FROM_BYTES: usize = 4096;

impl<P: Pmem> Tx<'_, P> {
    /// Allocates a block of at least `bytes` bytes, whose contents are whatever was there, and returns where it starts: at a
    /// multiple of 64, or of `align_bytes`, if that is more.
    pub(super) fn reserve(&mut self, bytes: u64, align_bytes: u64) -> Result<u64, TxError> {
        let lines = Layout::lines_for(bytes).unwrap_or(u64::MAX);
        let carved = self.reservations.last_mut().and_then(|last| last.carve(lines, align_bytes));
        let payload = match carved {
            Some(payload) => payload,
            None => {
                let mut reservation = self.find_room(lines, align_bytes)?;
                let payload = reservation.carve(lines, align_bytes).expect("that is what it was made for");
                self.reservations.push(reservation);
                payload
            }
        };
        self.fresh.push(payload..payload + bytes);
        Ok(payload)
    }

    fn find_room(&self, lines: u64, align_bytes: u64) -> Result<crate::space::Reservation, TxError> {
        let (space, log, pmem) = (&self.heap.space, &self.heap.log, self.heap.pmem());
        match space.reserve(pmem, lines, align_bytes, log.horizon()) {
            Err(SpaceError::Full { waiting: true, .. }) => {
                // Freed lately: what resting lanes hold back is let go, at two fences for each.
                let horizon = log.raise_horizon_to_now(pmem).map_err(CommitError::from)?;
                Ok(space.reserve(pmem, lines, align_bytes, horizon)?)
            }
            result => Ok(result?),
        }
    }

    pub(super) fn free_block(&mut self, payload: u64) -> Result<(), TxError> {
        if let Some(at) = self.fresh.iter().position(|fresh| fresh.start == payload) {
            // Never anyone's.
            let taken_back = self.reservations.iter_mut().any(|reservation| reservation.uncarve(payload));
            debug_assert!(taken_back, "a new block lies in a reservation");
            self.fresh.remove(at);
            return Ok(());
        }
        let freeing = self.heap.space.begin_free(self.heap.pmem(), payload)?;
        self.freeing.push(freeing);
        Ok(())
    }

    pub(super) fn load(&self, offset: u64, out: &mut [u8]) {
        self.heap.pmem().load(offset, out);
        self.writes.overlay(offset, out);
    }

    /// Stores into a block, new or old. `offset` was checked.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TxError> {
        let (start, end) = (offset, offset + bytes.len() as u64);
        if self.fresh.iter().rev().any(|fresh| fresh.start <= start && end <= fresh.end) {
            // The commit's fence waits for this too.
            self.heap.pmem().store(offset, bytes);
            self.heap.pmem().flush(offset, bytes.len() as u64);
        } else if bytes.len() >= IN_PLACE_FROM_BYTES && !self.writes.overlaps(offset, bytes.len()) {
            let pmem = self.heap.pmem();
            self.lane().undo(pmem, offset, bytes.len() as u64)?;
            pmem.store(offset, bytes);
            pmem.flush(offset, bytes.len() as u64);
        } else {
            self.writes.bytes(offset, bytes);
        }
        Ok(())
    }

    /// Whether `size_bytes` at `offset` lie in the heap's chunks and are aligned.
    pub(super) fn check(&self, offset: u64, size_bytes: u64, align_bytes: u64) -> Result<u64, PlaceError> {
        self.heap.check_place(offset, size_bytes, align_bytes)
    }
}
