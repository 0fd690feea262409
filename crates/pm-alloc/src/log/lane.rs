//! A lane: a ring of entries, which one thread at a time writes, and what other threads know of it.

use super::checkpoint::{Group, Published};
use super::entry::{self, Record};
use super::home;
use super::writes::Packer;
use crate::format::{LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::quiet_lock::QuietLock;
use crate::sync::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use pm_core::Pmem;

/// Few enough to stay in a cache. Lines that share a slot share its LSN, which may delay somebody, and does no other harm.
const SLOT_BITS: u32 = if cfg!(loom) { 2 } else { 9 };

/// A lane, whoever has it.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) published: Published,
    pub(super) recent: Recent,
    pub(super) own: QuietLock<Own>,
}

/// What only the one who has the lane needs to know.
#[derive(Debug)]
pub(super) struct Own {
    /// Where the next entry goes.
    pub(super) head: u32,
    /// The LSN of each entry of the ring.
    pub(super) slots: Vec<u64>,
    /// Entries written since the last group that is known to be durable.
    pub(super) used: u32,
    /// Undo entries right before the head that no group follows yet.
    pub(super) open: u32,
    /// A group that was not fenced.
    pub(super) lazy: Option<Lazy>,
    /// Lines that are to be flushed before the next fence: those of entries, and those where the last group belongs.
    pub(super) pending: Vec<u64>,
    /// Lines where the group that is being committed belongs; none but while it is.
    pub(super) homes: Vec<u64>,
    pub(super) packer: Packer,
}

/// The group of a transaction that was committed lazily.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lazy {
    /// Entries of its transaction, and before it.
    pub(super) used: u32,
}

impl Lane {
    pub(super) fn new(entries: u32, retired: Lsn) -> Self {
        let own = Own {
            head: 0,
            slots: vec![0; entries as usize],
            used: 0,
            open: 0,
            lazy: None,
            pending: Vec::new(),
            homes: Vec::new(),
            packer: Packer::default(),
        };
        Self { published: Published::new(retired), recent: Recent::new(), own: QuietLock::new(own) }
    }
}

/// For each line, by hash, the highest LSN of an entry of one lane that aimed at it. Each lane has its own: a table of all would
/// be a cache line of another processor at every other commit.
///
/// Whoever asks about bytes is ordered behind those that wrote them, by locks of its own; but a line that shares their slot has other
/// locks, or none. Whoever finds that line's LSN here must find the clock not behind it: so these accesses release and acquire.
#[derive(Debug)]
pub(super) struct Recent {
    slots: Box<[AtomicU64]>,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { slots: (0..1 << SLOT_BITS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// An entry with this LSN, which is the lane's highest, aims at this line. Only whoever has the lane calls this.
    #[inline]
    pub(super) fn note(&self, line: u64, lsn: Lsn) {
        self.slots[slot(line)].store(lsn.bits(), Release);
    }

    /// No entry of this lane with a higher LSN aimed at these bytes since the log was opened.
    pub(super) fn last(&self, offset: u64, len: u64) -> Lsn {
        let mut last = 0;
        home::for_each_line([(offset, len)].into_iter(), |line| {
            last = last.max(self.slots[slot(line)].load(Acquire));
        });
        Lsn::new(last)
    }
}

const fn slot(line: u64) -> usize {
    ((line / LINE_BYTES).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SLOT_BITS)) as usize
}

/// The entries of a group, unless they are being written over.
pub(super) fn group_records<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    lane: u32,
    group: Group,
) -> Option<Vec<Record>> {
    let indexes = (0..group.count).map(|number| (group.first + number) % layout.lane_entries);
    let offsets = indexes.map(|index| layout.entry_offset(lane, index));
    let records = offsets.map(|offset| Record::of(&entry::read(pmem, offset), layout.seed, offset));
    records.map(|record| record.filter(|record| record.lsn == group.lsn)).collect()
}
