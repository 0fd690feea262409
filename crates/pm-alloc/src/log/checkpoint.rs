//! LSNs, and the checkpoint LSN: the LSN up to which everything is in place and durable, and no recovery stores anything again.
//!
//! # Why what is computed here is never too high
//! Recovery takes the least, over all lanes, of the LSNs of each lane's last two groups, if they are above the LSN in the lane's
//! header; and of that one less. Two, because the last group may be durable before its fence was, and then what the group before
//! flushed, which the same fence would have made durable, may not. It finds two that are older if a group of the lane is corrupted. So
//! the checkpoint LSN is kept below the last *three* groups of each lane: those which recovery replays are among them, though one be
//! corrupted. No corrupted line has to be told from one that was not written yet.
//!
//! A lane that commits does, in this order: notes its last LSN, or, if it has none, what the clock says; draws an LSN from the
//! clock; makes the group durable; stores the LSNs of the two groups before as its last but two and last but one, and its own as its
//! last; clears the note. A thread that computes the checkpoint LSN loads, in this order: the clock; and from each lane the note, the last LSN,
//! the last but one, the last but two. Stores release and loads acquire, and no more is needed: the clock changes by draws alone, each of
//! which reads and writes it at once. So a thread that loads an LSN from it sees what was done before that LSN was drawn, and before
//! any lower one: the notes, and the ends of the groups before.
//!
//! Groups above what the clock said are above the checkpoint LSN. Of a lane's others let `g` be the last, and the needed one the group two before
//! `g`, or the lane's first. Its note is seen, or what was stored there later.
//!
//! * No note is seen, or that of a later group: then `g` has ended, and each of the three LSNs is seen as `g`'s end stored it, or
//!   a later end. If all are as `g`'s end stored them, their least is the needed one. Each is stored before those that are loaded
//!   before it; so if the last but two is seen as the end of a later group stored it, then that group is durable, and so are two
//!   before it: recovery needs none below what was seen, for ever. Otherwise the last but two is the needed one itself.
//! * The note of `g` is seen, which is below `g` and bounds the checkpoint LSN. The group before `g` has ended, and the three LSNs are seen as
//!   its end stored them, or a later one: as above, their least is not above what recovery needs, be `g` durable or not.
//! * A lane with fewer groups than three has zeroes there, which do not count: the least of the others is its first group.
//!
//! What was once a checkpoint LSN stays one: later groups have higher LSNs. So the highest that was ever computed is kept.

use crate::format::Lsn;
use crate::sync::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

/// The counter from which LSNs are drawn: it holds the last one. In a line of its own, as each commit writes it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Clock(AtomicU64);

impl Clock {
    pub(super) fn starting_at(lsn: Lsn) -> Self {
        Self(AtomicU64::new(lsn.bits()))
    }

    /// An LSN above all before, unless there is none left.
    #[inline]
    pub(super) fn draw(&self) -> Option<Lsn> {
        let last = self.0.fetch_add(1, AcqRel);
        (last < Lsn::MAX.bits()).then(|| Lsn::new(last + 1))
    }

    /// The last LSN drawn.
    #[inline]
    pub(super) fn now(&self) -> Lsn {
        Lsn::new(self.0.load(Acquire).min(Lsn::MAX.bits()))
    }
}

/// What a lane lets others know, in words of its own line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Published {
    /// An LSN below that of the commit under way; zero when none is under way.
    noted: AtomicU64,
    /// The LSN of the last group.
    last: AtomicU64,
    /// The LSN of the last but one.
    before: AtomicU64,
    /// The LSN of the last but two. Lower while the last may not be durable.
    before_both: AtomicU64,
    /// The LSN in the lane's header: up to here everything is in place and durable, and recovery knows it.
    retired: AtomicU64,
    /// Where the last group lies: the number of its first entry in the upper half, how many it has in the lower.
    place: AtomicU64,
}

/// A group in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) lsn: Lsn,
    pub(super) first: u32,
    pub(super) count: u32,
}

/// What keeps the checkpoint LSN from rising.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// A commit, which will be over soon.
    UnderWay,
    /// A lane that rests behind this group.
    Resting(Group),
}

impl Published {
    pub(super) fn new(retired: Lsn) -> Self {
        let [noted, last, before, before_both, place] = [0; 5].map(AtomicU64::new);
        Self { noted, last, before, before_both, retired: AtomicU64::new(retired.bits()), place }
    }

