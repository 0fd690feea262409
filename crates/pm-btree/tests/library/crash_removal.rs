//! Crashes of removals of ranges, in small nodes and small batches: a crash leaves a whole number of batches from the front removed.

use pm_alloc::HeapOptions;
use pm_btree::{Key, Store, StoreOptions, Table};
use pm_core::{PoolOptions, Uuid};
use pm_crashsim::{Coverage, Crash, Explorer, Model, Run, SimPmem};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const REGION_BYTES: u64 = 128 << 10;
/// The keys of a batch.
const BATCH: u64 = 3;

type SimStore = Store<AnyPmem<'static>>;

fn options() -> StoreOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let heap = HeapOptions::new().seed(7).pool(pool).lanes(1);
    StoreOptions::new()
        .heap(heap)
        .node_slots(4)
        .extent_bytes(4096)
        .sweep_at_open(0)
        .removal_batch(BATCH as u32)
}

/// A kind of table.
trait Kind: Send + Sync + 'static {
    type Key: Key;
    fn remove(table: &Table<Self::Key, &'static [u8], AnyPmem<'static>>, from: u64, to: u64) -> u64;
    fn insert(table: &Table<Self::Key, &'static [u8], AnyPmem<'static>>, key: u64);
}

/// 8-byte keys.
struct Words;

impl Kind for Words {
    type Key = u64;
    fn remove(table: &Table<u64, &'static [u8], AnyPmem<'static>>, from: u64, to: u64) -> u64 {
        table.remove_range(from..to).unwrap()
    }
    fn insert(table: &Table<u64, &'static [u8], AnyPmem<'static>>, key: u64) {
        table.insert(key, &[key as u8; 3]).unwrap();
    }
}

/// Long keys with a common prefix, in records.
struct Names;

fn name(key: u64) -> Vec<u8> {
    [b"a long prefix: ".as_slice(), &key.to_be_bytes()].concat()
}

impl Kind for Names {
    type Key = &'static [u8];
    fn remove(table: &Table<&'static [u8], &'static [u8], AnyPmem<'static>>, from: u64, to: u64) -> u64 {
        table.remove_range(name(from).as_slice()..name(to).as_slice()).unwrap()
    }
    fn insert(table: &Table<&'static [u8], &'static [u8], AnyPmem<'static>>, key: u64) {
        table.insert(&name(key), &[key as u8; 3]).unwrap();
    }
}

/// The keys of the table, by their last byte.
fn keys<K: Kind>(store: &SimStore) -> Result<Vec<u64>, String> {
    let report = store.check().unwrap();
    if !report.is_sound() {
        return Err(format!("{report:?}"));
    }
    if store.heap().blocks() != store.blocks() {
        return Err("blocks are leaked".to_owned());
    }
    let table = store.table::<K::Key, &[u8]>("t").map_err(|error| error.to_string())?;
    let mut keys = Vec::new();
    for entry in table.range(..) {
        let (key, value) = entry.map_err(|error| error.to_string())?;
        let last = *key.bytes().last().unwrap();
        if value.value() != [last; 3] {
            return Err(format!("the value of {last} is torn"));
        }
        keys.push(last.into());
    }
    let len = table.len().map_err(|error| error.to_string())?;
    if len == keys.len() as u64 { Ok(keys) } else { Err(format!("length {len} of {keys:?}")) }
}

/// Crashes the removal of the keys from `from` to `to` of those below `count`.
fn check<K: Kind>(explorer: &Explorer, count: u64, from: u64, to: u64) -> Coverage {
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    let store = Store::format(any(Arc::clone(&sim)), &options()).unwrap();
    let table = store.table::<K::Key, &[u8]>("t").unwrap();
    (0..count).for_each(|key| K::insert(&table, key));
    drop(table);
    store.close().unwrap();
    let operation = |run: &Run<u64>| {
        let store = Store::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
        let table = store.table::<K::Key, &[u8]>("t").unwrap();
        run.ack(K::remove(&table, from, to));
        std::mem::forget((store, table));
    };
    let total = to - from;
    let seen = Mutex::new(BTreeSet::new());
    let check = |crash: &Crash<u64>| {
        let store =
            Store::attach(any(Arc::clone(crash.pmem())), &options()).map_err(|error| error.to_string())?;
        let found = keys::<K>(&store)?;
        let removed = count - found.len() as u64;
        let expected: Vec<u64> = (0..from).chain(from + removed..count).collect();
        if found != expected {
            return Err(format!("{found:?} are not all but the first ones of the range"));
        }
        if !removed.is_multiple_of(BATCH) && removed != total {
            return Err(format!("{removed} removed keys are no whole number of batches"));
        }
        seen.lock().unwrap().insert(removed);
        match crash.acked() {
            [returned] if *returned != total || removed != total => {
                Err(format!("{returned} were removed when it returned, and {removed} after the crash"))
            }
            _ => Ok(()),
        }
    };
    let coverage = explorer.clone().check(&sim.to_image(), operation, check);
    let batches = (0..total).step_by(BATCH as usize).chain([total]);
    assert_eq!(
        seen.into_inner().unwrap(),
        batches.collect(),
        "crashes fall before, between and behind all batches"
    );
    assert!(coverage.levels[0].is_exhaustive, "{coverage}");
    coverage
}

