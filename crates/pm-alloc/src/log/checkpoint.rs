//! LSNs and the checkpoint LSN: all groups at or below it are applied and durable, and no recovery replays them.
//!
//! # State
//! `C` is the last LSN that was allocated. `H` is the checkpoint LSN, the highest value that was computed. Each lane publishes:
//!
//! | symbol | field | meaning |
//! |---|---|---|
//! | `n` | `lsn_before` | an LSN below that of the commit in progress; 0 if no commit is in progress |
//! | `l1` | `last` | the LSN of the last group; 0 if there is none |
//! | `l2` | `second_last` | the LSN of the group before it; 0 if there is none |
//! | `l3` | `third_last` | the LSN of the group before both, or 0; after a deferred commit, the lowest of the old `l1`, `l2`, `l3` above `r` |
//! | `r` | `retired` | the LSN in the lane's header: the lane's groups up to it are applied and durable, and recovery skips them |
//!
//! Let `g` be the LSN of a lane's commit in progress, and `live = { l in {l1, l2, l3} : l > r }`.
//!
//! # Invariants
//! * I1: `0 < n < g`. `n` is stored before `g` is allocated, and cleared after `l1 = g` is stored.
//! * I2: `l2 < l1 <= C` and `l3 <= l1`, unless `l1 = 0`.
//! * I3: `r <= max(l1, H)`.
//! * I4: `H < g`, and `H < min(live)`. No thread raises `H` above `n` or above `min(live) - 1`.
//! * I5: `H <= C`, and `H` never decreases.
//! * I6: `H < L`, where `L` is the lowest LSN that recovery would replay if a crash occurred now.
//!
//! Debug builds assert I1 to I5. `checkpoint_equals_reference_model`, below, checks I1 to I5 after every step of all short runs;
//! `loom_checkpoint_is_below_replayed_groups` and `loom_lane_is_retired_during_commit` (`log/tests/loom_log.rs`) check I4 and I6 in every
//! schedule with a crash at its end; `protocol_keeps_its_properties` (`tests/model_log.rs`) checks I6 in a model of the whole protocol.
//!
//! # Why I4 implies I6
//! Recovery replays from the lowest LSN among the last two groups of each lane, not counting groups at or below `r`. It needs two groups, because the
//! last group may be durable before the fence of its commit completes, and then the stores of the group before it may not be durable. If one of these
//! groups is corrupted, the last two that recovery can read begin one group earlier. So I4 covers the last *three* groups: whichever is corrupted,
//! the last two readable groups are above `H`. Recovery need not distinguish a corrupted line from a line that was never written.
//!
//! # Why I4 holds
//! A commit takes these steps, in this order:
//!
//! 1. store `n = l1`, or `n = C` if `l1 = 0`;
//! 2. allocate `g`;
//! 3. make the group durable;
//! 4. store `l3 = l2`, then `l2 = l1`, then `l1 = g`: the group *ends*;
//! 5. store `n = 0`.
//!
//! A thread that computes `H` loads `C` first, then the number of lanes that were acquired, and then `n`, `l1`, `l2`, `l3` of each of them, in this
//! order. All stores have release ordering, and all loads acquire ordering. Only read-modify-write operations change `C`. So a thread that loads `C`
//! observes everything that happened before each LSN up to `C` was allocated: that its lane was acquired, step 1 of that commit, and the ends of all
//! earlier groups of its lane.
//!
//! The computed `H` is at most the loaded `C`, so it is below every group above `C`. It remains to show that it is also below every group at or below
//! `C` that recovery may need. Let `f` be a lane's last group at or below `C`. Recovery may need `f` and the two groups before it (fewer if the lane
//! has no more), except those at or below `r`. The thread loads the value of `n` that the commit of `f` stored, or a later one:
//!
//! * `n` is 0, or was stored by the commit of a later group. Then `f` has ended, and each of `l1`, `l2`, `l3` was stored by the end of `f` or of a
//!   later group. The end of a group stores `l3` first, and the thread loads it last. So if `l3` is from the end of `f`, all three are, and the
//!   lowest of them above `r` is the LSN that `H` must be below. If `l3` is from the end of a later group, recovery needs nothing below `l3`: that
//!   group and the two before it are durable, or, if its commit was deferred, `l3` is the lowest of the old `l1`, `l2`, `l3` above `r`.
//! * `n` was stored by the commit of `f`. Then `H <= n < f`. The group before `f` has ended, so by the same argument `H` is below that group and the
//!   two before it. Recovery needs nothing lower, whether or not `f` is durable.
//!
//! A lane with fewer than three groups has zeros in place of the missing ones. They are ignored, so the minimum is the lane's first group.
//!
//! A value of `H` stays valid, because later groups have higher LSNs. So the highest computed value is kept. A lane whose groups are all retired
//! does not bound `H`, and its next `n` may be below `H`. But its next group is above `C`, and `H` never exceeds `C`.

