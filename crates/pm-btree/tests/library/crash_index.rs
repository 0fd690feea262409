//! Crashes after words of hint nodes were changed by one thread, and leaves are unlinked by another one: its fences do not cover the words. A word
//! that comes back must not name a leaf whose space is used again, because a crash may leave the new leaf durable and not linked.

use pm_alloc::{HeapOptions, SpaceError, TxError};
use pm_btree::{Store, StoreOptions, Table, WriteError};
use pm_core::{Pmem, PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Model, Run, SimPmem};
use pm_testkit::{AnyPmem, any};
use std::sync::Arc;

const REGION_BYTES: u64 = 96 << 10;
/// An extent has room for all nodes of these tests.
const EXTENT_BYTES: u64 = 8192;

type SimStore = Store<AnyPmem<'static>>;
type SimTable = Table<u64, u64, AnyPmem<'static>>;

/// Leaves have up to three entries, and inner nodes up to six children. An open visits no leaf.
fn options() -> StoreOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let heap = HeapOptions::new().seed(7).pool(pool).lanes(1);
    StoreOptions::new().heap(heap).node_slots(4).extent_bytes(EXTENT_BYTES).sweep_at_open(0).empty_leaves(1)
}

fn attach(pmem: &Arc<SimPmem>) -> SimStore {
    Store::attach(any(Arc::clone(pmem)), &options()).unwrap()
}

fn table(store: &SimStore) -> SimTable {
    store.table("t").unwrap()
}

/// Makes changes in a thread of its own. What it has flushed without a fence, no later fence covers.
fn in_thread(change: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(change).join().unwrap());
}

/// A closed store whose table has the odd keys below `end`, inserted in ascending order. It has one extent of nodes, and no room for another one: so the
/// space of an unlinked leaf is used soon.
fn image(end: u64) -> SimPmem {
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    let store = Store::format(any(Arc::clone(&sim)), &options()).unwrap();
    insert(&store, (1..end).step_by(2));
    drop(store.table::<u64, u64>("other").unwrap());
    let filler = store.table::<u64, &[u8]>("filler").unwrap();
    let mut key = 0;
    for len in [32_000, 16_000, 8_000, 4_000, 2_000] {
        while is_inserted(&filler.insert(key, &vec![1; len])) {
            key += 1;
        }
    }
    drop(filler);
    store.close().unwrap();
    Arc::into_inner(sim).unwrap()
}

