//! Tests through the seam: fences that fail, and loads and stores of two threads in a chosen order.

use pm_btree::{Store, StoreOptions};
use pm_core::{FenceError, Pmem, Region, forward_pmem};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

fn wait_for(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

/// A region of which one fence waits and then fails, and all later ones fail, like a region in the page domain.
#[derive(Debug)]
struct Failing {
    inner: Arc<Region>,
    /// The number of the fence that fails, from 1; 0 for none.
    countdown: AtomicU32,
    is_waiting: AtomicBool,
    may_fail: AtomicBool,
    has_failed: AtomicBool,
}

impl Failing {
    fn new(inner: &Arc<Region>) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            countdown: AtomicU32::new(0),
            is_waiting: AtomicBool::new(false),
            may_fail: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        })
    }
}

impl Pmem for Failing {
    forward_pmem!(|this| this.inner => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data, load, store);
    forward_pmem!(|this| this.inner => store_nt, load_u64, load_words, store_u64, store_u128, compare_exchange_u64, flush);

    fn fence(&self) -> Result<(), FenceError> {
        if self.has_failed.load(SeqCst) {
            return Err(FenceError::Poisoned);
        }
        if self.countdown.load(SeqCst) > 0 && self.countdown.fetch_sub(1, SeqCst) == 1 {
            self.is_waiting.store(true, SeqCst);
            wait_for(&self.may_fail);
            self.has_failed.store(true, SeqCst);
            return Err(FenceError::Poisoned);
        }
        self.inner.fence()
    }
}

// What must not happen: `commit` promises that after a failed fence the next open finds all changes of the batch or none. A change that was waiting for the leaf's
// lock goes on after the failure, and overwrites an entry of the batch, whose batch slot is stored already.
#[test]
fn batch_with_failed_fence_is_atomic() {
    let region = Arc::new(Region::anonymous(4 << 20).unwrap());
    let pmem = Failing::new(&region);
    let store = Store::format(Arc::clone(&pmem), &StoreOptions::new()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    table.insert(10, 10).unwrap();
    // The second fence of the batch, behind the store to its slot.
    pmem.countdown.store(2, SeqCst);
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            let mut batch = store.batch();
            batch.insert(&table, 1, 1).unwrap();
            batch.insert(&table, 2, 2).unwrap();
            assert!(batch.commit().is_err(), "its fence fails");
        });
        wait_for(&pmem.is_waiting);
        let change = scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            assert!(table.insert(3, 3).is_err(), "the store is poisoned");
        });
        std::thread::sleep(Duration::from_millis(300));
        pmem.may_fail.store(true, SeqCst);
        batch.join().unwrap();
        change.join().unwrap();
    });
    drop(store);
    drop(pmem);
    let store = Store::attach(region, &StoreOptions::new()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    let found = [1, 2].map(|key| table.get(key).unwrap().map(|value| value.value()));
    assert!(matches!(found, [None, None] | [Some(1), Some(2)]), "a part of the batch: {found:?}");
}

// What must not happen: the documentation of `close` says that it returns an error when a fence has failed.
#[test]
fn close_after_failed_fence_is_an_error() {
    let region = Arc::new(Region::anonymous(4 << 20).unwrap());
    let pmem = Failing::new(&region);
    let store = Store::format(Arc::clone(&pmem), &StoreOptions::new()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    pmem.may_fail.store(true, SeqCst);
    pmem.countdown.store(1, SeqCst);
    assert!(table.insert(1, 1).is_err());
    assert!(store.close().is_err(), "a fence has failed");
}

/// A region in which the store of a tombstone waits for a reader that has loaded the first three words of an entry, and the reader for the store.
#[derive(Debug)]
struct Tearing {
    inner: Arc<Region>,
    is_armed: AtomicBool,
    is_removing: AtomicBool,
    is_loading: AtomicBool,
    is_stored: AtomicBool,
    is_read: AtomicBool,
}

impl Pmem for Tearing {
    forward_pmem!(|this| this.inner => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data, load, store);
    forward_pmem!(|this| this.inner => store_nt, load_u64, store_u64, compare_exchange_u64, flush);

    fn load_words(&self, offset: u64, out: &mut [u64]) {
        for (index, word) in (0..).zip(out) {
            if index == 3 && self.is_removing.load(SeqCst) && !self.is_loading.swap(true, SeqCst) {
                wait_for(&self.is_stored);
            }
            *word = self.inner.load_u64(offset + 8 * index);
        }
    }

    fn store_u128(&self, offset: u64, value: u128) {
        if self.is_armed.load(SeqCst) {
            self.is_removing.store(true, SeqCst);
            wait_for(&self.is_loading);
        }
        self.inner.store_u128(offset, value);
        self.is_stored.store(true, SeqCst);
    }

    fn fence(&self) -> Result<(), FenceError> {
        if self.is_removing.load(SeqCst) {
            wait_for(&self.is_read);
        }
        self.inner.fence()
    }
}

// What must not happen: nothing is corrupted. A reader that comes after a removal has begun, and loads half of the entry before the tombstone is stored and half
// after it, finds version and live slots of the frame unchanged, and reports the wrong seal that it has computed as corruption.
#[test]
fn removal_during_verified_read_is_no_corruption() {
    let pmem = Arc::new(Tearing {
        inner: Arc::new(Region::anonymous(4 << 20).unwrap()),
        is_armed: AtomicBool::new(false),
        is_removing: AtomicBool::new(false),
        is_loading: AtomicBool::new(false),
        is_stored: AtomicBool::new(false),
        is_read: AtomicBool::new(false),
    });
    let options = StoreOptions::new().verify_reads(true);
    let store = Store::format(Arc::clone(&pmem), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    table.insert(1, 1).unwrap();
    pmem.is_stored.store(false, SeqCst);
    pmem.is_armed.store(true, SeqCst);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            wait_for(&pmem.is_removing);
            let found = table.get(1).map(|value| value.map(|value| value.value()));
            pmem.is_read.store(true, SeqCst);
            found
        });
        table.remove(1).unwrap();
        let found = reader.join().unwrap();
        assert!(matches!(found, Ok(None | Some(1))), "{found:?}");
    });
}