use crate::format::Lsn;
use crate::sync::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

/// `C`: the counter from which LSNs are allocated. It has cache lines of its own, because each commit writes it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct LsnCounter(AtomicU64);

impl LsnCounter {
    pub(super) fn starting_at(lsn: Lsn) -> Self {
        Self(AtomicU64::new(lsn.bits()))
    }

    /// Allocates the next LSN. `None` after the highest one.
    #[inline]
    pub(super) fn allocate(&self) -> Option<Lsn> {
        let last = self.0.fetch_add(1, AcqRel);
        (last < Lsn::MAX.bits()).then(|| Lsn::new(last + 1))
    }

    /// The last LSN that was allocated.
    #[inline]
    pub(super) fn latest(&self) -> Lsn {
        Lsn::new(self.0.load(Acquire).min(Lsn::MAX.bits()))
    }
}

/// The fields that a lane publishes to other threads, in cache lines of their own. The module's documentation defines the symbols.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Published {
    lsn_before: AtomicU64,
    last: AtomicU64,
    second_last: AtomicU64,
    third_last: AtomicU64,
    retired: AtomicU64,
    /// The last group's entries in the ring: the index of the first one in the high half, their count in the low half.
    entries: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) lsn: Lsn,
    /// The index of its first entry.
    pub(super) first: u32,
    pub(super) count: u32,
}

/// The reason why a lane bounds the checkpoint LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// A commit in progress, which ends soon.
    Commit,
    /// An idle lane whose last group is this one.
    IdleLane(Group),
}

impl Published {
    pub(super) fn new(retired: Lsn) -> Self {
        let [lsn_before, last, second_last, third_last, entries] = [0; 5].map(AtomicU64::new);
        Self { lsn_before, last, second_last, third_last, retired: AtomicU64::new(retired.bits()), entries }
    }

    /// Begins a commit: stores an LSN in `lsn_before`, and then allocates the LSN of the commit, which is higher. `None` when all LSNs are allocated.
    #[inline]
    pub(super) fn begin(&self, counter: &LsnCounter) -> Option<Lsn> {
        // The counter is loaded only for a lane's first group, because another processor often owns its cache line.
        let last = self.last.load(Acquire);
        let lsn_before = if last > 0 { last } else { counter.latest().bits() };
        self.lsn_before.store(lsn_before, Release);
        let lsn = counter.allocate();
        debug_assert!(
            lsn.is_none_or(|lsn| 0 < lsn_before && lsn_before < lsn.bits()),
            "I1: 0 < {lsn_before} < {lsn:?}"
        );
        if lsn.is_none() {
            self.lsn_before.store(0, Release);
        }
        lsn
    }

    /// The LSN of the last group, or zero.
    #[inline]
    pub(super) fn last(&self) -> Lsn {
        Lsn::new(self.last.load(Acquire))
    }

    /// Ends a commit: its group is durable and applied.
    #[inline]
    pub(super) fn end(&self, group: Group) {
        self.publish(group, self.second_last.load(Acquire));
    }

    /// Ends a commit whose group is empty and may not be durable yet. A crash may lose the group; then the three groups before it are the lane's
    /// last ones. So `l3` is set to the lowest of these that is not retired.
    pub(super) fn end_deferred(&self, group: Group) {
        self.publish(group, self.lowest_unretired().unwrap_or(group.lsn.bits()));
    }

    #[inline]
    fn publish(&self, group: Group, third_last: u64) {
        let last = self.last.load(Acquire);
        debug_assert!(last < group.lsn.bits(), "I2: {last} < {group:?}");
        debug_assert!(third_last <= group.lsn.bits(), "I2: {third_last} <= {group:?}");
        self.third_last.store(third_last, Release);
        self.second_last.store(last, Release);
        self.entries.store(u64::from(group.first) << 32 | u64::from(group.count), Release);
        self.last.store(group.lsn.bits(), Release);
        self.lsn_before.store(0, Release);
    }

