//! Tests through the seam: fences that fail, and loads and stores of two threads in a chosen order.

use core::ops::Range;
use pm_btree::{CloseError, OpenError, Store, StoreOptions};
use pm_core::{FenceError, Pmem, Region};
use pm_testkit::{Hook, Hooked, any};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

fn wait_for(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

/// Lets one fence wait and then fail, and all later ones fail, like those of a region in the page domain.
#[derive(Debug, Default)]
struct Failing {
    /// The number of the fence that fails, from 1; 0 for none.
    countdown: AtomicU32,
    is_waiting: AtomicBool,
    may_fail: AtomicBool,
    has_failed: AtomicBool,
}

impl<R: Pmem> Hook<R> for Failing {
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        if self.has_failed.load(SeqCst) {
            return Err(FenceError::Poisoned);
        }
        if self.countdown.load(SeqCst) > 0 && self.countdown.fetch_sub(1, SeqCst) == 1 {
            self.is_waiting.store(true, SeqCst);
            wait_for(&self.may_fail);
            self.has_failed.store(true, SeqCst);
            return Err(FenceError::Poisoned);
        }
        region.fence()
    }
}

// What must not happen: `commit` promises that after a failed fence the next open finds all changes of the batch or none. A change that was waiting for the leaf's
// lock goes on after the failure, and overwrites an entry of the batch, whose batch slot is stored already.
#[test]
fn batch_with_failed_fence_is_atomic() {
    let region = Arc::new(Region::anonymous(4 << 20).unwrap());
    let hook = Arc::new(Failing::default());
    let pmem = any(Hooked::new(Arc::clone(&region), Arc::clone(&hook)));
    let store = Store::format(pmem, &StoreOptions::new()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    table.insert(10, 10).unwrap();
    // The second fence of the batch, behind the store to its slot.
    hook.countdown.store(2, SeqCst);
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            let mut batch = store.batch();
            batch.insert(&table, 1, 1).unwrap();
            batch.insert(&table, 2, 2).unwrap();
            assert!(batch.commit().is_err(), "its fence fails");
        });
        wait_for(&hook.is_waiting);
        let change = scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            assert!(table.insert(3, 3).is_err(), "the store is poisoned");
        });
        std::thread::sleep(Duration::from_millis(300));
        hook.may_fail.store(true, SeqCst);
        batch.join().unwrap();
        change.join().unwrap();
    });
    drop((store, table));
    let store = Store::attach(any(region), &StoreOptions::new()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    let found = [1, 2].map(|key| table.get(key).unwrap().map(|value| value.value()));
    assert!(matches!(found, [None, None] | [Some(1), Some(2)]), "a part of the batch: {found:?}");
}

// What must not happen: the documentation of `close` says that it returns an error when a fence has failed.
#[test]
fn close_after_failed_fence_is_an_error() {
    let region = Arc::new(Region::anonymous(4 << 20).unwrap());
    let hook = Arc::new(Failing::default());
    let pmem = any(Hooked::new(Arc::clone(&region), Arc::clone(&hook)));
    let store = Store::format(pmem, &StoreOptions::new()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    hook.may_fail.store(true, SeqCst);
    hook.countdown.store(1, SeqCst);
    assert!(table.insert(1, 1).is_err());
    drop(table);
    let closed = store.close();
    assert!(matches!(closed, Err(CloseError::Failed(OpenError::Fence(_)))), "a fence has failed: {closed:?}");
}

/// Lets the store of a tombstone wait for a reader that has loaded the first three words of an entry, and the reader for the store.
#[derive(Debug, Default)]
struct Tearing {
    is_armed: AtomicBool,
    is_removing: AtomicBool,
    is_loading: AtomicBool,
    is_stored: AtomicBool,
    is_read: AtomicBool,
}

impl<R: Pmem> Hook<R> for Tearing {
    fn before_load_words(&self, _: u64, index: usize) {
        if index == 3 && self.is_removing.load(SeqCst) && !self.is_loading.swap(true, SeqCst) {
            wait_for(&self.is_stored);
        }
    }

    fn before_store(&self, range: Range<u64>) {
        if is_pair(&range) && self.is_armed.load(SeqCst) {
            self.is_removing.store(true, SeqCst);
            wait_for(&self.is_loading);
        }
    }

    fn after_store(&self, range: Range<u64>) {
        if is_pair(&range) {
            self.is_stored.store(true, SeqCst);
        }
    }

    fn fence(&self, region: &R) -> Result<(), FenceError> {
        if self.is_removing.load(SeqCst) {
            wait_for(&self.is_read);
        }
        region.fence()
    }
}

/// Whether this is a pair of words, such as a tombstone.
fn is_pair(range: &Range<u64>) -> bool {
    range.end - range.start == 16
}

// What must not happen: nothing is corrupted. A reader that comes after a removal has begun, and loads half of the entry before the tombstone is stored and half
// after it, finds version and live slots of the frame unchanged, and reports the wrong seal that it has computed as corruption.
#[test]
fn removal_during_verified_read_is_no_corruption() {
    let hook = Arc::new(Tearing::default());
    let pmem = any(Hooked::new(Region::anonymous(4 << 20).unwrap(), Arc::clone(&hook)));
    let options = StoreOptions::new().verify_reads(true);
    let store = Store::format(pmem, &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    table.insert(1, 1).unwrap();
    hook.is_stored.store(false, SeqCst);
    hook.is_armed.store(true, SeqCst);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            wait_for(&hook.is_removing);
            let found = table.get(1).map(|value| value.map(|value| value.value()));
            hook.is_read.store(true, SeqCst);
            found
        });
        table.remove(1).unwrap();
        let found = reader.join().unwrap();
        assert!(matches!(found, Ok(None | Some(1))), "{found:?}");
    });
}
