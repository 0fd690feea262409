//! The protocol of the log as a small model, checked exhaustively: commits in lanes, retiring, the checkpoint LSN, crashes and recovery.
//!
//! The model follows `docs/adr/0007-one-fence-per-transaction.md` and `docs/adr/0010-a-corrupted-log-line.md`, not the code: it checks that
//! the protocol is right, and the crash tests check that the code implements it. A line of the medium is modelled as the list of its
//! versions since the last fence that covers it. A power failure leaves any one version in each line, and may corrupt one entry. A kill
//! leaves the last version of each line. Both may happen again during recovery.
//!
//! Each rule of the protocol can be removed ([`Rule`]). The checker then finds a counterexample.
//!
//! Not modelled: undo entries, deferred commits, generations, and the order of loads within one lane, which `src/log/tests/loom_log.rs` checks.

#![cfg(not(loom))]

use stateright::{Checker, HasDiscoveries, Model, Property};

const SURVIVES: &str = "an acknowledged value survives";
const ATOMIC: &str = "a group is atomic";
const CHECKPOINT: &str = "the checkpoint LSN is below all groups that recovery replays";

const LANES: usize = 2;
/// Lines of user data.
const CELLS: usize = 2;
/// Above the LSN of every group. It is the floor after recovery, and the bound if no lane has a live group.
const MAX_LSN: Lsn = Lsn::MAX;

type Lsn = u8;

/// Contents of a cell: the group with LSN `n` writes `2 * n`, and a word stored over it in place is `2 * n + 1`. A later value is higher.
type Value = u8;

/// A rule of the protocol that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A commit notes an LSN below its own in the lane before it allocates its own.
    NoteBeforeAllocate,
    /// The checkpoint LSN is computed from the latest LSN and the lanes. The latest LSN is loaded first.
    LatestBeforeLanes,
    /// A group is fenced before it is applied.
    FenceBeforeApply,
    /// A group is applied before its LSN is published.
    ApplyBeforePublish,
    /// A commit flushes the words that the lane's previous commit applied.
    FlushPrevious,
    /// An entry is overwritten only when the checkpoint LSN has reached it.
    OverwriteDead,
    /// The applied words of a group are fenced before the retired LSN is stored in the lane's header.
    FenceBeforeRetire,
    /// A lane counts as retired only when its header is durable.
    RetireDurably,
    /// The checkpoint LSN stays below the last three groups of each lane.
    ThreeGroupsLive,
    /// A word is stored in place only when the checkpoint LSN has reached each entry that targets it.
    StoreOverDead,
    /// Recovery replays at least the last two groups of each lane.
    ReplayTwoGroups,
    /// Recovery ignores a group if one of its entries is missing.
    WholeGroups,
    /// Recovery makes the log durable before it replays it.
    FenceBeforeReplay,
    /// Recovery makes the replayed words durable before it raises the floor.
    FenceBeforeFloor,
}

/// The versions of a line, of which a power failure leaves any one. The first is the durable version, the last the visible version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Line<T>(Vec<T>);

impl<T: Copy + PartialEq> Line<T> {
    fn visible(&self) -> T {
        self.0[self.0.len() - 1]
    }

    fn durable(&self) -> T {
        self.0[0]
    }

    fn store(&mut self, value: T) {
        self.0.push(value);
    }

    /// A fence after a flush of the line. At that flush `flushed` was the visible version.
    fn fence(&mut self, flushed: T) {
        if let Some(at) = self.0.iter().rposition(|version| *version == flushed) {
            self.0.drain(..at);
        }
    }
}

/// A line of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Slot {
    Erased,
    /// The entry is being written: its LSN is announced.
    Begun(Lsn),
    Entry {
        lsn: Lsn,
        cell: usize,
        count: usize,
    },
    Corrupted,
}