    /// Records that the lane is retired up to `lsn`. The lane's header already has it durably.
    pub(super) fn retire(&self, lsn: Lsn) {
        debug_assert!(lsn <= self.last(), "I3: {lsn:?} <= {:?}", self.last());
        self.retired.fetch_max(lsn.bits(), AcqRel);
    }

    /// Whether a commit is in progress. Between commits of the owning thread this is true only if its last commit failed.
    #[inline]
    pub(super) fn is_committing(&self) -> bool {
        self.lsn_before.load(Acquire) != 0
    }

    /// I4: no thread raises the checkpoint LSN above this. `None` if this lane does not bound it.
    fn bound(&self) -> Option<u64> {
        let lsn_before = Some(self.lsn_before.load(Acquire)).filter(|&lsn_before| lsn_before != 0);
        let lowest = self.lowest_unretired().map(|lowest| lowest - 1);
        lsn_before.into_iter().chain(lowest).min()
    }

    /// The lowest LSN among those of the last three groups that are not retired.
    fn lowest_unretired(&self) -> Option<u64> {
        let last = self.last.load(Acquire);
        let second_last = self.second_last.load(Acquire);
        let third_last = self.third_last.load(Acquire);
        let retired = self.retired.load(Acquire);
        [third_last, second_last, last].into_iter().filter(|&lsn| lsn > retired).min()
    }

    /// The last group, if it is not retired. If a commit ends during this call, the returned fields may belong to different groups. So the caller
    /// compares them with the ring, or calls this again.
    pub(super) fn unretired_last_group(&self) -> Option<Group> {
        let last = self.last.load(Acquire);
        if last <= self.retired.load(Acquire) {
            return None;
        }
        let entries = self.entries.load(Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "the high half and the low half")]
        let (first, count) = ((entries >> 32) as u32, entries as u32);
        Some(Group { lsn: Lsn::new(last), first, count })
    }

    /// Returns the reason why this lane bounds the checkpoint LSN below `to`, or `None` if it does not.
    pub(super) fn blocker(&self, to: Lsn) -> Option<Blocker> {
        if self.bound()? >= to.bits() {
            return None;
        }
        match self.unretired_last_group() {
            Some(group) if !self.is_committing() => Some(Blocker::IdleLane(group)),
            _ => Some(Blocker::Commit),
        }
    }
}

/// `H`: the highest checkpoint LSN that was computed. It has cache lines of its own, because it is rarely written.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Checkpoint(AtomicU64);

impl Checkpoint {
    pub(super) fn starting_at(lsn: Lsn) -> Self {
        Self(AtomicU64::new(lsn.bits()))
    }

    #[inline]
    pub(super) fn last_computed(&self) -> Lsn {
        Lsn::new(self.0.load(Acquire))
    }

    /// Computes the checkpoint LSN from all lanes, which `lanes` finds after the counter was loaded, and raises the last computed one to it.
    pub(super) fn compute<'a, L: Iterator<Item = &'a Published>>(
        &self,
        counter: &LsnCounter,
        lanes: impl FnOnce() -> L,
    ) -> Lsn {
        let latest = counter.latest().bits();
        let least = lanes().filter_map(Published::bound).fold(latest, u64::min);
        let known = least.max(self.0.fetch_max(least, AcqRel));
        debug_assert!(cfg!(loom) || Lsn::new(known) <= counter.latest(), "I5: {known} <= {counter:?}");
        Lsn::new(known)
    }

