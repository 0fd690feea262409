//! Snapshots are of one moment, while commands change the state.

use crate::program::{Bytes, Command, TestStorage, contents, entry, new_store, run};
use openraft::storage::RaftStateMachine as _;
use openraft::{Entry, RaftSnapshotBuilder as _, Snapshot};
use pm_openraft::StorageError;
use std::collections::BTreeMap;

const LEN_BYTES: u64 = 64 << 20;

/// A key: ordered like the number.
fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn apply(storage: &TestStorage, entries: Vec<Entry<Bytes>>) {
    run(storage, storage.state_machine().apply(entries)).unwrap();
}

fn view(storage: &TestStorage) -> Snapshot<Bytes> {
    run(storage, async { storage.state_machine().get_snapshot_builder().await.build_snapshot().await })
        .unwrap()
}

/// A random change of a key.
fn change(random: &mut fastrand::Rng, index: u64) -> Entry<Bytes> {
    let key = key(random.u32(..3000));
    let command = match random.u32(..4) {
        0 => Command::Remove(key),
        1 => Command::Push(key, random.u8(..)),
        _ => Command::Put(key, vec![random.u8(..); random.usize(..600)]),
    };
    entry(1, index, command)
}

/// Reads views while batches change the state: each is the state at its moment, whatever is between its reads.
#[test]
fn view_is_of_one_moment() {
    let mut random = fastrand::Rng::with_seed(5);
    let storage = TestStorage::open_without_writer(new_store(LEN_BYTES)).unwrap();
    let mut index = 0;
    let mut batch = |random: &mut fastrand::Rng, storage: &TestStorage, count: u64| {
        let entries = (0..count).map(|_| {
            index += 1;
            change(random, index)
        });
        apply(storage, entries.collect());
    };
    batch(&mut random, &storage, 6000);
    for round in 0..10_u64 {
        let expected = contents(&storage);
        let mut snapshot = view(&storage);
        assert_eq!(snapshot.meta.last_log_id, storage.reader().applied().log_id);
        let (mut found, mut parts) = (BTreeMap::new(), 0);
        loop {
            batch(&mut random, &storage, 400 * (round % 3));
            let entries = snapshot.snapshot.next_entries().unwrap();
            if entries.is_empty() {
                break;
            }
            parts += 1;
            let last = found.last_key_value().map(|(key, _): (&Vec<u8>, &Vec<u8>)| key.clone());
            assert!(last.is_none_or(|last| entries[0].0 > last));
            assert!(entries.is_sorted());
            found.extend(entries);
        }
        assert!(parts > 1, "a part has {} entries", found.len());
        assert!(found == expected, "{} entries are not the {} of the moment", found.len(), expected.len());
        assert!(snapshot.snapshot.next_entries().unwrap().is_empty());
    }
}

/// A view whose state is replaced cannot be read to its end.
#[test]
fn view_of_a_replaced_state_is_outdated() {
    let [source, target] = [(); 2].map(|()| TestStorage::open_without_writer(new_store(LEN_BYTES)).unwrap());
    apply(
        &source,
        (0..2000).map(|number| entry(1, number.into(), Command::Put(key(number), vec![1; 500]))).collect(),
    );
    apply(
        &target,
        (0..2000).map(|number| entry(1, number.into(), Command::Put(key(number), vec![2; 500]))).collect(),
    );
    let mut old = view(&target).snapshot;
    assert!(!old.next_entries().unwrap().is_empty());
    let Snapshot { meta, snapshot } = view(&source);
    run(&target, target.state_machine().install_snapshot(&meta, snapshot)).unwrap();
    assert!(matches!(old.next_entries(), Err(StorageError::Outdated)));
    assert!(contents(&target) == contents(&source));
    assert_eq!(target.reader().applied(), source.reader().applied());
}

/// A part of a view is short, so that it fits into a message, whatever was removed meanwhile.
#[test]
fn parts_of_a_view_are_short_after_removals() {
    let storage = TestStorage::open_without_writer(new_store(LEN_BYTES)).unwrap();
    let mut index = 0;
    let mut next = |command| {
        index += 1;
        entry(1, index, command)
    };
    for first in (0..2000).step_by(100) {
        apply(&storage, (first..first + 100).map(|n| next(Command::Put(key(n), vec![1; 10_000]))).collect());
    }
    let mut snapshot = view(&storage);
    // 20 MB: less than the 64 MiB from which the view is outdated.
    for first in (0..2000).step_by(100) {
        apply(&storage, (first..first + 100).map(|n| next(Command::Remove(key(n)))).collect());
    }
    let mut count = 0;
    loop {
        let entries = snapshot.snapshot.next_entries().unwrap();
        if entries.is_empty() {
            break;
        }
        let len_bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(len_bytes < 512 << 10, "a part has {len_bytes} bytes");
        for (found, value) in entries {
            assert_eq!((found, value), (key(count), vec![1; 10_000]));
            count += 1;
        }
    }
    assert_eq!(count, 2000);
}

/// A reception that ends without an installation leaves nothing, and one that another has replaced does not empty the tables of that one.
#[test]
fn abandoned_reception_leaves_nothing() {
    let storage = TestStorage::open_without_writer(new_store(LEN_BYTES)).unwrap();
    apply(
        &storage,
        (0..10).map(|number| entry(1, number.into(), Command::Put(key(number), vec![1]))).collect(),
    );
    let received = || {
        let lens = ["state 0", "state 1"].map(|name| storage.store().table_len(name).unwrap().unwrap());
        assert!(lens.contains(&10), "{lens:?}");
        lens[0] + lens[1] - 10
    };
    let entries: Vec<_> = (0..1000).map(|number| (key(number), vec![2; 1000])).collect();
    let begin = || run(&storage, async { storage.state_machine().begin_receiving_snapshot().await }).unwrap();
    let mut data = begin();
    data.add(&entries).unwrap();
    assert!(data.is_present());
    assert_eq!(received(), 1000);
    drop(data);
    assert_eq!(received(), 0);

    let replaced = begin();
    let mut data = begin();
    assert!(!replaced.is_present() && data.is_present());
    data.add(&entries).unwrap();
    drop(replaced);
    assert_eq!(received(), 1000);
    let Snapshot { meta, .. } = view(&storage);
    run(&storage, storage.state_machine().install_snapshot(&meta, data)).unwrap();
    assert_eq!(contents(&storage).len(), 1000);
}
