//! Crashes of each call of openraft: it has changed everything or nothing, and everything if it has returned.

use crate::program::{
    Bytes, Command, TestMachine, TestStorage, append, contents, entry, id, log_entries, new_store, options,
    run,
};
use openraft::storage::{RaftLogStorage as _, RaftStateMachine as _};
use openraft::{BasicNode, Entry, EntryPayload, Membership, SnapshotMeta, StoredMembership, Vote};
use pm_btree::{OpenError, Store};
use pm_crashsim::{Explorer, Model, Oracle, Sequences, SimPmem, Subject};
use pm_openraft::{Applied, SnapshotData, StorageError};
use pm_testkit::any;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const REGION_BYTES: u64 = 256 << 10;

/// A call, which depends on the state that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Appends so many entries.
    Append(u64),
    /// Saves a vote for a term.
    Vote(u64),
    /// Appends an entry, saves a vote and appends another entry, all before the first commit.
    Together(u64),
    /// Removes so many of the last entries.
    Truncate(u64),
    /// Removes the entries up to an index.
    Purge(u64),
    /// Applies so many of the next entries, of which those with odd indexes change the membership.
    Apply(u64),
    /// Installs a snapshot up to an index, with so many keys.
    Install(u64, u8),
    /// The same as openraft does it: it purges the log while its worker still installs.
    InstallAndPurge(u64, u8),
    /// Opens the storage again.
    Reopen,
}
use Op::{Append, Apply, Install, InstallAndPurge, Purge, Reopen, Together, Truncate, Vote as Elect};

/// Everything that openraft reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct State {
    vote: Option<u64>,
    purged: Option<u64>,
    /// The indexes in the log, with their terms.
    log: BTreeMap<u64, u64>,
    applied: Option<u64>,
    membership: Option<u64>,
    contents: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl State {
    fn next_index(&self) -> u64 {
        let last = self.log.last_key_value().map(|(index, _)| *index);
        last.max(self.purged).map_or(0, |last| last + 1)
    }

    fn next_applied(&self) -> u64 {
        self.applied.map_or(0, |last| last + 1)
    }

    fn apply(&mut self, index: u64) {
        self.applied = Some(index);
        if index % 2 == 1 {
            self.membership = Some(index);
            return;
        }
        for (key, value) in [(b"all".to_vec(), None), (key_of(index), Some(vec![7; 40]))] {
            match value {
                None => self.contents.entry(key).or_default().push(u8::try_from(index).unwrap()),
                Some(value) => drop(self.contents.insert(key, value)),
            }
        }
    }
}

/// The key of a command, one of three.
fn key_of(index: u64) -> Vec<u8> {
    format!("key {}", index / 2 % 3).into_bytes()
}

fn membership(index: u64) -> Membership<u64, BasicNode> {
    Membership::new(vec![BTreeSet::from([1, index])], None)
}

/// The entries with an index: an even one has two commands' worth of changes.
fn entries_at(index: u64) -> Entry<Bytes> {
    if index % 2 == 1 {
        return Entry { log_id: id(1, index), payload: EntryPayload::Membership(membership(index)) };
    }
    entry(1, index, Command::Both(b"all".to_vec(), u8::try_from(index).unwrap(), key_of(index), vec![7; 40]))
}

/// A log and a state with so many entries, of which so many are applied.
#[derive(Clone, Copy, Debug)]
struct Small {
    entries: u64,
    applied: u64,
}

struct Open {
    pmem: Arc<SimPmem>,
    storage: Option<TestStorage>,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Raft(Box<openraft::StorageError<u64>>),
    #[error("{0}")]
    Unsound(String),
}

impl From<openraft::StorageError<u64>> for Failure {
    fn from(error: openraft::StorageError<u64>) -> Self {
        Self::Raft(Box::new(error))
    }
}

fn snapshot_meta(index: u64) -> SnapshotMeta<u64, BasicNode> {
    SnapshotMeta {
        last_log_id: Some(id(1, index)),
        last_membership: StoredMembership::new(Some(id(1, index)), membership(index)),
        snapshot_id: "s".to_owned(),
    }
}

/// The keys of a snapshot.
fn snapshot_entries(count: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..count).map(|number| (format!("key {number}").into_bytes(), vec![number; 30])).collect()
}