    /// In debug builds, asserts I4 for a lane of the calling thread. `lsn` is that of the lane's commit in progress, or of its last group.
    #[inline]
    pub(super) fn assert_below(&self, lane: &Published, lsn: Lsn) {
        if !cfg!(debug_assertions) || cfg!(loom) {
            return;
        }
        // Loaded before the lane's fields: if another thread retires the lane in between, the checkpoint LSN may rise above these fields. As soon as
        // a commit has ended, another thread may also have retired its group.
        let known = self.last_computed();
        let of_commit = Some(lsn.bits()).filter(|&lsn| lsn > lane.retired.load(Acquire));
        let lowest = lane.lowest_unretired().into_iter().chain(of_commit).min();
        assert!(
            lowest.is_none_or(|lowest| known.bits() < lowest),
            "I4: {known:?} < {lowest:?}, {lsn:?}, {lane:?}"
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LANES: usize = 2;
    const STEP_KINDS: usize = 4;
    /// Not zero, because zero in `lsn_before` means that no commit is in progress.
    const FLOOR: Lsn = Lsn::new(1);

    /// The groups of one lane, and whether the commit of each was deferred.
    #[derive(Default)]
    struct Reference {
        groups: Vec<(Lsn, bool)>,
        /// The commit in progress: `lsn_before`, and its LSN.
        in_progress: Option<(Lsn, Lsn)>,
        retired: Lsn,
    }

    impl Reference {
        /// I4, from the whole history of the lane.
        fn bound(&self) -> Option<Lsn> {
            let deferred = self.groups.iter().rev().take_while(|group| group.1).count();
            let needed = self.groups.iter().rev().take(3 + deferred).map(|group| group.0);
            let lowest = needed.filter(|&lsn| lsn > self.retired).min().map(Lsn::before);
            self.in_progress.map(|(lsn_before, _)| lsn_before).into_iter().chain(lowest).min()
        }
    }

    /// Another thread may retire a lane, and raise the checkpoint LSN, between the end of a commit and the assertion of I4.
    #[test]
    fn retired_group_does_not_bound_checkpoint() {
        let (counter, checkpoint) = (LsnCounter::starting_at(FLOOR), Checkpoint::starting_at(FLOOR));
        let lane = Published::new(Lsn::ZERO);
        let lsn = lane.begin(&counter).unwrap();
        lane.end(Group { lsn, first: 0, count: 1 });
        lane.retire(lsn);
        assert_eq!(checkpoint.compute(&counter, || [&lane].into_iter()), lsn);
        checkpoint.assert_below(&lane, lsn);
    }

    /// Takes one step. A step that is impossible in the current state changes nothing.
    fn step(counter: &LsnCounter, lane: &Published, reference: &mut Reference, step: usize) {
        match (step, reference.in_progress) {
            (0, None) => {
                let lsn_before = reference.groups.last().map_or(counter.latest(), |group| group.0);
                let lsn = lane.begin(counter).expect("there are LSNs left");
                assert!(lsn_before < lsn, "I1");
                reference.in_progress = Some((lsn_before, lsn));
            }
            (1 | 2, Some((_, lsn))) => {
                let group = Group { lsn, first: 0, count: 1 };
                if step == 1 {
                    lane.end(group)
                } else {
                    lane.end_deferred(group)
                }
                reference.groups.push((lsn, step == 2));
                reference.in_progress = None;
                assert_eq!(lane.last(), lsn, "I2");
            }
            (3, None) => {
                if let Some(group) = lane.unretired_last_group() {
                    lane.retire(group.lsn);
                    reference.retired = group.lsn;
                }
                assert!(reference.retired <= lane.last(), "I3");
            }
            _ => {}
        }
    }

    /// Checks I1 to I5 after every step of every sequence of six steps in two lanes: the checkpoint LSN is the highest that the history allows.
    #[test]
    fn checkpoint_equals_reference_model() {
        const LENGTH: u32 = 6;
        let kinds = LANES * STEP_KINDS;
        for sequence in 0..kinds.pow(LENGTH) {
            let counter = LsnCounter::starting_at(FLOOR);
            let checkpoint = Checkpoint::starting_at(FLOOR);
            let lanes: [Published; LANES] = core::array::from_fn(|_| Published::new(Lsn::ZERO));
            let mut references: [Reference; LANES] = core::array::from_fn(|_| Reference::default());
            let mut known = FLOOR;
            let mut rest = sequence;
            for _ in 0..LENGTH {
                let (lane, kind) = (rest % LANES, rest / LANES % STEP_KINDS);
                rest /= kinds;
                step(&counter, &lanes[lane], &mut references[lane], kind);
                let bounds = references.iter().filter_map(Reference::bound);
                let expected = bounds.fold(counter.latest(), Lsn::min).max(known);
                let found = checkpoint.compute(&counter, || lanes.iter());
                assert_eq!(found, expected, "I4, sequence {sequence}");
                assert!(known <= found && found <= counter.latest(), "I5, sequence {sequence}");
                known = found;
            }
        }
    }
}
