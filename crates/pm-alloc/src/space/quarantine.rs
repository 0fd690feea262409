//! Quarantine: freed blocks are not reusable until the checkpoint LSN has reached the LSN of the freeing commit, and the quarantine time is over.

use crate::format::{LINE_BYTES, Lsn};
use core::ops::Range;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The clock that determines when a quarantine ends. The system clock is not read if the quarantine time is zero.
#[derive(Debug)]
pub(super) struct QuarantineClock {
    epoch: Instant,
    quarantine_ns: u64,
}

/// A time of a [`QuarantineClock`], with the quarantine time to add to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    now_ns: u64,
    quarantine_ns: u64,
}

impl QuarantineClock {
    /// The clock of a heap whose freed blocks stay quarantined for at least this duration.
    pub(super) fn new(quarantine: Duration) -> Self {
        Self { epoch: Instant::now(), quarantine_ns: nanoseconds(quarantine) }
    }

    /// Whether the quarantine time is not zero.
    pub(super) const fn is_used(&self) -> bool {
        self.quarantine_ns > 0
    }

    #[inline]
    pub(super) fn now(&self) -> Moment {
        let now_ns = if self.is_used() { nanoseconds(self.epoch.elapsed()) } else { 0 };
        Moment { now_ns, quarantine_ns: self.quarantine_ns }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Quarantined {
    /// The slot, in the arena, of the chunk with this block. For a huge block, the number of its first chunk.
    pub(super) slot_or_chunk: u32,
    pub(super) line: u32,
    pub(super) lines: u32,
    lsn: Lsn,
    due_ns: u64,
}

/// The quarantined blocks of an arena, or the quarantined huge blocks, in the order in which they were freed.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    blocks: VecDeque<Quarantined>,
    /// Gaps: free lines that were not allocated before, and whose header recovery may still replay. A gap stays quarantined until the checkpoint LSN
    /// has reached the LSN with which its header was logged.
    gaps: VecDeque<Quarantined>,
}

impl Quarantine {
    /// Adds a block that a commit with this LSN has just freed.
    #[inline]
    pub(super) fn push(&mut self, slot_or_chunk: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        let due_ns = now.now_ns.saturating_add(now.quarantine_ns);
        let (line, lines) = (lines.start, lines.end - lines.start);
        self.blocks.push_back(Quarantined { slot_or_chunk, line, lines, lsn, due_ns });
    }

    /// Adds a gap: lines that were not allocated before, and that a commit with this LSN made a free block.
    pub(super) fn push_gap(&mut self, slot_or_chunk: u32, lines: Range<u32>, lsn: Lsn) {
        let (line, lines) = (lines.start, lines.end - lines.start);
        self.gaps.push_back(Quarantined { slot_or_chunk, line, lines, lsn, due_ns: 0 });
    }

    /// Adds a block that has no quarantine time, because another process freed it or it was never allocated. It goes to the front: it is due first.
    pub(super) fn push_due(&mut self, slot_or_chunk: u32, lines: Range<u32>, lsn: Lsn) {
        let (line, lines) = (lines.start, lines.end - lines.start);
        self.blocks.push_front(Quarantined { slot_or_chunk, line, lines, lsn, due_ns: 0 });
    }

    /// Adds the block again that [`pop_due`](Self::pop_due) removed last.
    pub(super) fn put_back(&mut self, block: Quarantined) {
        self.blocks.push_front(block);
    }

    /// Removes and returns the oldest gap if it may be reused, or else the oldest block if that may be reused.
    #[inline]
    pub(super) fn pop_due(&mut self, checkpoint_lsn: Lsn, now: Moment) -> Option<Quarantined> {
        let is_due = |block: &mut Quarantined| block.lsn <= checkpoint_lsn && block.due_ns <= now.now_ns;
        self.gaps.pop_front_if(is_due).or_else(|| self.blocks.pop_front_if(is_due))
    }

    /// Removes the huge block that starts in `chunk`, if it is quarantined.
    pub(super) fn remove(&mut self, chunk: u64) {
        self.blocks.retain(|block| u64::from(block.slot_or_chunk) != chunk);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.gaps.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len() + self.gaps.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().chain(&self.gaps).map(|block| u64::from(block.lines) * LINE_BYTES).sum()
    }
}

/// Saturates at 584 years.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
