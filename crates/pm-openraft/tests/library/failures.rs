//! A store that is full, fences that fail, and a writer that ends: what was acknowledged stays, and nothing waits for ever.

use crate::program::{
    Bytes, Command, TestLog, TestStorage, append, contents, entry, id, killed, log_entries, new_store, run,
};
use openraft::storage::{RaftLogStorage as _, RaftStateMachine as _};
use openraft::{Entry, Vote};
use pm_btree::{Store, StoreOptions};
use pm_core::{FenceError, Pmem, Region};
use pm_testkit::{AnyPmem, Hook, Hooked};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const LEN_BYTES: u64 = 2 << 20;

fn put(index: u64, len_bytes: usize) -> Entry<Bytes> {
    entry(1, index, Command::Put(index.to_be_bytes().to_vec(), vec![1; len_bytes]))
}

/// Appends entries of these lengths until one fails. Returns their number.
fn fill(storage: &TestStorage, log: &mut TestLog, from: u64, len_bytes: usize) -> u64 {
    let fits = |index: &u64| run(storage, append(log, vec![put(*index, len_bytes)])).is_ok();
    (from..).take_while(fits).count() as u64
}

/// A log that is full has ended: nothing more is written, so that it has no hole. The next open has what was acknowledged, and a purge makes room.
#[test]
fn full_log_has_what_was_acknowledged_and_a_purge_makes_room() {
    let storage = TestStorage::open_without_writer(new_store(LEN_BYTES)).unwrap();
    let mut log = storage.log();
    let count = fill(&storage, &mut log, 0, 8000);
    assert!((100..260).contains(&count), "{count} entries");
    assert!(run(&storage, append(&mut log, vec![put(count + 1, 1)])).is_err());
    assert!(run(&storage, log.purge(id(1, count / 2))).is_err());

    let reopened = TestStorage::open_without_writer(killed(storage.store())).unwrap();
    let mut log = reopened.log();
    let entries = run(&reopened, log_entries(&mut log));
    assert_eq!(entries, (0..count).map(|index| put(index, 8000)).collect::<Vec<_>>());
    // A vote is short, and the removal of entries needs no room.
    run(&reopened, log.save_vote(&Vote::new_committed(7, 1))).unwrap();
    run(&reopened, log.purge(id(1, count / 2))).unwrap();
    let more = fill(&reopened, &mut log, count, 8000);
    assert!(more > count / 4, "{more} entries after {count}, of which a half was purged");

    let reopened = TestStorage::open_without_writer(killed(reopened.store())).unwrap();
    let state = run(&reopened, reopened.log().get_log_state()).unwrap();
    let expected = (Some(id(1, count / 2)), Some(id(1, count + more - 1)));
    assert_eq!((state.last_purged_log_id, state.last_log_id), expected);
    assert_eq!(run(&reopened, reopened.log().read_vote()).unwrap(), Some(Vote::new_committed(7, 1)));
}

/// An apply that does not fit fails whole: the state is that of the entry before, and says so.
#[test]
fn full_state_is_that_of_the_last_entry_that_was_applied() {
    let storage = TestStorage::open_without_writer(new_store(LEN_BYTES)).unwrap();
    let mut machine = storage.state_machine();
    let batch = |index: u64| vec![put(2 * index, 6000), put(2 * index + 1, 6000)];
    let applied =
        (0..).take_while(|index| run(&storage, machine.apply(batch(*index))).is_ok()).count() as u64;
    assert!(applied > 50, "{applied} batches");
    for storage in [&storage, &TestStorage::open_without_writer(killed(storage.store())).unwrap()] {
        assert_eq!(storage.reader().applied().log_id, Some(id(1, 2 * applied - 1)));
        assert_eq!(contents(storage).len() as u64, 2 * applied);
    }
}

/// Fails, or panics, at the fence with this number from now on.
#[derive(Debug, Default)]
struct Failing {
    fences: AtomicU64,
    fails_at: AtomicU64,
    panics_at: AtomicU64,
}