fn is_inserted(result: &Result<bool, WriteError>) -> bool {
    match result {
        Ok(_) => true,
        Err(WriteError::Full) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Uses all nodes that are free, for another table.
fn use_free_nodes(store: &SimStore) {
    let other = store.table::<u64, u64>("other").unwrap();
    let mut keys = 0..1000;
    while is_inserted(&other.insert(keys.next().unwrap(), 0)) {}
}

/// Visits all leaves. Until then the space of extents from before the open is not used, and no leaf is unlinked.
fn sweep(store: &SimStore) {
    assert!(store.table_len("t").unwrap().is_some());
}

fn insert(store: &SimStore, keys: impl IntoIterator<Item = u64>) {
    let table = table(store);
    keys.into_iter().for_each(|key| assert!(table.insert(key, key).unwrap()));
}

fn remove(store: &SimStore, keys: impl IntoIterator<Item = u64>) {
    let table = table(store);
    keys.into_iter().for_each(|key| assert!(table.remove(key).unwrap()));
}

/// Searches find the entries of a scan, and each can be removed. In ascending order: a search that finds a corrupted hint node makes a new index.
fn check(crash: &Crash<u64>) -> Result<(), String> {
    let store = attach(crash.pmem());
    let table = table(&store);
    let scan = || table.range(..).map(|entry| entry.unwrap().0.value()).collect::<Vec<u64>>();
    let scanned = scan();
    if let Some(key) = scanned.iter().find(|key| !table.remove(**key).unwrap()) {
        return Err(format!("a scan finds {scanned:?}, and a removal does not find {key}"));
    }
    let found: Vec<u64> = (0..80).filter(|key| table.get(*key).unwrap().is_some()).collect();
    match (scan(), found) {
        (scanned, found) if scanned.is_empty() && found.is_empty() => Ok(()),
        (scanned, found) => {
            Err(format!("of removed entries a scan finds {scanned:?}, and searches find {found:?}"))
        }
    }
}

fn explorer() -> Explorer {
    Explorer::new(Model::Px86Line).crashes(1).choices_per_point(16).nested_choices_per_point(1)
}

/// A hint node is split, and its words of moved children are replaced by those of other leaves, the last one without a fence. The leaf that it named is
/// unlinked, in the same session or in the next one, and a split uses its space.
fn check_replaced(is_closed: bool) {
    let operation = |run: &Run<u64>| {
        let mut store = attach(run.pmem());
        in_thread(|| {
            sweep(&store);
            insert(&store, [37, 2, 8, 14]);
        });
        in_thread(|| use_free_nodes(&store));
        if is_closed {
            in_thread(|| store.close().unwrap());
            store = attach(run.pmem());
        }
        in_thread(|| {
            sweep(&store);
            // An empty leaf stays if its left sibling is more than half full.
            remove(&store, [29, 31, 33, 35]);
            insert(&store, [4, 6]);
        });
        std::mem::forget(store);
    };
    println!("{}", explorer().check(&image(36).to_image(), operation, check));
}

#[test]
fn replaced_words_are_durable_when_a_leaf_is_unlinked() {
    check_replaced(false);
}

#[test]
fn replaced_words_are_durable_when_a_close_returns() {
    check_replaced(true);
}

/// A hint node is split, and the store closed. The next open zeroes the words of moved children.
#[test]
fn words_are_durably_zero_when_an_inner_node_is_built() {
    let operation = |run: &Run<u64>| {
        let store = attach(run.pmem());
        in_thread(|| sweep(&store));
        in_thread(|| use_free_nodes(&store));
        in_thread(|| {
            remove(&store, [29, 31, 33, 35]);
            insert(&store, [2]);
        });
        std::mem::forget(store);
    };
    println!("{}", explorer().check(&image(38).to_image(), operation, check));
}

/// So many hint nodes are split that the words of moved children are zeroed before a leaf is to be unlinked.
#[test]
fn words_are_durably_zero_after_many_splits() {
    for last in [55, 59, 61] {
        let operation = |run: &Run<u64>| {
            let store = attach(run.pmem());
            in_thread(|| {
                sweep(&store);
                insert(&store, (37..=last).step_by(2));
            });
            in_thread(|| use_free_nodes(&store));
            in_thread(|| {
                remove(&store, [29, 31, 33, 35]);
                insert(&store, [2]);
            });
            std::mem::forget(store);
        };
        println!("{}", explorer().check(&image(36).to_image(), operation, check));
    }
}

/// A hint node is split. The first of the moved children becomes empty and stays, but the words of all are zeroed for it. Another thread unlinks one of the
/// others.
#[test]
fn words_are_durably_zero_although_no_leaf_is_unlinked() {
    let operation = |run: &Run<u64>| {
        let store = attach(run.pmem());
        in_thread(|| {
            sweep(&store);
            insert(&store, [37]);
        });
        in_thread(|| use_free_nodes(&store));
        in_thread(|| remove(&store, [17, 19, 21, 23]));
        in_thread(|| {
            remove(&store, [29, 31, 33, 35]);
            insert(&store, [2]);
        });
        std::mem::forget(store);
    };
    println!("{}", explorer().check(&image(36).to_image(), operation, check));
}

/// Flips a bit of the second hint node's word of its first child.
fn corrupt_second_hint_node(pmem: &SimPmem) {
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    let magic = [b'P', b'M', b'B', b'N', 1, 0, 1, 0];
    let mut hints = (0..bytes.len()).step_by(64).filter(|line| bytes[*line..].starts_with(&magic));
    let word = hints.nth(1).unwrap() as u64 + 64;
    pmem.store_u64(word, pmem.load_u64(word) ^ 1 << 20);
}

/// A search finds a corrupted hint node, and makes a new index; there is no room for its hint nodes. A leaf that another one names is unlinked.
#[test]
fn new_index_is_durable_without_room_for_hint_nodes() {
    let operation = |run: &Run<u64>| {
        let store = attach(run.pmem());
        // The first attempt to allocate a block reads the heap, with a fence.
        in_thread(|| {
            let blocks = store.heap().transaction(|tx| tx.alloc_uninit::<u8>(EXTENT_BYTES).map(drop));
            assert!(matches!(blocks, Err(TxError::Space(SpaceError::Full { .. }))), "{blocks:?}");
        });
        // The first search builds the inner node beside the corrupted one.
        in_thread(|| assert!([1, 37].iter().all(|key| table(&store).get(*key).unwrap().is_some())));
        in_thread(|| sweep(&store));
        in_thread(|| {
            remove(&store, [5, 7, 9, 11]);
            insert(&store, [2, 4]);
        });
        std::mem::forget(store);
    };
    let image = image(38);
    corrupt_second_hint_node(&image);
    println!("{}", explorer().check(&image.to_image(), operation, check));
}

/// A compaction is killed when the anchor names the first leaf, which is not durable. The next process unlinks a leaf that the old hint node names.
#[test]
fn root_of_killed_compaction_is_durable() {
    let sim = Arc::new(image(8));
    let store = attach(&sim);
    // The leaf that is empty stays, because its left sibling is more than half full.
    remove(&store, [7]);
    store.close().unwrap();
    let compact = |run: &Run<u64>| {
        let mut store = attach(run.pmem());
        store.compact().unwrap();
        std::mem::forget(store);
    };
    let reuse = |run: &Run<u64>| {
        let mut store = None;
        in_thread(|| store = Some(attach(run.pmem())));
        let store = store.unwrap();
        in_thread(|| sweep(&store));
        in_thread(|| {
            remove(&store, [5]);
            insert(&store, [2, 4]);
        });
        std::mem::forget(store);
    };
    println!("{}", explorer().check_restarted(&sim.to_image(), compact, reuse, check));
}