fn apply(storage: &TestStorage, state: &State, op: Op) -> Result<(), Failure> {
    let (mut log, mut machine) = (storage.log(), storage.state_machine());
    let next = state.next_index();
    match op {
        Append(count) => run(storage, append(&mut log, (next..next + count).map(entries_at).collect()))?,
        Elect(term) => run(storage, log.save_vote(&Vote::new(term, 1)))?,
        Together(term) => {
            // Each future has joined the queue when it is polled first.
            let (mut first, mut second) = (storage.log(), storage.log());
            let vote = Vote::new(term, 1);
            run(storage, async {
                let (first, vote, second) = futures_join(
                    append(&mut first, vec![entries_at(next)]),
                    log.save_vote(&vote),
                    append(&mut second, vec![entries_at(next + 1)]),
                )
                .await;
                first.and(vote).and(second)
            })?;
        }
        Truncate(count) => run(storage, log.truncate(id(1, next - count)))?,
        Purge(index) => run(storage, log.purge(id(1, index)))?,
        Apply(count) => {
            let from = state.next_applied();
            run(storage, machine.apply((from..from + count).map(entries_at)))?;
        }
        Install(index, count) => {
            let data = receive(storage, &mut machine, count)?;
            run(storage, machine.install_snapshot(&snapshot_meta(index), data))?;
        }
        InstallAndPurge(index, count) => {
            let data = receive(storage, &mut machine, count)?;
            // The purge is asked for before the worker has begun.
            let mut purge = pin!(log.purge(id(1, index)));
            let early = purge.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            while storage.drain() {}
            run(storage, machine.install_snapshot(&snapshot_meta(index), data))?;
            match early {
                Poll::Ready(purged) => purged?,
                Poll::Pending => run(storage, purge)?,
            }
        }
        Reopen => unreachable!("needs the region"),
    }
    Ok(())
}

/// Receives a snapshot.
fn receive(
    storage: &TestStorage,
    machine: &mut TestMachine,
    count: u8,
) -> Result<Box<SnapshotData>, Failure> {
    let mut data = run(storage, machine.begin_receiving_snapshot())?;
    for part in snapshot_entries(count).chunks(3) {
        data.add(part)?;
    }
    Ok(data)
}

/// Polls three futures until all are ready.
async fn futures_join<A, B, C>(
    a: impl Future<Output = A>,
    b: impl Future<Output = B>,
    c: impl Future<Output = C>,
) -> (A, B, C) {
    let (mut a, mut b, mut c) = (std::pin::pin!(a), std::pin::pin!(b), std::pin::pin!(c));
    let (mut of_a, mut of_b, mut of_c) = (None, None, None);
    std::future::poll_fn(|context| {
        use std::task::Poll::{Pending, Ready};
        if of_a.is_none()
            && let Ready(result) = a.as_mut().poll(context)
        {
            of_a = Some(result);
        }
        if of_b.is_none()
            && let Ready(result) = b.as_mut().poll(context)
        {
            of_b = Some(result);
        }
        if of_c.is_none()
            && let Ready(result) = c.as_mut().poll(context)
        {
            of_c = Some(result);
        }
        match (of_a.take(), of_b.take(), of_c.take()) {
            (Some(a), Some(b), Some(c)) => Ready((a, b, c)),
            (a, b, c) => {
                (of_a, of_b, of_c) = (a, b, c);
                Pending
            }
        }
    })
    .await
}

fn observe(storage: &TestStorage) -> State {
    let mut log = storage.log();
    run(storage, async {
        let vote = log.read_vote().await.unwrap();
        let log_state = log.get_log_state().await.unwrap();
        let entries = log_entries(&mut log).await;
        let last = entries.last().map(|entry| entry.log_id).or(log_state.last_purged_log_id);
        assert_eq!(log_state.last_log_id, last);
        for entry in &entries {
            assert_eq!(*entry, entries_at(entry.log_id.index));
        }
        let Applied { log_id, membership } = storage.reader().applied();
        State {
            vote: vote.map(|vote| vote.leader_id().term),
            purged: log_state.last_purged_log_id.map(|id| id.index),
            log: entries.iter().map(|entry| (entry.log_id.index, entry.log_id.leader_id.term)).collect(),
            applied: log_id.map(|id| id.index),
            membership: membership.log_id().map(|id| id.index),
            contents: contents(storage),
        }
    })
}

impl Subject for Small {
    type Op = Op;
    type State = State;
    type Store = Open;
    type Error = Failure;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<Open, Failure> {
        let storage = TestStorage::open_without_writer(Store::format(any(Arc::clone(&pmem)), &options())?)?;
        apply(&storage, &observe(&storage), Append(self.entries))?;
        apply(&storage, &observe(&storage), Apply(self.applied))?;
        Ok(Open { pmem, storage: Some(storage) })
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Open, Failure> {
        let storage = TestStorage::open_without_writer(Store::attach(any(Arc::clone(&pmem)), &options())?)?;
        Ok(Open { pmem, storage: Some(storage) })
    }

    fn apply(&self, open: &mut Open, op: &Op) -> Result<(), Failure> {
        if *op == Reopen {
            open.storage = None;
            *open = self.open(Arc::clone(&open.pmem))?;
            return Ok(());
        }
        let storage = open.storage.as_ref().unwrap();
        apply(storage, &observe(storage), *op)
    }

    fn observe(&self, open: &Open) -> Result<State, Failure> {
        let storage = open.storage.as_ref().unwrap();
        let report = storage.store().check().unwrap();
        if !report.is_sound() {
            return Err(Failure::Unsound(format!("{report:?}")));
        }
        let spare = storage.store().tables().iter().filter(|table| table.name.starts_with("state ")).count();
        assert_eq!(spare, 2);
        let lens = ["state 0", "state 1"].map(|name| storage.store().table_len(name).unwrap().unwrap());
        let state = observe(storage);
        if lens.iter().sum::<u64>() != u64::try_from(state.contents.len()).unwrap() {
            return Err(Failure::Unsound(format!("tables with {lens:?} keys for {state:?}")));
        }
        Ok(state)
    }
}

impl Oracle for Small {
    fn initial(&self) -> State {
        let mut state = State::default();
        self.expect(&mut state, &Append(self.entries));
        self.expect(&mut state, &Apply(self.applied));
        state
    }

