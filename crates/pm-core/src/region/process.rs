//! Which process this is. A child of fork(2) inherits regions, and must neither unmap nor unlock what is its parent's.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The identity of a process, which differs from those of all its ancestors. A value that a child of fork(2) inherits, and must not change
/// or release in its parent's place, keeps the identity of its owner.
///
/// A pid alone does not differ: in a new PID namespace the child of process 1 can be process 1 too. So there is a number in memory that
/// fork wipes, and that the child replaces by a higher one. Where the kernel wipes nothing, the pid has to do.
///
/// ```
/// let owner = pm_core::ProcessId::current();
/// assert!(owner.is_current(), "no fork in between");
/// ```
///
/// # Source
/// madvise(2), `MADV_WIPEONFORK`; pid_namespaces(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    pid: u32,
    number: u64,
}

impl ProcessId {
    /// The identity of this process. Takes no lock, which a child could inherit locked. Costs a system call.
    #[must_use]
    pub fn current() -> Self {
        /// The highest number among this process and its ancestors.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let own = wiped_on_fork();
        let mut number = own.load(Ordering::Relaxed);
        if number == 0 {
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            number = match own.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => next,
                Err(other_threads) => other_threads,
            };
        }
        Self { pid: std::process::id(), number }
    }

    /// Whether this is the identity of the calling process, and not of an ancestor.
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// A word of this process that is zero in a child of it.
///
/// # Source
/// madvise(2), `MADV_WIPEONFORK`.
fn wiped_on_fork() -> &'static AtomicU64 {
    static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
    static NOT_WIPED: AtomicU64 = AtomicU64::new(0);
    let mut word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        let made = new_wiped_page().unwrap_or((&raw const NOT_WIPED).cast_mut());
        // A page that another thread was faster than stays mapped: once in a process, if at all.
        word = match WORD.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other_threads) => other_threads,
        };
    }
    // SAFETY: the static, or the start of a page that is never unmapped; any bytes are an atomic word.
    unsafe { &*word }
}