#[test]
fn removal_of_range_leaves_whole_batches() {
    for model in [Model::Px86Line, Model::Page] {
        let explorer =
            Explorer::new(model).crashes(1).choices_per_point(if crate::is_deep() { 20_000 } else { 1_000 });
        println!("{}", check::<Words>(&explorer, 10, 1, 9));
        println!("{}", check::<Names>(&explorer, 8, 1, 8));
    }
}

#[test]
fn removal_of_range_leaves_whole_batches_with_durable_caches() {
    let explorer = Explorer::new(Model::Eadr).crashes(1).choices_per_point(1_000);
    println!("{}", check::<Words>(&explorer, 10, 1, 9));
    println!("{}", check::<Names>(&explorer, 8, 1, 8));
}

/// Killed everywhere; the check is the next process, which opens the store, and is crashed.
#[test]
fn killed_removal_of_range_leaves_whole_batches() {
    let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(64);
    println!("{}", check::<Words>(&explorer, 10, 1, 9));
    println!("{}", check::<Names>(&explorer, 6, 1, 6));
}

/// A table is emptied, and the store is closed, which returns the extents that only leaves were in. A crash leaks none of them, and loses no other one.
#[test]
fn close_returns_extents_of_nodes() {
    const COUNT: u64 = 250;
    let options = || options().removal_batch(1000);
    for model in [Model::Px86Line, Model::Eadr, Model::Page] {
        let sim = Arc::new(SimPmem::new(REGION_BYTES));
        let store = Store::format(any(Arc::clone(&sim)), &options()).unwrap();
        let table = store.table::<u64, &[u8]>("t").unwrap();
        (0..COUNT).for_each(|key| Words::insert(&table, key));
        let extents = store.stats().unwrap().extent_bytes / 4096;
        assert!(extents >= 4, "{extents}");
        drop(table);
        store.close().unwrap();
        let operation = |run: &Run<u64>| {
            let store = Store::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
            // Visits all leaves: until then no extent from before the open is known to be empty.
            assert_eq!(store.table_len("t").unwrap(), Some(COUNT));
            assert_eq!(Words::remove(&store.table("t").unwrap(), 0, COUNT), COUNT);
            store.close().unwrap();
            run.ack(0);
        };
        let check = |crash: &Crash<u64>| {
            let store = Store::attach(any(Arc::clone(crash.pmem())), &options())
                .map_err(|error| error.to_string())?;
            let found = keys::<Words>(&store)?;
            let left = store.stats().map_err(|error| error.to_string())?.extent_bytes / 4096;
            let is_closed = !crash.acked().is_empty();
            if !found.is_empty() && (is_closed || found != (0..COUNT).collect::<Vec<_>>()) {
                return Err(format!("{found:?} are left"));
            }
            if is_closed && left > extents / 2 {
                return Err(format!("{left} of {extents} extents are left"));
            }
            // Others take their space.
            let table = store.table::<u64, &[u8]>("t").map_err(|error| error.to_string())?;
            (0..COUNT).for_each(|key| Words::insert(&table, key));
            let again = keys::<Words>(&store)?.len() as u64;
            if again == COUNT { Ok(()) } else { Err(format!("{again} keys")) }
        };
        let explorer = Explorer::new(model).crashes(1).choices_per_point(64).nested_choices_per_point(1);
        println!("{}", explorer.check(&sim.to_image(), operation, check));
    }
}
