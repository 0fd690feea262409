//! Tests by kills and crashes.

use pm_alloc::HeapOptions;
use pm_btree::{Store, StoreOptions};
use pm_core::{Pmem, PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Model, Run, SimPmem};
use pm_testkit::any;
use std::sync::Arc;

fn options() -> StoreOptions {
    let heap = HeapOptions::new()
        .seed(7)
        .pool(PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0))
        .lanes(1);
    StoreOptions::new().heap(heap).node_slots(4).extent_bytes(4096).sweep_at_open(0)
}

/// Flips a bit of the word in the anchor of table 1.
fn corrupt_anchor(pmem: &SimPmem) {
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    let magic = [b'P', b'M', b'B', b'N', 255, 0, 1, 0];
    let anchor = (0..bytes.len()).step_by(64).find(|line| bytes[*line..].starts_with(&magic)).unwrap();
    let word = anchor as u64 + 64;
    pmem.store_u64(word, pmem.load_u64(word) ^ 1 << 20);
}

/// A leaf is split, and the process is killed; a bit of the anchor flips; the next process pops the last entry; the power fails.
fn check(is_flipped: bool) {
    let sim = Arc::new(SimPmem::new(96 << 10));
    let store = Store::format(any(Arc::clone(&sim)), &options()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    [3, 5, 7].iter().for_each(|key| assert!(table.insert(*key, *key).unwrap()));
    drop(table);
    store.close().unwrap();
    let split = |run: &Run<u64>| {
        let store = Store::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
        store.table::<u64, u64>("t").unwrap().insert(4, 4).unwrap();
        std::mem::forget(store);
    };
    let pop = |run: &Run<u64>| {
        if is_flipped {
            corrupt_anchor(run.pmem());
        }
        let store = Store::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
        let (key, _) = store.table::<u64, u64>("t").unwrap().pop_last().unwrap().unwrap();
        run.ack(key.value());
        std::mem::forget(store);
    };
    let check = |crash: &Crash<u64>| {
        let store =
            Store::attach(any(Arc::clone(crash.pmem())), &options()).map_err(|error| error.to_string())?;
        let table = store.table::<u64, u64>("t").map_err(|error| error.to_string())?;
        let scanned: Vec<u64> = table.range(..).map(|entry| entry.unwrap().0.value()).collect();
        let got: Vec<u64> = (0..10).filter(|key| table.get(*key).unwrap().is_some()).collect();
        if scanned != got {
            return Err(format!("a scan finds {scanned:?}, and searches find {got:?}"));
        }
        match crash.acked().iter().find(|popped| scanned.contains(popped)) {
            Some(popped) => Err(format!("{popped} was popped, and is in {scanned:?}")),
            None => Ok(()),
        }
    };
    let explorer = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(64);
    explorer.check_restarted(&sim.to_image(), split, pop, check);
}

// What must not happen: a corrupted anchor or hint node "never gives a wrong answer". After a kill, a new index is made from links between leaves that are visible, but not
// durable yet, and its hint nodes become durable first: after a power failure they lead to a leaf that is not linked, beside the one that was split.
#[test]
fn pop_after_kill_and_flip_is_durable() {
    check(true);
}
