//! Which lines a lane aimed at lately, and when last.

use super::home;
use crate::format::{LINE_BYTES, Stamp};
use crate::sync::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// Few enough to stay in a cache. Lines that share a slot share its stamp, which may delay somebody, and does no other harm.
const SLOT_BITS: u32 = if cfg!(loom) { 2 } else { 9 };

/// For each line, by hash, the highest stamp of an entry of one lane that aimed at it. Each lane has its own: a table of all would
/// be a cache line of another processor at every other commit.
///
/// Whoever asks about bytes is ordered behind those that wrote them, by locks of its own; but a line that shares their slot has other
/// locks, or none. Whoever finds that line's stamp here must find the clock not behind it: so these accesses release and acquire.
#[derive(Debug)]
pub(super) struct Recent {
    slots: Box<[AtomicU64]>,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { slots: (0..1 << SLOT_BITS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// An entry with this stamp, which is the lane's highest, aims at this line. Only whoever has the lane calls this.
    #[inline]
    pub(super) fn note(&self, line: u64, stamp: Stamp) {
        self.slots[slot(line)].store(stamp.bits(), Release);
    }

    /// No entry of this lane with a higher stamp aimed at these bytes since the log was opened.
    pub(super) fn last(&self, offset: u64, len: u64) -> Stamp {
        let mut last = 0;
        home::for_each_line([(offset, len)].into_iter(), |line| {
            last = last.max(self.slots[slot(line)].load(Acquire));
        });
        Stamp::new(last)
    }
}

const fn slot(line: u64) -> usize {
    ((line / LINE_BYTES).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SLOT_BITS)) as usize
}
