//! The identity of a process. A child of fork(2) inherits regions, and must neither unmap nor unlock those of its parent.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The identity of a process, different from those of all its ancestors. A value that a child of fork(2) inherits, but must not change or release,
/// stores the identity of its owner.
///
/// A pid alone is not unique: in a new PID namespace the child of process 1 can be process 1 too. The identity therefore includes a number in a
/// page that fork(2) wipes, and the child takes a higher number. If the kernel cannot wipe pages, the pid alone identifies the process.
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
    /// The identity of this process. Takes no lock, because a child could inherit the lock while it is held. Costs a system call.
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
                Err(stored) => stored,
            };
        }
        Self { pid: std::process::id(), number }
    }

    /// Whether this is the identity of the calling process, and not of an ancestor.
    #[must_use]
    pub fn is_current(self) -> bool {
        let own = wiped_on_fork();
        // Without a system call, which would cost as much as a short operation. A descendant has a higher number, or none yet.
        if core::ptr::eq(own, &raw const NOT_WIPED) {
            return self == Self::current();
        }
        own.load(Ordering::Relaxed) == self.number
    }
}

/// Stands for the word that a fork wipes, if the kernel wipes none.
static NOT_WIPED: AtomicU64 = AtomicU64::new(0);

/// A word that is zeroed in each new child of this process.
///
/// # Source
/// madvise(2), `MADV_WIPEONFORK`.
fn wiped_on_fork() -> &'static AtomicU64 {
    static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
    let mut word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        let made = new_wiped_page().unwrap_or((&raw const NOT_WIPED).cast_mut());
        // If another thread was faster, this page leaks: at most a few pages per process.
        word = match WORD.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(stored) => stored,
        };
    }
    // SAFETY: `word` points to the static, or to the start of a page that is never unmapped; any bytes are a valid atomic word.
    unsafe { &*word }
}

/// A page of zeroes that fork(2) wipes, if the kernel supports it. (memmap2 has no `MADV_WIPEONFORK`.)
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

    /// Whether `check` returns true in a child.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the single thread of the child waits for no other thread, and ends without running destructors of the parent's values.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: alarm(2) accesses no memory. The alarm ends a child that hangs.
            unsafe { libc::alarm(10) };
            let is_true = std::panic::catch_unwind(core::panic::AssertUnwindSafe(check)).unwrap_or(false);
            // SAFETY: ends the child without running destructors of the parent's values.
            unsafe { libc::_exit(i32::from(!is_true)) }
        }
        let mut status = 0;
        // SAFETY: waits for the child, and stores to the local integer.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn child_differs_from_parent_with_same_pid() {
        let parent = ProcessId::current();
        assert_eq!(parent, ProcessId::current());
        assert!(in_child(|| ProcessId::current().number > parent.number));
        assert_eq!(parent, ProcessId::current());
    }

    const LEN: u64 = 1 << 20;

    fn is_busy<T>(answer: Result<T, OpenError>) -> bool {
        matches!(answer, Err(OpenError::Busy { .. }))
    }

    /// The parent holds the lock. Growing would give the child a mapping of its own, and make it a second writer.
    #[test]
    fn child_cannot_grow_region_of_parent() {
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
            let is_refused = |answer| matches!(answer, Err(PoolError::Region(OpenError::Busy { .. })));
            assert!(in_child(|| is_refused(pool.grow(4 * LEN))));
            pool.grow(3 * LEN).unwrap();
            assert_eq!(
                (pool.pmem().len_bytes(), std::fs::metadata(&path).unwrap().len()),
                (3 * LEN, 3 * LEN)
            );
        }
    }

    #[test]
    fn child_with_mapping_cannot_write_pool_of_parent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let region = RegionOptions::new().keep_on_fork().create(&path, LEN).unwrap();
        drop(Pool::format(&region, &PoolOptions::new()).unwrap());
        let is_refused = || matches!(Pool::attach(&region), Err(PoolError::InUse));
        assert!(in_child(|| is_refused() && Pool::attach_read_only(&region).is_ok()));
        assert!(!is_refused());
    }

    /// While no root changes, the child does not wait for a lock that another thread held at the fork.
    #[test]
    fn child_finds_root_while_parent_reads() {
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
        assert_eq!(failed, None, "the number of the child that found no root or hung");
    }

    /// In a child forked in the middle of a change, the change never ends, and no thread releases its lock.
    #[test]
    fn child_lookup_returns_while_parent_changes_root() {
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
            // Any result is correct, because the parent continues.
            let looks = || reader.find_root("x").map_or(true, |_| true);
            let failed = (0..300).find(|_| !in_child(looks));
            is_done.store(true, Ordering::Relaxed);
            failed
        });
        assert_eq!(failed, None, "the number of the child that hung");
    }

    /// The kernel reports a failed write-back once for each open file description, and the parent's fences need the report.
    #[test]
    fn child_cannot_sync_file_of_parent() {
        let region = Region::anonymous(LEN).unwrap();
        assert!(in_child(|| is_busy(region.sync_file())));
        region.sync_file().unwrap();
    }

    /// A fence in the child must not take the report of a failed write-back either. The child has only a copy of the set of flushed pages.
    #[test]
    fn child_cannot_fence_region_of_parent() {
        // The directory for temporary files may be in memory.
        let dir = tempfile::tempdir_in(".").unwrap();
        let region = RegionOptions::new().keep_on_fork().create(dir.path().join("x.pm"), LEN).unwrap();
        assert_eq!(region.domain(), crate::Domain::Page);
        region.store_u64(0, 1);
        region.flush(0, 8);
        assert!(in_child(|| region.fence() == Err(FenceError::Inherited)));
        region.fence().unwrap();
    }

    /// The new file has a temporary name, as on a file system without nameless files.
    #[test]
    fn child_does_not_remove_new_file_of_parent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let handle = rustix::fs::open(dir.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut new_file = Some(NewFile::with_temporary_name(handle, &path, "x.pm".into(), 0o600).unwrap());
        assert!(in_child(|| new_file.take().is_some()));
        new_file.unwrap().publish().unwrap();
        assert!(path.exists());
    }
}