impl Hook<Region> for Failing {
    fn fence(&self, region: &Region) -> Result<(), FenceError> {
        let number = self.fences.fetch_add(1, Ordering::Relaxed) + 1;
        assert_ne!(number, self.panics_at.load(Ordering::Relaxed), "as the test wants");
        match self.fails_at.load(Ordering::Relaxed) {
            at if at != 0 && number >= at => Err(FenceError::Poisoned),
            _ => region.fence(),
        }
    }
}

fn failing() -> (Arc<Failing>, Store<AnyPmem<'static>>) {
    let hook = Arc::new(Failing::default());
    let region = Hooked::new(Region::anonymous(LEN_BYTES).unwrap(), Arc::clone(&hook));
    let options = StoreOptions::new().extent_bytes(4096);
    (hook, Store::format(AnyPmem::other(region), &options).unwrap())
}

/// Whichever fence fails, all later writes are errors, and what was acknowledged is there after a kill.
#[test]
fn failed_fence_ends_all_writes() {
    for fails_in in 1..12 {
        let (hook, store) = failing();
        let storage = TestStorage::open_without_writer(store).unwrap();
        let mut log = storage.log();
        run(&storage, append(&mut log, vec![put(0, 100)])).unwrap();
        hook.fails_at.store(hook.fences.load(Ordering::Relaxed) + fails_in, Ordering::Relaxed);
        let acknowledged = fill(&storage, &mut log, 1, 100);
        assert!(acknowledged < fails_in, "an entry takes a fence");
        assert!(run(&storage, append(&mut log, vec![put(acknowledged + 2, 100)])).is_err());
        assert!(run(&storage, log.save_vote(&Vote::new(9, 1))).is_err());
        assert!(run(&storage, storage.state_machine().apply(vec![put(0, 100)])).is_err());
        assert!(run(&storage, log.purge(id(1, 0))).is_err());
        let reopened = TestStorage::open_without_writer(killed(storage.store())).unwrap();
        let entries = run(&reopened, log_entries(&mut reopened.log()));
        let expected: Vec<_> = (0..=acknowledged).map(|index| put(index, 100)).collect();
        // The entry whose fence has failed may be there, too.
        assert_eq!(entries[..expected.len()], expected);
        assert!(entries.len() <= expected.len() + 1);
    }
}

/// A write that waits when the writer's thread panics is an error, and so are those after it.
#[test]
fn writer_that_panics_fails_what_waits() {
    let (hook, store) = failing();
    let storage = TestStorage::open_with_writer(store).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut log = storage.log();
    runtime.block_on(append(&mut log, vec![put(0, 100)])).unwrap();
    hook.panics_at.store(hook.fences.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    let failed = runtime.block_on(append(&mut log, vec![put(1, 100)])).unwrap_err();
    assert!(failed.to_string().contains("has ended") || failed.to_string().contains("closed"), "{failed}");
    assert!(runtime.block_on(append(&mut log, vec![put(1, 100)])).is_err());
    assert!(runtime.block_on(log.save_vote(&Vote::new(9, 1))).is_err());
    assert!(runtime.block_on(log.purge(id(1, 0))).is_err());
    drop(log);
    // The panic is passed on.
    let dropped = thread::spawn(move || panic::catch_unwind(AssertUnwindSafe(|| drop(storage))).is_err());
    assert!(dropped.join().unwrap());
}

/// After a panic of a thread that commits its own write, all writes are errors.
#[test]
fn direct_commit_that_panics_ends_all_writes() {
    let (hook, store) = failing();
    let storage = TestStorage::open(store).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut log = storage.log();
    runtime.block_on(append(&mut log, vec![put(0, 100)])).unwrap();
    hook.panics_at.store(hook.fences.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    let panics = || runtime.block_on(append(&mut log, vec![put(1, 100)])).map_err(drop);
    assert!(panic::catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert!(runtime.block_on(append(&mut log, vec![put(2, 100)])).is_err());
    assert!(runtime.block_on(log.save_vote(&Vote::new(9, 1))).is_err());
    assert!(runtime.block_on(log.purge(id(1, 0))).is_err());
}
