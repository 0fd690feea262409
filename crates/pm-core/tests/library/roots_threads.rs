//! One thread reads the root directory while another thread changes it: the lookup runs before every step of the change, and the change before every
//! load of the lookup. A root that exists before and after the change is found meanwhile, and no root is found that a crash could undo.

use crate::pools::POOL_BYTES;
use pm_core::{FenceError, Pmem, Pool, PoolOptions, Region, RootError, forward_pmem};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const ROOTS: std::ops::Range<u64> = 4096..8192;

/// The accesses to the directory before which the other thread runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before each store, flush and fence.
    EachChange,
    /// Once, before the load with this number: loads of words of the directory are counted from 0.
    Load(u64),
}

type Other = Box<dyn Fn() + Send + Sync>;

/// A region that runs another thread before the accesses given by `At`. It loads and stores word by word, as hardware does.
struct Stepped {
    region: Region,
    other: Mutex<Option<(At, Arc<Other>)>>,
    load_count: AtomicU64,
    fence_count: AtomicU64,
    fences_fail: AtomicBool,
}

impl Stepped {
    fn step(&self, offset: u64, is_change: bool) {
        if !ROOTS.contains(&offset) {
            return;
        }
        let load = if is_change { 0 } else { self.load_count.fetch_add(1, SeqCst) };
        let mut other = self.other.lock().unwrap();
        let run = match &*other {
            Some((At::EachChange, run)) if is_change => Arc::clone(run),
            Some((At::Load(at), _)) if !is_change && *at == load => other.take().unwrap().1,
            _ => return,
        };
        drop(other);
        std::thread::spawn(move || run()).join().unwrap();
    }
}

impl Pmem for Stepped {
    forward_pmem!(|this| this.region => len_bytes, domain, store_nt, load_u64, store_u128, compare_exchange_u64);

    fn load(&self, offset: u64, out: &mut [u8]) {
        for (at, word) in (offset..).step_by(8).zip(out.chunks_mut(8)) {
            self.step(at, false);
            self.region.load(at, word);
        }
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        for (at, word) in (offset..).step_by(8).zip(bytes.chunks(8)) {
            self.step(at, true);
            self.region.store(at, word);
        }
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.step(offset, true);
        self.region.store_u64(offset, value);
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.step(offset, true);
        self.region.flush(offset, len_bytes);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.step(ROOTS.start, true);
        if self.fences_fail.load(SeqCst) {
            return Err(FenceError::Poisoned);
        }
        self.fence_count.fetch_add(1, SeqCst);
        self.region.fence()
    }
}

type SteppedPool = Pool<Stepped>;

fn pool() -> Arc<SteppedPool> {
    let stepped = Stepped {
        region: Region::anonymous(POOL_BYTES).unwrap(),
        other: Mutex::new(None),
        load_count: AtomicU64::new(0),
        fence_count: AtomicU64::new(0),
        fences_fail: AtomicBool::new(false),
    };
    Arc::new(Pool::format(stepped, &PoolOptions::new()).unwrap())
}

fn set(pool: &SteppedPool, name: &str, at: u64) -> Result<(), RootError> {
    crate::pools::try_set(pool, name, at, at)
}

/// The number of the line that the root links to; `set` stores the same number there.
fn look(pool: &SteppedPool, name: &str) -> Option<u64> {
    let number = |offset: u64| (offset - pool.data().start) / 64;
    assert_eq!(pool.corrupted_root_count(), 0);
    pool.find_root(name).unwrap().map(|root| number(root.offset()))
}

fn run_at(pool: &Arc<SteppedPool>, at: At, other: impl Fn(&SteppedPool) + Send + Sync + 'static) {
    let its = Arc::clone(pool);
    pool.pmem().load_count.store(0, SeqCst);
    pool.pmem().fence_count.store(0, SeqCst);
    *pool.pmem().other.lock().unwrap() = Some((at, Arc::new(Box::new(move || other(&its)))));
}

fn run_no_more(pool: &SteppedPool) {
    *pool.pmem().other.lock().unwrap() = None;
}