    fn expect(&self, state: &mut State, op: &Op) {
        let next = state.next_index();
        match *op {
            Append(count) => state.log.extend((next..next + count).map(|index| (index, 1))),
            Elect(term) => state.vote = Some(term),
            Together(term) => {
                self.expect(state, &Append(2));
                state.vote = Some(term);
            }
            Truncate(count) => drop(state.log.split_off(&(next - count))),
            Purge(index) => {
                state.purged = state.purged.max(Some(index));
                state.log = state.log.split_off(&(index + 1));
            }
            Apply(count) => {
                let from = state.next_applied();
                (from..from + count).for_each(|index| state.apply(index));
            }
            Install(index, count) | InstallAndPurge(index, count) => {
                self.expect(state, &Purge(index));
                state.applied = Some(index);
                state.membership = Some(index);
                state.contents = snapshot_entries(count).into_iter().collect();
            }
            Reopen => {}
        }
    }
}

fn choices() -> u64 {
    std::env::var("PM_CRASH_CHOICES").map_or(6, |count| count.parse().expect("a number"))
}

fn explore(subject: Small, explorer: Explorer, ops: &[Op]) {
    Sequences::new(subject, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0).check(ops);
}

const START: Small = Small { entries: 5, applied: 3 };

const CALLS: [Op; 11] = [
    Append(1),
    Append(4),
    Elect(3),
    Together(4),
    Truncate(2),
    Purge(2),
    Apply(2),
    Install(3, 4),
    Install(9, 8),
    InstallAndPurge(4, 3),
    InstallAndPurge(9, 4),
];

#[test]
fn calls_are_atomic() {
    for model in [Model::Px86Line, Model::Page, Model::Eadr] {
        for op in CALLS {
            let explorer =
                Explorer::new(model).crashes(1).choices_per_point(choices()).nested_choices_per_point(1);
            explore(START, explorer, &[op]);
        }
    }
}

/// The process is killed at each point, another one opens the store, and is crashed.
#[test]
fn calls_of_killed_processes_are_atomic() {
    for op in CALLS {
        let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(1);
        explore(START, explorer, &[op]);
    }
}

/// Calls that meet what others have left.
#[test]
fn calls_after_others_are_atomic() {
    let sequences: [&[Op]; 6] = [
        &[Truncate(2), Append(3), Apply(2)],
        &[Purge(2), Reopen, Append(1), Purge(4), Elect(2)],
        &[Install(9, 5), Append(2), Apply(2), Reopen, Install(13, 2)],
        &[Install(4, 7), Reopen, Append(1), Truncate(1), Append(2)],
        &[Elect(1), Elect(2), Together(3), Reopen, Elect(4)],
        &[Purge(20), Append(1), Install(30, 1), Append(1)],
    ];
    for ops in sequences {
        let explorer =
            Explorer::new(Model::Px86Line).crashes(1).choices_per_point(2).nested_choices_per_point(1);
        explore(START, explorer, ops);
    }
}

/// The simulator is not needed to see that a reception in progress is not the state.
#[test]
fn reception_in_progress_is_not_the_state() {
    let storage = TestStorage::open_without_writer(new_store(1 << 20)).unwrap();
    apply(&storage, &State::default(), Append(3)).unwrap();
    apply(&storage, &observe(&storage), Apply(3)).unwrap();
    let before = observe(&storage);
    let mut machine = storage.state_machine();
    let mut data = run(&storage, machine.begin_receiving_snapshot()).unwrap();
    data.add(&snapshot_entries(5)).unwrap();
    assert_eq!(observe(&storage), before);
    // A second reception ends the first one.
    let mut second = run(&storage, machine.begin_receiving_snapshot()).unwrap();
    assert!(matches!(data.add(&snapshot_entries(5)), Err(StorageError::Outdated)));
    assert!(run(&storage, machine.install_snapshot(&snapshot_meta(9), data)).is_err());
    assert_eq!(observe(&storage), before);
    second.add(&snapshot_entries(2)).unwrap();
    assert!(matches!(second.add(&snapshot_entries(2)), Err(StorageError::OutOfOrder)));
    run(&storage, machine.install_snapshot(&snapshot_meta(9), second)).unwrap();
    assert_eq!(observe(&storage).contents.len(), 2);
}