/// A page of zeroes that is one in a child too, if the kernel can do that.
fn new_wiped_page() -> Option<*mut AtomicU64> {
    let (len, prot) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a null hint lets the kernel choose an unused range.
    let page = unsafe { rustix::mm::mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the range was mapped just now, and holds nothing yet.
    unsafe { rustix::mm::madvise(page, len, Advice::LinuxWipeOnFork) }.ok()?;
    Some(page.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::new_file::NewFile;
    use crate::{FenceError, OpenError, Pmem, Pool, PoolError, PoolOptions, Region, RegionOptions};
    use core::sync::atomic::AtomicBool;
    use rustix::fs::{Mode, OFlags};

    /// Whether `check` is true in a child.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child's one thread waits for no other, and ends before the destructors of the parent's values.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no memory of ours is touched. A child that waits for ever is ended.
            unsafe { libc::alarm(10) };
            let is_true = std::panic::catch_unwind(core::panic::AssertUnwindSafe(check)).unwrap_or(false);
            // SAFETY: ends the child without running what is the parent's.
            unsafe { libc::_exit(i32::from(!is_true)) }
        }
        let mut status = 0;
        // SAFETY: waits for the child, and stores to the integer.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn child_differs_from_its_parent_even_with_the_same_pid() {
        let parent = ProcessId::current();
        assert_eq!(parent, ProcessId::current());
        assert!(in_child(|| ProcessId::current().number > parent.number));
        assert_eq!(parent, ProcessId::current());
    }

    const LEN: u64 = 1 << 20;

    fn is_busy<T>(answer: Result<T, OpenError>) -> bool {
        matches!(answer, Err(OpenError::Busy { .. }))
    }

    /// The lock is the parent's. Growing would give the child a mapping, and make it a second writer.
    #[test]
    fn child_does_not_grow_its_parents_region() {
        let dir = tempfile::tempdir().unwrap();
        for (number, options) in
            [RegionOptions::new(), RegionOptions::new().keep_on_fork()].iter().enumerate()
        {
            let path = dir.path().join(number.to_string());
            let mut region = options.create(&path, LEN).unwrap();
            assert!(in_child(|| is_busy(region.grow(4 * LEN)) && is_busy(region.grow(LEN))));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), LEN);
            region.grow(2 * LEN).unwrap();
            let mut pool = Pool::format(region, &PoolOptions::new()).unwrap();
            let grown = |answer| matches!(answer, Err(PoolError::Region(OpenError::Busy { .. })));
            assert!(in_child(|| grown(pool.grow(4 * LEN))));
            pool.grow(3 * LEN).unwrap();
            assert_eq!(
                (pool.pmem().len_bytes(), std::fs::metadata(&path).unwrap().len()),
                (3 * LEN, 3 * LEN)
            );
        }
    }

    #[test]
    fn child_that_has_the_mapping_does_not_write_to_its_parents_pool() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let region = RegionOptions::new().keep_on_fork().create(&path, LEN).unwrap();
        drop(Pool::format(&region, &PoolOptions::new()).unwrap());
        let is_refused = || matches!(Pool::attach(&region), Err(PoolError::InUse));
        assert!(in_child(|| is_refused() && Pool::attach_read_only(&region).is_ok()));
        assert!(!is_refused());
    }

    /// No lock that another thread held is inherited by the child, where nothing is changed.
    #[test]
    fn child_finds_a_root_that_a_thread_of_its_parent_looks_for() {
        let region = RegionOptions::new().keep_on_fork().anonymous(LEN).unwrap();
        let pool = Pool::format(&region, &PoolOptions::new()).unwrap();
        pool.scope(|pm| {
            let place = pm.claim(pool.data().start).unwrap();
            pm.set_root_in_flight("x", pm.flush(pm.write(place, &1_u64))).map(drop)
        })
        .unwrap();
        let reader = Pool::attach_read_only(&region).unwrap();
        let is_found = || matches!(reader.find_root("x"), Ok(Some(_)));
        let is_done = AtomicBool::new(false);
        let failed = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    assert!(is_found());
                }
            });
            let failed = (0..300).find(|_| !in_child(is_found));
            is_done.store(true, Ordering::Relaxed);
            failed
        });
        assert_eq!(failed, None, "the number of the child that found none, or waited for ever");
    }

    /// In a child that was forked in the middle of a change, the change never ends, nor does a thread give up its lock.
    #[test]
    fn child_looks_for_a_root_that_a_thread_of_its_parent_changes() {
        let region = RegionOptions::new().keep_on_fork().anonymous(LEN).unwrap();
        let pool = Pool::format(&region, &PoolOptions::new()).unwrap();
        let change = || {
            pool.scope(|pm| {
                let place = pm.claim(pool.data().start).unwrap();
                pm.set_root_in_flight("x", pm.flush(pm.write(place, &1_u64))).map(drop)
            })
            .unwrap();
        };
        change();
        let reader = Pool::attach_read_only(&region).unwrap();
        let is_done = AtomicBool::new(false);
        let failed = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    change();
                }
            });
            // What it finds may be anything, as the parent goes on.
            let looks = || reader.find_root("x").map_or(true, |_| true);
            let failed = (0..300).find(|_| !in_child(looks));
            is_done.store(true, Ordering::Relaxed);
            failed
        });
        assert_eq!(failed, None, "the number of the child that waited for ever");
    }

    /// The kernel tells once for each open file description that a write-back failed, and the parent's fences are to be told.
    #[test]
    fn child_does_not_sync_its_parents_file() {
        let region = Region::anonymous(LEN).unwrap();
        assert!(in_child(|| is_busy(region.sync_file())));
        region.sync_file().unwrap();
    }

    /// As above, by a fence: what the parent has flushed and not fenced waits in the child's copy, too.
    #[test]
    fn child_does_not_fence_its_parents_file() {
        // Not in memory.
        let dir = tempfile::tempdir_in(".").unwrap();
        let region = RegionOptions::new().keep_on_fork().create(dir.path().join("x.pm"), LEN).unwrap();
        assert_eq!(region.domain(), crate::Domain::Page);
        region.store_u64(0, 1);
        region.flush(0, 8);
        assert!(in_child(|| region.fence() == Err(FenceError::Inherited)));
        region.fence().unwrap();
    }

    /// On a file system where a file that is being made has a name.
    #[test]
    fn child_does_not_remove_the_file_that_its_parent_is_making() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let handle = rustix::fs::open(dir.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut new_file = Some(NewFile::with_temporary_name(handle, &path, "x.pm".into(), 0o600).unwrap());
        assert!(in_child(|| new_file.take().is_some()));
        new_file.unwrap().publish().unwrap();
        assert!(path.exists());
    }
}