/// Runs `change`, and another thread before each of its steps. That thread finds `old` until `fences` fences have returned, and then either.
fn watch(
    pool: &Arc<SteppedPool>,
    (old, new): (Option<u64>, Option<u64>),
    fences: u64,
    change: impl FnOnce(&SteppedPool),
) {
    assert_eq!(look(pool, "y"), old);
    run_at(pool, At::EachChange, move |pool| {
        let is_durable = pool.pmem().fence_count.load(SeqCst) >= fences;
        let found = look(pool, "y");
        assert!(found == old || is_durable && found == new, "{found:?} after {old:?}, durable: {is_durable}");
        assert_eq!(look(pool, "absent"), None);
        assert_eq!(look(pool, "other"), Some(9));
        assert_eq!(pool.roots().len(), 1 + usize::from(found.is_some()));
    });
    change(pool);
    run_no_more(pool);
    assert_eq!(look(pool, "y"), new);
}

#[test]
fn readers_find_old_root_until_new_one_is_durable() {
    let pool = pool();
    set(&pool, "other", 9).unwrap();
    watch(&pool, (None, Some(1)), 2, |pool| set(pool, "y", 1).unwrap());
    for value in 2..6 {
        watch(&pool, (Some(value - 1), Some(value)), 2, |pool| set(pool, "y", value).unwrap());
    }
    watch(&pool, (Some(5), None), 1, |pool| pool.remove_root("y").unwrap());
}

#[test]
fn lookup_is_correct_during_replacement() {
    let loads_of = |name: &str| {
        let pool = pool();
        set(&pool, "y", 1).unwrap();
        pool.pmem().load_count.store(0, SeqCst);
        pool.find_root(name).unwrap();
        pool.pmem().load_count.load(SeqCst)
    };
    for name in ["y", "absent"] {
        for has_hint in [false, true] {
            for load in 0..loads_of(name) {
                let pool = pool();
                set(&pool, "y", 1).unwrap();
                set(&pool, "y", 2).unwrap();
                if has_hint {
                    look(&pool, "y");
                }
                // Two replacements: the second one stores into the slot that the first one freed.
                run_at(&pool, At::Load(load), |pool| (3..5).for_each(|value| set(pool, "y", value).unwrap()));
                let found =
                    pool.find_root(name).unwrap().map(|root| (root.offset() - pool.data().start) / 64);
                match name {
                    "y" => assert!(matches!(found, Some(2..=4)), "{found:?}"),
                    _ => assert_eq!(found, None),
                }
            }
        }
    }
}

#[test]
fn change_with_failed_fence_stays_hidden() {
    let pool = pool();
    set(&pool, "y", 1).unwrap();
    for _ in 0..2 {
        pool.pmem().fences_fail.store(true, SeqCst);
        assert!(matches!(set(&pool, "y", 2), Err(RootError::Fence(_))));
        assert!(matches!(pool.remove_root("y"), Err(RootError::Fence(_))));
        pool.pmem().fences_fail.store(false, SeqCst);
        assert_eq!(look(&pool, "y"), Some(1));
        assert_eq!(pool.roots().len(), 1);
    }
}

#[test]
fn refused_change_keeps_directory_usable() {
    let pool = pool();
    for index in 0..63 {
        set(&pool, &format!("root {index}"), 1).unwrap();
    }
    assert!(matches!(set(&pool, "y", 1), Err(RootError::Full { .. })));
    set(&pool, "root 7", 2).unwrap();
    assert_eq!(look(&pool, "root 7"), Some(2));
}

#[test]
fn transaction_is_hidden_until_complete() {
    let pool = pool();
    set(&pool, "y", 1).unwrap();
    let target = |at: u64| Some((pool.data().start + 64 * at, 8, 0));
    let mut change = pool.begin_root_change().unwrap();
    let first = pool.root_write("y", target(2), &[]).unwrap().unwrap();
    let second = pool.root_write("z", target(3), &[first]).unwrap().unwrap();
    let writes = [first, second];
    pool.hide_roots(&mut change, &writes);
    for write in writes {
        for (at, word) in (write.offset()..).step_by(8).zip(write.bytes().chunks(8)) {
            assert_eq!((look(&pool, "y"), look(&pool, "z")), (Some(1), None));
            pool.pmem().store(at, word);
        }
        pool.pmem().persist(write.offset(), 64).unwrap();
    }
    assert_eq!((look(&pool, "y"), look(&pool, "z")), (Some(1), None));
    change.complete();
    assert_eq!((look(&pool, "y"), look(&pool, "z")), (Some(2), Some(3)));
}