impl Slot {
    fn lsn(self) -> Lsn {
        match self {
            Self::Begun(lsn) | Self::Entry { lsn, .. } => lsn,
            Self::Erased | Self::Corrupted => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Medium {
    rings: [Vec<Line<Slot>>; LANES],
    cells: [Line<Value>; CELLS],
    /// The LSN in each lane's header.
    retired: [Line<Lsn>; LANES],
    floor: Line<Lsn>,
}

/// A group that recovery finds.
struct Group {
    lsn: Lsn,
    cells: Vec<usize>,
}

impl Medium {
    fn new(entries: usize) -> Self {
        Self {
            rings: [(); LANES].map(|()| vec![Line(vec![Slot::Erased]); entries]),
            cells: [(); CELLS].map(|()| Line(vec![0])),
            retired: [(); LANES].map(|()| Line(vec![0])),
            floor: Line(vec![0]),
        }
    }

    /// The groups of a lane that recovery reads, in the order of their LSNs.
    fn groups(&self, lane: usize, without: Option<Rule>) -> Vec<Group> {
        let floor = self.floor.visible();
        let mut groups: Vec<(Group, usize)> = Vec::new();
        for slot in &self.rings[lane] {
            let Slot::Entry { lsn, cell, count } = slot.visible() else { continue };
            match groups.iter_mut().find(|(group, _)| group.lsn == lsn) {
                Some((group, _)) => group.cells.push(cell),
                None if lsn > floor => groups.push((Group { lsn, cells: vec![cell] }, count)),
                None => {}
            }
        }
        let is_whole = |(group, count): &(Group, usize)| group.cells.len() == *count;
        groups.retain(|group| is_whole(group) || without == Some(Rule::WholeGroups));
        groups.sort_by_key(|(group, _)| group.lsn);
        groups.into_iter().map(|(group, _)| group).collect()
    }

    /// The lowest LSN that recovery replays.
    fn replay_from(&self, without: Option<Rule>) -> Option<Lsn> {
        let replayed = if without == Some(Rule::ReplayTwoGroups) { 1 } else { 2 };
        let lowest = |lane: usize| {
            let groups = self.groups(lane, without);
            let mut last = groups[groups.len().saturating_sub(replayed)..].iter().map(|group| group.lsn);
            last.find(|&lsn| lsn > self.retired[lane].visible())
        };
        (0..LANES).filter_map(lowest).min()
    }

    /// The cells that replayed groups target, each with the last value that these groups store there.
    fn replayed(&mut self, without: Option<Rule>) -> impl Iterator<Item = (&mut Line<Value>, Value)> {
        let lowest = self.replay_from(without);
        let groups = (0..LANES).flat_map(|lane| self.groups(lane, without));
        let mut last = [0; CELLS];
        for group in groups.filter(|group| lowest.is_some_and(|lowest| group.lsn >= lowest)) {
            group.cells.iter().for_each(|&cell| last[cell] = last[cell].max(2 * group.lsn));
        }
        self.cells.iter_mut().zip(last).filter(|(_, value)| *value > 0)
    }

    /// The number of versions of each line, in a fixed order of lines.
    fn version_counts(&self) -> Vec<usize> {
        let slots = self.rings.iter().flatten().map(|line| line.0.len());
        let words = self.cells.iter().chain(&self.retired).chain([&self.floor]).map(|line| line.0.len());
        slots.chain(words).collect()
    }

    /// Leaves the chosen version of each line.
    fn crash(&mut self, chosen: &[usize]) {
        let mut chosen = chosen.iter();
        let mut next = || chosen.next().copied().unwrap_or_default();
        for line in self.rings.iter_mut().flatten() {
            line.0 = vec![line.0[next()]];
        }
        for line in self.cells.iter_mut().chain(&mut self.retired).chain([&mut self.floor]) {
            line.0 = vec![line.0[next()]];
        }
    }

    fn fence_log(&mut self) {
        self.rings.iter_mut().flatten().for_each(|line| line.fence(line.visible()));
        self.retired.iter_mut().for_each(|line| line.fence(line.visible()));
    }
}

/// The steps of a commit, each atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// An LSN below the commit's own is noted in the lane.
    Note,
    /// An LSN is allocated.
    Allocate,
    /// The entries are written and flushed, and so are the applied words of the previous group.
    Append,
    Fence,
    Apply,
    /// The LSN is published, and the note is cleared.
    Publish,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Commit {
    cells: Vec<usize>,
    lsn: Lsn,
    /// The number of steps that are done.
    done: usize,
    /// The slots of the entries.
    slots: Vec<usize>,
    /// The cells of the lane's previous group, with their flushed values.
    flushed: Vec<(usize, Value)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Lane {
    head: usize,
    noted: Option<Lsn>,
    /// The LSNs of the last three groups, the last one first.
    last: [Lsn; 3],
    /// The retired LSN that other threads use.
    retired: Lsn,
    /// The cells of the last group. The next commit flushes them.
    applied: Vec<usize>,
    commit: Option<Commit>,
}

/// A thread that retires a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Retiring {
    Flushed { lane: usize, lsn: Lsn, cells: Vec<(usize, Value)> },
    Stored { lane: usize, lsn: Lsn },
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    /// The last LSN that was allocated.
    latest: Lsn,
    checkpoint: Lsn,
    lanes: [Lane; LANES],
    /// The highest LSN of the entries that target each cell.
    targeted: [Lsn; CELLS],
    /// The first half of a computation of the checkpoint LSN: the value that a thread has loaded.
    computing: Option<Lsn>,
    retiring: Option<Retiring>,
    /// The cell with a word that was stored in place and flushed, but not fenced.
    word: Option<usize>,
}

impl Process {
    /// Whether a transaction or a store in progress writes to the cell. Programs exclude such writes to one cell by locks.
    fn is_locked(&self, cell: usize) -> bool {
        let commits = || self.lanes.iter().filter_map(|lane| lane.commit.as_ref());
        self.word == Some(cell) || commits().any(|commit| commit.cells.contains(&cell))
    }

    /// The highest LSN after all commits that have begun have allocated theirs.
    fn final_lsn(&self) -> Lsn {
        let pending =
            self.lanes.iter().filter_map(|lane| lane.commit.as_ref()).filter(|commit| commit.lsn == 0);
        self.latest + pending.fold(0, |count, _| count + 1)
    }

    /// The lanes' bound of the checkpoint LSN: one less than the lowest LSN that recovery may need.
    fn bound(&self, without: Option<Rule>) -> Lsn {
        let live = if without == Some(Rule::ThreeGroupsLive) { 2 } else { 3 };
        let bound = |lane: &Lane| {
            let groups = lane.last[..live].iter().filter(|lsn| **lsn > lane.retired).map(|lsn| lsn - 1);
            groups.chain(lane.noted).min()
        };
        self.lanes.iter().filter_map(bound).min().unwrap_or(MAX_LSN)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Running(Box<Process>),
    /// Recovery runs; this number of its steps is done.
    Recovering(u8),
    Recovered,
}

/// Facts that the properties need and the log does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct History {
    /// The last two values of each cell whose commits or stores in place have returned, the last one first.
    acknowledged: [[Value; 2]; CELLS],
    /// The LSNs of groups with two cells.
    pairs: Vec<Lsn>,
    /// The LSN of the group with a corrupted entry.
    corrupted: Lsn,
    /// The checkpoint LSN of the process when it stopped.
    checkpoint: Lsn,
    /// Power failures and kills so far.
    crashes: u8,
}

impl History {
    fn acknowledge(&mut self, cell: usize, value: Value) {
        self.acknowledged[cell] = [value, self.acknowledged[cell][0]];
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    medium: Medium,
    phase: Phase,
    history: History,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    /// Begins a transaction that writes to these cells.
    Begin {
        lane: usize,
        cells: &'static [usize],
    },
    /// The next step of the lane's commit.
    Commit {
        lane: usize,
    },
    /// One of the two steps of computing the checkpoint LSN.
    Compute,
    Retire {
        lane: usize,
    },
    /// The next step of retiring.
    ContinueRetiring,
    StoreWord {
        cell: usize,
    },
    FenceWord,
    /// The power fails. Each line keeps the version with this index, and one entry may be corrupted.
    Crash {
        versions: Vec<usize>,
        corrupted: Option<(usize, usize)>,
    },
    Kill,
    /// The next step of recovery.
    Recover,
}

/// The model: its bounds, and the rule that is removed.
#[derive(Clone, Copy, Debug)]
struct Log {
    /// The number of entries of a ring. A group has one or two entries.
    entries: usize,
    last_lsn: Lsn,
    /// The cells that each possible transaction of a lane writes to.
    groups: [&'static [&'static [usize]]; LANES],
    /// Whether words are also stored in place.
    words: bool,
    /// The number of power failures and kills, including those during recovery.
    crashes: u8,
    /// Whether the first crash may corrupt an entry, if it is a power failure.
    corruption: bool,
    without: Option<Rule>,
}

impl Log {
    fn lacks(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    fn steps(&self) -> [Step; 6] {
        use Step::{Allocate, Append, Apply, Fence, Note, Publish};
        match self.without {
            Some(Rule::NoteBeforeAllocate) => [Allocate, Note, Append, Fence, Apply, Publish],
            Some(Rule::FenceBeforeApply) => [Note, Allocate, Append, Apply, Fence, Publish],
            Some(Rule::ApplyBeforePublish) => [Note, Allocate, Append, Fence, Publish, Apply],
            _ => [Note, Allocate, Append, Fence, Apply, Publish],
        }
    }

    fn running_actions(&self, state: &State, process: &Process, actions: &mut Vec<Action>) {
        for (index, lane) in process.lanes.iter().enumerate() {
            if process.retiring.is_none() && lane.last[0] > lane.retired && lane.noted.is_none() {
                actions.push(Action::Retire { lane: index });
            }
            if lane.commit.is_some() {
                actions.push(Action::Commit { lane: index });
                continue;
            }
            for &cells in self.groups[index] {
                let last = state.medium.rings[index][(lane.head + cells.len()) % self.entries].visible();
                let has_room = last.lsn() <= process.checkpoint || self.lacks(Rule::OverwriteDead);
                let is_free = cells.iter().all(|&cell| !process.is_locked(cell));
                if has_room && is_free && process.final_lsn() < self.last_lsn {
                    actions.push(Action::Begin { lane: index, cells });
                }
            }
        }
        actions.push(Action::Compute);
        if process.retiring.is_some() {
            actions.push(Action::ContinueRetiring);
        }
        for cell in
            (0..CELLS).filter(|&cell| self.words && !process.is_locked(cell) && process.word.is_none())
        {
            let is_dead = process.targeted[cell] <= process.checkpoint || self.lacks(Rule::StoreOverDead);
            let value = state.medium.cells[cell].visible();
            if is_dead && value > 0 && value.is_multiple_of(2) {
                actions.push(Action::StoreWord { cell });
            }
        }
        if process.word.is_some() {
            actions.push(Action::FenceWord);
        }
    }

    fn commit(&self, state: &mut State, index: usize) {
        let State { medium, phase: Phase::Running(process), history } = state else { return };
        let lane = &mut process.lanes[index];
        let Some(mut commit) = lane.commit.take() else { return };
        let step = self.steps()[commit.done];
        commit.done += 1;
        match step {
            Step::Note => lane.noted = Some(if lane.last[0] > 0 { lane.last[0] } else { process.latest }),
            Step::Allocate => {
                process.latest += 1;
                commit.lsn = process.latest;
            }
            Step::Append => {
                let (lsn, count) = (commit.lsn, commit.cells.len());
                for &cell in &commit.cells {
                    let line = &mut medium.rings[index][lane.head];
                    line.store(Slot::Begun(lsn));
                    line.store(Slot::Entry { lsn, cell, count });
                    commit.slots.push(lane.head);
                    lane.head = (lane.head + 1) % self.entries;
                    process.targeted[cell] = lsn;
                }
                if !self.lacks(Rule::FlushPrevious) {
                    commit.flushed =
                        lane.applied.iter().map(|&cell| (cell, medium.cells[cell].visible())).collect();
                }
                if count == 2 {
                    history.pairs.push(lsn);
                }
            }
            Step::Fence => {
                for &slot in &commit.slots {
                    let line = &mut medium.rings[index][slot];
                    line.fence(line.visible());
                }
                commit.flushed.drain(..).for_each(|(cell, value)| medium.cells[cell].fence(value));
            }
            Step::Apply => {
                commit.cells.iter().for_each(|&cell| medium.cells[cell].store(2 * commit.lsn));
                lane.applied.clone_from(&commit.cells);
            }
            Step::Publish => {
                lane.last = [commit.lsn, lane.last[0], lane.last[1]];
                lane.noted = None;
            }
        }
        if commit.done < self.steps().len() {
            lane.commit = Some(commit);
        } else {
            commit.cells.iter().for_each(|&cell| history.acknowledge(cell, 2 * commit.lsn));
        }
    }

    fn compute(&self, process: &mut Process) {
        let (latest, bound) = (process.latest, process.bound(self.without));
        let [first, second] =
            if self.lacks(Rule::LatestBeforeLanes) { [bound, latest] } else { [latest, bound] };
        match process.computing.take() {
            None => process.computing = Some(first),
            Some(first) => process.checkpoint = process.checkpoint.max(first.min(second)),
        }
    }

    fn continue_retiring(&self, medium: &mut Medium, process: &mut Process) {
        match process.retiring.take() {
            Some(Retiring::Flushed { lane, lsn, cells }) => {
                if !self.lacks(Rule::FenceBeforeRetire) {
                    cells.into_iter().for_each(|(cell, value)| medium.cells[cell].fence(value));
                }
                medium.retired[lane].store(lsn);
                if self.lacks(Rule::RetireDurably) {
                    process.lanes[lane].retired = lsn;
                }
                process.retiring = Some(Retiring::Stored { lane, lsn });
            }
            Some(Retiring::Stored { lane, lsn }) => {
                medium.retired[lane].fence(lsn);
                process.lanes[lane].retired = lsn;
            }
            None => {}
        }
    }

    fn recover(&self, state: &mut State) {
        let Phase::Recovering(done) = state.phase else { return };
        let medium = &mut state.medium;
        state.phase = Phase::Recovering(done + 1);
        match done {
            0 if self.lacks(Rule::FenceBeforeReplay) => {}
            0 => medium.fence_log(),
            1 => medium.replayed(self.without).for_each(|(cell, value)| cell.store(value)),
            2 => {
                if !self.lacks(Rule::FenceBeforeFloor) {
                    medium.replayed(self.without).for_each(|(cell, value)| cell.fence(value));
                }
                medium.floor.store(MAX_LSN);
            }
            _ => {
                medium.floor.fence(MAX_LSN);
                state.phase = Phase::Recovered;
            }
        }
    }

    fn stop(&self, state: &mut State) {
        if let Phase::Running(process) = &state.phase {
            state.history.checkpoint = process.checkpoint;
        }
        state.phase = Phase::Recovering(0);
        state.history.crashes += 1;
    }
}

impl Model for Log {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let phase = Phase::Running(Box::default());
        vec![State { medium: Medium::new(self.entries), phase, history: History::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        match &state.phase {
            Phase::Running(process) => self.running_actions(state, process, actions),
            Phase::Recovering(_) => actions.push(Action::Recover),
            Phase::Recovered => return,
        }
        if state.history.crashes == self.crashes {
            return;
        }
        actions.push(Action::Kill);
        let mut corrupted = vec![None];
        if self.corruption && state.history.crashes == 0 {
            let slots = (0..LANES).flat_map(|lane| (0..self.entries).map(move |slot| (lane, slot)));
            let is_entry = |version: &Slot| matches!(version, Slot::Entry { .. });
            let has_entry =
                |&(lane, slot): &(usize, usize)| state.medium.rings[lane][slot].0.iter().any(is_entry);
            corrupted.extend(slots.filter(has_entry).map(Some));
        }
        let counts = state.medium.version_counts();
        let mut versions = vec![0; counts.len()];
        loop {
            let crash = |&corrupted| Action::Crash { versions: versions.clone(), corrupted };
            actions.extend(corrupted.iter().map(crash));
            let Some(at) = (0..counts.len()).find(|&at| versions[at] + 1 < counts[at]) else { break };
            versions[at] += 1;
            versions[..at].fill(0);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match (&mut state.phase, action) {
            (Phase::Running(process), Action::Begin { lane, cells }) => {
                process.lanes[lane].commit = Some(Commit { cells: cells.to_vec(), ..Commit::default() });
                self.commit(&mut state, lane);
            }
            (_, Action::Commit { lane }) => self.commit(&mut state, lane),
            (Phase::Running(process), Action::Compute) => self.compute(process),
            (Phase::Running(process), Action::Retire { lane }) => {
                let group = &process.lanes[lane];
                let lsn = group.last[0];
                let cells =
                    state.medium.groups(lane, self.without).into_iter().find(|group| group.lsn == lsn)?.cells;
                let cells =
                    cells.into_iter().map(|cell| (cell, state.medium.cells[cell].visible())).collect();
                process.retiring = Some(Retiring::Flushed { lane, lsn, cells });
            }
            (Phase::Running(process), Action::ContinueRetiring) => {
                self.continue_retiring(&mut state.medium, process)
            }
            (Phase::Running(process), Action::StoreWord { cell }) => {
                let line = &mut state.medium.cells[cell];
                line.store(line.visible() + 1);
                process.word = Some(cell);
            }
            (Phase::Running(process), Action::FenceWord) => {
                let cell = process.word.take()?;
                let line = &mut state.medium.cells[cell];
                line.fence(line.visible());
                state.history.acknowledge(cell, line.visible());
            }
            (_, Action::Recover) => self.recover(&mut state),
            (_, Action::Kill) => self.stop(&mut state),
            (_, Action::Crash { versions, corrupted }) => {
                state.medium.crash(&versions);
                if let Some((lane, slot)) = corrupted {
                    let line = &mut state.medium.rings[lane][slot];
                    let Slot::Entry { lsn, .. } = line.visible() else { return None };
                    state.history.corrupted = lsn;
                    *line = Line(vec![Slot::Corrupted]);
                }
                self.stop(&mut state);
            }
            _ => return None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(SURVIVES, |_, state: &State| {
                let History { acknowledged, corrupted, .. } = &state.history;
                state.phase != Phase::Recovered
                    || acknowledged.iter().zip(&state.medium.cells).all(|([last, before], cell)| {
                        let is_lost = *corrupted > 0 && *last == 2 * corrupted;
                        cell.durable() >= if is_lost { *before } else { *last }
                    })
            }),
            Property::always(ATOMIC, |_, state: &State| {
                let [first, second] = &state.medium.cells;
                let has = |lsn: Lsn| [first.durable() >= 2 * lsn, second.durable() >= 2 * lsn];
                let pairs = state.history.pairs.iter().filter(|lsn| **lsn != state.history.corrupted);
                state.phase != Phase::Recovered
                    || pairs.copied().map(has).all(|[first, second]| first == second)
            }),
            Property::always(CHECKPOINT, |log: &Self, state: &State| {
                let lowest = || state.medium.replay_from(log.without);
                !matches!(state.phase, Phase::Recovering(_))
                    || lowest().is_none_or(|lowest| lowest > state.history.checkpoint)
            }),
        ]
    }
}

/// Transactions in both lanes, some of them with two entries, words, and two crashes.
const GENERAL: Log = Log {
    entries: 4,
    last_lsn: 3,
    groups: [&[&[0], &[0, 1]], &[&[0], &[1]]],
    words: true,
    crashes: 2,
    corruption: true,
    without: None,
};

/// Short rings and more commits, so that one lane can wrap around its ring while the other lane is idle.
const WRAP_AROUND: Log = Log {
    entries: 3,
    last_lsn: 5,
    groups: [&[&[0]], &[&[0], &[1]]],
    words: false,
    crashes: 1,
    corruption: false,
    without: None,
};

#[test]
fn protocol_keeps_its_properties() {
    for log in [GENERAL, WRAP_AROUND] {
        let checker = log.checker().spawn_bfs().join();
        checker.assert_properties();
    }
}

/// The rule, the model in which it is needed, and the property that does not hold without it.
const NEEDED: [(Rule, Log, &str); 14] = [
    (Rule::NoteBeforeAllocate, GENERAL, CHECKPOINT),
    (Rule::LatestBeforeLanes, GENERAL, CHECKPOINT),
    (Rule::FenceBeforeApply, GENERAL, ATOMIC),
    (Rule::ApplyBeforePublish, GENERAL, SURVIVES),
    (Rule::FlushPrevious, GENERAL, SURVIVES),
    (Rule::OverwriteDead, WRAP_AROUND, SURVIVES),
    (Rule::FenceBeforeRetire, GENERAL, SURVIVES),
    (Rule::RetireDurably, GENERAL, CHECKPOINT),
    (Rule::ThreeGroupsLive, GENERAL, CHECKPOINT),
    (Rule::StoreOverDead, GENERAL, SURVIVES),
    (Rule::ReplayTwoGroups, GENERAL, SURVIVES),
    (Rule::WholeGroups, GENERAL, ATOMIC),
    (Rule::FenceBeforeReplay, GENERAL, ATOMIC),
    (Rule::FenceBeforeFloor, GENERAL, SURVIVES),
];

#[test]
fn every_rule_is_needed() {
    for (rule, log, property) in NEEDED {
        let violated = HasDiscoveries::AnyOf([property].into());
        let checker = Log { without: Some(rule), ..log }.checker().finish_when(violated).spawn_bfs().join();
        assert!(checker.discovery(property).is_some(), "{property:?} is violated without {rule:?}");
    }
}
