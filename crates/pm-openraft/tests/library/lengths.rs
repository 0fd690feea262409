//! The length of the log, by which programs purge it.

use crate::program::{Command, TestStorage, append, entry, id, killed, log_entries, new_store, run};
use openraft::storage::RaftLogStorage as _;

/// After random calls it is the same as that of the log which the next open finds.
#[test]
fn log_bytes_follow_the_log() {
    let mut random = fastrand::Rng::with_seed(3);
    let storage = TestStorage::open_without_writer(new_store(16 << 20)).unwrap();
    let mut log = storage.log();
    let (mut purged, mut next) = (None, 1);
    for _ in 0..300 {
        match random.u8(..6) {
            0 if next > purged.map_or(1, |purged| purged + 1) => {
                next = random.u64(purged.map_or(1, |purged| purged + 1)..next);
                run(&storage, log.truncate(id(1, next))).unwrap();
            }
            1 if next > 1 => {
                // Also beyond the log, as when a state is received.
                let last = random.u64(1..next + 3).max(purged.unwrap_or(1));
                run(&storage, log.purge(id(1, last))).unwrap();
                (purged, next) = (Some(last), next.max(last + 1));
            }
            _ => {
                let count = random.u64(1..5);
                let put = |index| entry(1, index, Command::Put(vec![1], vec![2; random.usize(..2000)]));
                let entries = (next..next + count).map(put).collect();
                run(&storage, append(&mut log, entries)).unwrap();
                next += count;
            }
        }
        let reopened = TestStorage::open_without_writer(killed(storage.store())).unwrap();
        assert_eq!(storage.log_bytes(), reopened.log_bytes());
        for len_bytes in [0, 1, 3000, 100_000] {
            let before = storage.log_before_newest(len_bytes);
            assert_eq!(before, reopened.log_before_newest(len_bytes));
            assert!(before.is_none_or(|before| before + 1 < next || len_bytes == 0));
        }
    }
    let entries = run(&storage, log_entries(&mut log));
    assert_eq!(storage.log_bytes() == 0, entries.is_empty());
}
