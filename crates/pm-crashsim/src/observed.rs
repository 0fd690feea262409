//! What threads see of each other: a load that finds what another thread stored proves that it has left the store buffer.

use crate::line::{LineMap, WORD, index, pieces};
use crate::trace::{Event, EventKind, Trace};

/// For each byte, the last store to it.
#[derive(Clone)]
pub(crate) struct Observed {
    /// By word: for each byte, one more than the number of the last store to it through the cache, and its thread. Zero where there
    /// is none, or where the last one went around the cache and so is in no order with others.
    last: LineMap<[(usize, u32); WORD]>,
}

impl Observed {
    /// Nothing if no thread loads what another one may have stored.
    pub(crate) fn of(trace: &Trace) -> Option<Self> {
        let events = trace.events();
        let first = events.first()?.thread;
        let is_shared = events.iter().any(|event| event.thread != first);
        let is_observer =
            |event: &Event| matches!(event.kind, EventKind::Load { .. } | EventKind::Exchange { .. });
        (is_shared && events.iter().any(is_observer)).then(|| Self { last: LineMap::default() })
    }

    /// The last store of another thread that the event proves to have left the store buffer.
    pub(crate) fn seen_by(&self, event: &Event) -> Option<usize> {
        let EventKind::Load { .. } = event.kind else { return None };
        let (offset, len_bytes) = event.kind.extent()?;
        let of_word = |word: u64, bytes: core::ops::Range<usize>| {
            let stores = self.last.get(&word).map_or(&[][..], |last| &last[bytes]);
            stores
                .iter()
                .filter(|(_, thread)| *thread != event.thread)
                .filter_map(|(at, _)| at.checked_sub(1))
                .max()
        };
        pieces(offset, index(len_bytes), WORD).filter_map(|piece| of_word(piece.unit, piece.within)).max()
    }

    /// Notes what the event stores.
    pub(crate) fn note(&mut self, at: usize, event: &Event) {
        let Some((offset, len_bytes)) = event.kind.extent().filter(|_| event.kind.is_store()) else { return };
        let is_around = matches!(event.kind, EventKind::StoreNt { .. });
        for piece in pieces(offset, index(len_bytes), WORD) {
            let last = self.last.entry(piece.unit).or_default();
            last[piece.within].fill(if is_around { (0, 0) } else { (at + 1, event.thread) });
        }
    }
}
