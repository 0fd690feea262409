//! Crashes of changes that grow the store, and of those that follow: all that was acknowledged is there, whether the file has its new length or not.

use pm_alloc::HeapOptions;
use pm_btree::{Store, StoreOptions};
use pm_core::{PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Image, Model, Run, SimPmem};
use pm_testkit::{AnyPmem, Growing};
use std::sync::Arc;

const FILE_BYTES: u64 = 96 << 10;
const FILE_BYTES_MAX: u64 = 160 << 10;

type SimStore = Store<AnyPmem<'static>>;

fn options() -> StoreOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    StoreOptions::new().heap(HeapOptions::new().seed(7).pool(pool).lanes(1)).node_slots(4).extent_bytes(4096)
}

fn file(pmem: &Arc<SimPmem>) -> AnyPmem<'static> {
    AnyPmem::other(Growing::new(Arc::clone(pmem), FILE_BYTES))
}

fn open(pmem: &Arc<SimPmem>) -> Result<SimStore, String> {
    Store::attach(file(pmem), &options().max_bytes(FILE_BYTES_MAX)).map_err(|error| error.to_string())
}

fn put(store: &SimStore, key: u64) -> Result<(), String> {
    let table = store.table::<u64, &[u8]>("t").map_err(|error| error.to_string())?;
    table.insert(key, &[u8::try_from(key).unwrap(); 900]).map(drop).map_err(|error| error.to_string())
}

/// A store that is full at its first length, and the number of its keys.
fn full() -> (Image, u64) {
    let sim = Arc::new(SimPmem::new(Growing::<SimPmem>::medium_bytes(FILE_BYTES_MAX)));
    let store = Store::format(file(&sim), &options()).unwrap();
    let keys = (0..).find(|key| put(&store, *key).is_err()).unwrap();
    drop(store);
    (sim.to_image(), keys)
}

#[test]
fn growth_keeps_what_was_acknowledged() {
    let (image, keys) = full();
    let operation = |run: &Run<()>| {
        let store = open(run.pmem()).unwrap();
        for key in keys..keys + 3 {
            put(&store, key).unwrap();
            run.ack(());
        }
        assert!(store.stats().unwrap().pool_bytes > FILE_BYTES, "it has grown");
        assert!(store.growth_error().is_none());
    };
    let check = |crash: &Crash<()>| {
        let store = open(crash.pmem())?;
        let report = store.check().map_err(|error| error.to_string())?;
        if !report.is_sound() || store.heap().blocks() != store.blocks() {
            return Err(format!("{report:?}, or blocks are leaked"));
        }
        let table = store.table::<u64, &[u8]>("t").map_err(|error| error.to_string())?;
        for (index, entry) in (0..).zip(table.range(..)) {
            let (key, value) = entry.map_err(|error| error.to_string())?;
            let is_whole =
                value.value().iter().all(|byte| u64::from(*byte) == index) && value.value().len() == 900;
            assert!(key.value() == index && is_whole, "{index}");
        }
        let len = table.len().map_err(|error| error.to_string())?;
        drop(table);
        let acked = crash.acked().len() as u64;
        // A recovery that has crashed may have put one more.
        if !(keys + acked..=keys + 4).contains(&len) {
            return Err(format!("{len} keys, {keys} before, {acked} acknowledged"));
        }
        if len < keys + 4 { put(&store, len) } else { Ok(()) }
    };
    for model in [Model::Eadr, Model::Px86Line, Model::Page] {
        let choices = if crate::is_deep() { 1 << 10 } else { 4 };
        let explorer = Explorer::new(model).choices_per_point(choices).nested_choices_per_point(2).kills(1);
        let coverage = explorer.check(&image, operation, check);
        assert!(coverage.recoveries() > 0, "{coverage}");
    }
}