    /// Begins a commit. Its LSN is above the checkpoint LSN until the lane commits again, or is retired.
    #[inline]
    pub(super) fn begin(&self, clock: &Clock) -> Option<Lsn> {
        // The last one, and not what the clock says: that line is another processor's as often as not, and drawing takes it once.
        let last = self.last.load(Acquire);
        self.noted.store(if last > 0 { last } else { clock.now().bits() }, Release);
        let lsn = clock.draw();
        if lsn.is_none() {
            self.noted.store(0, Release);
        }
        lsn
    }

    /// The LSN of the last group, or zero.
    #[inline]
    pub(super) fn last(&self) -> Lsn {
        Lsn::new(self.last.load(Acquire))
    }

    /// Ends a commit: its group is durable, and in place.
    #[inline]
    pub(super) fn end(&self, group: Group) {
        self.before_both.store(self.before.load(Acquire), Release);
        self.publish(group);
    }

    /// Ends a commit whose group is empty and may not be durable. Without it the three groups before are the last ones, so the
    /// lowest of those remains what it was.
    pub(super) fn end_lazy(&self, group: Group) {
        let lowest = self.lowest_live().unwrap_or(group.lsn.bits());
        self.before_both.store(lowest, Release);
        self.publish(group);
    }

    /// Releasing is enough here: what is seen of it is seen in this order.
    #[inline]
    fn publish(&self, group: Group) {
        self.before.store(self.last.load(Acquire), Release);
        self.place.store(u64::from(group.first) << 32 | u64::from(group.count), Release);
        self.last.store(group.lsn.bits(), Release);
        self.noted.store(0, Release);
    }

    /// The lane's header says this durably: everything up to `lsn` is in place and durable.
    pub(super) fn retire(&self, lsn: Lsn) {
        self.retired.fetch_max(lsn.bits(), AcqRel);
    }

    /// Whether a commit began that has not ended. To the lane's owner: that it failed.
    #[inline]
    pub(super) fn is_under_way(&self) -> bool {
        self.noted.load(Acquire) != 0
    }

    /// The checkpoint LSN is not above this. `None`: whatever it is, not because of this lane.
    fn bound(&self) -> Option<u64> {
        let noted = Some(self.noted.load(Acquire)).filter(|&noted| noted != 0);
        let lowest = self.lowest_live().map(|lowest| lowest - 1);
        noted.into_iter().chain(lowest).min()
    }

    /// The lowest of the last three groups that are not retired.
    fn lowest_live(&self) -> Option<u64> {
        let last = self.last.load(Acquire);
        let before = self.before.load(Acquire);
        let before_both = self.before_both.load(Acquire);
        let retired = self.retired.load(Acquire);
        [before_both, before, last].into_iter().filter(|&lsn| lsn > retired).min()
    }

    /// The last group's LSN, if the lane is live: if that group may be missing in place.
    fn live(&self) -> Option<u64> {
        let last = self.last.load(Acquire);
        (last > self.retired.load(Acquire)).then_some(last)
    }

    /// The last group, if the lane is live. What it says is torn if a commit ends meanwhile: the ring tells, or the lane's owner asks.
    pub(super) fn live_group(&self) -> Option<Group> {
        let lsn = Lsn::new(self.live()?);
        let place = self.place.load(Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "one half and the other")]
        let (first, count) = ((place >> 32) as u32, place as u32);
        Some(Group { lsn, first, count })
    }

    /// What in this lane keeps the checkpoint LSN below `to`.
    pub(super) fn hindrance(&self, to: Lsn) -> Option<Hindrance> {
        if self.bound()? >= to.bits() {
            return None;
        }
        match self.live_group() {
            Some(group) if !self.is_under_way() => Some(Hindrance::Resting(group)),
            _ => Some(Hindrance::UnderWay),
        }
    }
}

/// The highest checkpoint LSN that was ever computed. In a line of its own, which is written now and then.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Checkpoint(AtomicU64);

impl Checkpoint {
    pub(super) fn starting_at(lsn: Lsn) -> Self {
        Self(AtomicU64::new(lsn.bits()))
    }

    #[inline]
    pub(super) fn known(&self) -> Lsn {
        Lsn::new(self.0.load(Acquire))
    }

    /// Computes it anew.
    pub(super) fn compute<'a>(&self, clock: &Clock, lanes: impl Iterator<Item = &'a Published>) -> Lsn {
        let now = clock.now().bits();
        let least = lanes.filter_map(Published::bound).fold(now, u64::min);
        Lsn::new(least.max(self.0.fetch_max(least, AcqRel)))
    }
}
