//! The region behind the seam: loads, stores, flushes and fences, each seen at once and recorded.

use super::region::SimPmem;
use super::state::State;
use crate::line::{LINE, WORD, pieces};
use crate::site::SiteKind;
use crate::trace::EventKind;
use pm_core::{Domain, FenceError, Pmem, WriterLock};
use std::panic::Location;
use std::sync::PoisonError;

impl Pmem for SimPmem {
    fn len_bytes(&self) -> u64 {
        self.image.len_bytes()
    }

    fn domain(&self) -> Domain {
        self.model().domain()
    }

    fn writer_lock(&self) -> Option<WriterLock> {
        Some(self.writer.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.check(offset, out.len() as u64);
        let mut state = self.access();
        self.read(&mut state, offset, out);
        state.record_load(offset, out.len() as u64, Location::caller());
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64);
        let mut state = self.access();
        self.write(&mut state, offset, bytes);
        state.record_store(bytes, |data| EventKind::Store { offset, data }, Location::caller());
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64);
        let mut state = self.access();
        self.write(&mut state, offset, bytes);
        state.record_store(bytes, |data| EventKind::StoreNt { offset, data }, Location::caller());
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.check_atomic(offset);
        let mut state = self.access();
        state.record_load(offset, WORD as u64, Location::caller());
        self.read_word(&mut state, offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.check_atomic(offset);
        let bytes = value.to_le_bytes();
        let mut state = self.access();
        self.write(&mut state, offset, &bytes);
        state.record_store(&bytes, |data| EventKind::Store { offset, data }, Location::caller());
    }

    fn store_u128(&self, offset: u64, value: u128) {
        self.check_pair(offset);
        let bytes = value.to_le_bytes();
        let mut state = self.access();
        self.write(&mut state, offset, &bytes);
        state.record_store(&bytes, |data| EventKind::StoreU128 { offset, data }, Location::caller());
    }

    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.check_atomic(offset);
        let mut state = self.access();
        let found = self.read_word(&mut state, offset);
        if found != current {
            // A failed exchange may or may not order on hardware; the careful reading is that it only loads.
            state.record_load(offset, WORD as u64, Location::caller());
            return Err(found);
        }
        let bytes = new.to_le_bytes();
        self.write(&mut state, offset, &bytes);
        state.record_store(&bytes, |data| EventKind::Exchange { offset, data }, Location::caller());
        Ok(found)
    }

    fn flush(&self, offset: u64, len_bytes: u64) {
        self.check(offset, len_bytes);
        self.record_site(SiteKind::Flush, EventKind::Flush { offset, len_bytes });
    }

    fn fence(&self) -> Result<(), FenceError> {
        self.record_site(SiteKind::Fence, EventKind::Fence);
        Ok(())
    }
}
impl SimPmem {
    fn read(&self, state: &mut State, offset: u64, out: &mut [u8]) {
        for piece in pieces(offset, out.len(), LINE) {
            state.reads.note(piece.unit);
            let line = state.visible.get(&piece.unit).unwrap_or_else(|| self.image.line(piece.unit));
            out[piece.of_range].copy_from_slice(&line[piece.within]);
        }
    }

    fn write(&self, state: &mut State, offset: u64, bytes: &[u8]) {
        for piece in pieces(offset, bytes.len(), LINE) {
            state.reads.note_stored(piece.unit);
            let line = state.visible.entry(piece.unit).or_insert_with(|| *self.image.line(piece.unit));
            line[piece.within].copy_from_slice(&bytes[piece.of_range]);
        }
    }

    fn read_word(&self, state: &mut State, offset: u64) -> u64 {
        let mut word = [0; WORD];
        self.read(state, offset, &mut word);
        u64::from_le_bytes(word)
    }
}
