//! Faults in a process that creates, grows or opens a pool: it is killed at a system call, or the call fails. In memory and on a disk.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod syscall_filter;

use pm_core::{Pmem, Pool, PoolError, PoolOptions, RegionOptions};
use pm_syscall_faults::{End, Fault, Injection, Outcome, Traced, counting, sweep};
use rustix::fs::FallocateFlags;
use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use syscall_filter::errno_result;

const OLD_BYTES: u64 = 1 << 16;
const NEW_BYTES: u64 = 1 << 17;

const FAULTS: [Fault; 5] = [
    Fault::Kill,
    Fault::Error(libc::EIO),
    Fault::Error(libc::ENOSPC),
    Fault::Error(libc::ENOMEM),
    Fault::Error(libc::EINTR),
];

/// Each fault is tried at every second call, or at all calls with `PM_FAULTS_EXHAUSTIVE=1`.
const STEP: usize = 2;

/// The exit code of a child whose operation succeeded, and of one whose operation did not.
const DONE: i32 = 0;
const NOT_DONE: i32 = 1;

/// The environment variable for a child of a test: the directory of its pool.
const TRACED_IN: &str = "PM_CORE_TEST_TRACED_IN";

/// The path of the pool in a traced child, which runs the operation; `None` in the test itself.
fn pool_of_child() -> Option<PathBuf> {
    std::env::var_os(TRACED_IN).map(|dir| pool_in(Path::new(&dir)))
}

fn pool_in(dir: &Path) -> PathBuf {
    dir.join("x.pm")
}

/// In the traced child: runs the operation, whose system calls are counted, and then `check`, with the state and whether the operation succeeded.
fn operate<S>(mut state: S, operation: impl FnOnce(&mut S) -> bool, check: impl FnOnce(S, bool)) -> ! {
    counting(true);
    let is_done = operation(&mut state);
    counting(false);
    check(state, is_done);
    std::process::exit(if is_done { DONE } else { NOT_DONE });
}

/// Runs this test again as a traced child, which calls `operate`.
fn run(test: &str, dir: &Path, injection: Injection) -> Outcome {
    let mut stderr = tempfile::tempfile().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(TRACED_IN, dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr.try_clone().unwrap());
    let outcome = Traced::new(command, injection).between_marks().run();
    let is_killed = injection.fault == Fault::Kill && outcome.hit.is_some();
    let is_expected = match outcome.end {
        End::Exit(DONE) => !is_killed,
        End::Exit(NOT_DONE) => !is_killed && outcome.hit.is_some(),
        End::Signal(signal) => is_killed && signal == libc::SIGKILL,
        _ => false,
    };
    if !is_expected {
        let mut text = String::new();
        stderr.rewind().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        panic!("in {}: {outcome}: {text}", dir.display());
    }
    outcome
}

/// Tries each fault at the calls of a child of `test`, in a new directory each time. `prepare` fills the directory before, `check` examines it after.
fn try_faults(test: &str, prepare: impl Fn(&Path), check: impl Fn(&Path, &Outcome)) {
    for parent in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
        sweep(test, &FAULTS, STEP, |injection| {
            let dir = tempfile::tempdir_in(&parent).unwrap();
            prepare(dir.path());
            let outcome = run(test, dir.path(), injection);
            check(dir.path(), &outcome);
            outcome
        });
    }
}

fn options() -> RegionOptions {
    RegionOptions::new()
}

fn create(path: &Path) -> Result<Pool, PoolError> {
    Pool::create(path, OLD_BYTES, &options(), &PoolOptions::new())
}

fn open(path: &Path) -> Result<Pool, PoolError> {
    Pool::open(path, &options())
}

fn set_root(pool: &Pool, name: &str) -> bool {
    pool.scope(|pm| {
        let value = pm.write(pm.claim(pool.data().start).unwrap(), &7_u64);
        pm.set_root_in_flight(name, pm.flush(value)).is_ok()
    })
}

fn has_root(pool: &Pool, name: &str) -> bool {
    pool.scope(|pm| pm.root::<u64>(name).unwrap().is_some_and(|root| pm.read(root).unwrap() == 7))
}

/// The names of the files in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// In the traced child: creates a pool, and checks that it exists and is usable if and only if the creation succeeded.
fn create_in_child(path: &Path) -> ! {
    let operation = |created: &mut Option<Pool>| {
        *created = create(path).ok();
        created.is_some()
    };
    operate(None, operation, |created, is_done| {
        assert_eq!(path.exists(), is_done);
        if let Some(pool) = created {
            assert!(set_root(&pool, "a") && has_root(&pool, "a"));
        }
    })
}

/// Checks that the directory has only the pool, or no file if creation failed. A killed child may leave a temporary file.
fn check_created_files(dir: &Path, outcome: &Outcome) {
    match outcome.end {
        End::Exit(DONE) => assert_eq!(names(dir), ["x.pm"], "{outcome}"),
        End::Exit(_) => assert_eq!(names(dir), [""; 0], "{outcome}"),
        _ => {}
    }
}

#[test]
fn creation_is_atomic() {
    if let Some(path) = pool_of_child() {
        create_in_child(&path);
    }
    try_faults(
        "creation_is_atomic",
        |_| (),
        |dir, outcome| {
            check_created_files(dir, outcome);
            let path = pool_in(dir);
            match open(&path) {
                Ok(_) => {}
                Err(error) if path.exists() => panic!("{outcome}: {error:?}"),
                Err(_) => drop(create(&path).unwrap()),
            }
        },
    );
}

/// Makes `O_TMPFILE` fail for this thread, as on a file system without it. The filter ignores the bit `O_DIRECTORY`, which other opens have, too.
fn forbid_tmpfile() {
    let tmpfile = (libc::O_TMPFILE & !libc::O_DIRECTORY).cast_unsigned();
    syscall_filter::set_result(libc::SYS_openat, Some((2, tmpfile)), errno_result(libc::EOPNOTSUPP));
}

#[test]
fn creation_with_temporary_name_is_atomic() {
    if let Some(path) = pool_of_child() {
        forbid_tmpfile();
        create_in_child(&path);
    }
    try_faults(
        "creation_with_temporary_name_is_atomic",
        |_| (),
        |dir, outcome| {
            check_created_files(dir, outcome);
            let path = pool_in(dir);
            if path.exists() {
                open(&path).unwrap_or_else(|error| panic!("{outcome}: {error:?}"));
                std::fs::remove_file(&path).unwrap();
            }
            // The next process removes the temporary file of a killed one.
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    forbid_tmpfile();
                    create(&path).map(drop).unwrap_or_else(|error| panic!("{outcome}: {error:?}"));
                });
            });
            assert_eq!(names(dir), ["x.pm"], "{outcome}");
        },
    );
}

#[test]
fn growth_is_atomic_under_faults() {
    if let Some(path) = pool_of_child() {
        let pool = create(&path).unwrap();
        assert!(set_root(&pool, "a"));
        operate(
            pool,
            |pool| pool.grow(NEW_BYTES).is_ok(),
            |mut pool, is_done| {
                assert_eq!(pool.pool_bytes(), if is_done { NEW_BYTES } else { OLD_BYTES });
                assert!(has_root(&pool, "a"));
                // The second growth succeeds, unless a failed sync has poisoned the region.
                let is_poisoned = pool.pmem().fence().is_err();
                assert!(is_poisoned || pool.grow(NEW_BYTES).is_ok());
                assert!(is_poisoned || (set_root(&pool, "b") && has_root(&pool, "b")));
            },
        );
    }
    try_faults(
        "growth_is_atomic_under_faults",
        |_| (),
        |dir, outcome| {
            let pool = open(&pool_in(dir)).unwrap_or_else(|error| panic!("{outcome}: {error:?}"));
            assert!([OLD_BYTES, NEW_BYTES].contains(&pool.pool_bytes()), "{outcome}");
            assert!(has_root(&pool, "a"), "{outcome}");
        },
    );
}

/// As above, in place, by a handle that other threads may use meanwhile.
#[test]
fn growth_in_place_is_atomic_under_faults() {
    if let Some(path) = pool_of_child() {
        let region = RegionOptions::new().reserve(NEW_BYTES);
        let pool = Pool::create(&path, OLD_BYTES, &region, &PoolOptions::new()).unwrap();
        assert!(set_root(&pool, "a"));
        operate(
            pool,
            |pool| pool.grow_in_place(NEW_BYTES).is_ok(),
            |mut pool, is_done| {
                assert_eq!(pool.pool_bytes(), if is_done { NEW_BYTES } else { OLD_BYTES });
                assert!(has_root(&pool, "a"));
                let is_poisoned = pool.pmem().fence().is_err();
                // If the mapping has failed, the addresses are given up, and the pool grows when it is alone.
                assert!(is_poisoned || pool.grow_in_place(NEW_BYTES).is_ok() || pool.grow(NEW_BYTES).is_ok());
                assert!(is_poisoned || (set_root(&pool, "b") && has_root(&pool, "b")));
            },
        );
    }
    try_faults(
        "growth_in_place_is_atomic_under_faults",
        |_| (),
        |dir, outcome| {
            let pool = open(&pool_in(dir)).unwrap_or_else(|error| panic!("{outcome}: {error:?}"));
            assert!([OLD_BYTES, NEW_BYTES].contains(&pool.pool_bytes()), "{outcome}");
            assert!(has_root(&pool, "a"), "{outcome}");
        },
    );
}

/// Creates a pool whose growth was interrupted when only the magic of the new backup was stored, with a hole before it. The first line is corrupted.
fn create_corrupted(path: &Path) {
    let pool = create(path).unwrap();
    assert!(set_root(&pool, "a"));
    drop(pool);
    let mut bytes = std::fs::read(path).unwrap();
    bytes.resize(usize::try_from(NEW_BYTES).unwrap(), 0);
    let magic = bytes[..8].to_vec();
    let backup = bytes.len() - 4096;
    bytes[backup..backup + 8].copy_from_slice(&magic);
    bytes[..64].fill(0xff);
    std::fs::write(path, &bytes).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, OLD_BYTES, 8192).unwrap();
}

#[test]
fn corrupted_pool_opens_after_failed_opening() {
    if let Some(path) = pool_of_child() {
        let operation = |opened: &mut Option<Pool>| {
            *opened = open(&path).ok();
            opened.is_some()
        };
        operate(None, operation, |opened, _| {
            if let Some(pool) = opened {
                assert!(has_root(&pool, "a") && set_root(&pool, "b"));
            }
        });
    }
    try_faults(
        "corrupted_pool_opens_after_failed_opening",
        |dir| create_corrupted(&pool_in(dir)),
        |dir, outcome| {
            let pool = open(&pool_in(dir)).unwrap_or_else(|error| panic!("{outcome}: {error:?}"));
            assert!(pool.pool_bytes() == OLD_BYTES && has_root(&pool, "a"), "{outcome}");
        },
    );
}

/// Opens a pool with each call failing in turn. In the page domain the kernel reports a failed write-back once: if an open receives the report while
/// it makes the file's contents durable, it marks the file for the next open.
fn check_marks(test: &str, keep: bool) {
    let options = |keep| options().keep_pages(keep);
    if let Some(path) = pool_of_child() {
        operate((), |()| Pool::open(&path, &options(keep)).is_ok(), |(), _| ());
    }
    // For each failing msync, in order, whether the file was marked; and the number of other calls that sync the file.
    let (marks, syncs) = (RefCell::new(Vec::new()), Cell::new(0));
    sweep(test, &[Fault::Error(libc::EIO)], 1, |injection| {
        // This directory is on a disk, even if the directory for temporary files is in memory.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = pool_in(dir.path());
        drop(create(&path).unwrap());
        // Brings the file's pages into the page cache.
        std::fs::read(&path).unwrap();
        let outcome = run(test, dir.path(), injection);
        let is_marked = Pool::open(&path, &options(true)).unwrap().pmem().poison_if_writes_were_lost();
        match outcome.hit.map(|hit| hit.number) {
            Some(libc::SYS_fdatasync | libc::SYS_fsync) => {
                syncs.set(syncs.get() + 1);
                assert!(is_marked, "{outcome}");
            }
            Some(libc::SYS_msync) => marks.borrow_mut().push(is_marked),
            _ => assert!(!is_marked, "{outcome}"),
        }
        outcome
    });
    // If the region keeps the pages, the first calls of msync write them back, one for each range of pages, and their failure must mark the file. How
    // many there are may differ between trials, because the kernel may drop a page. `Pool::attach` makes the last calls, for its own stores. The
    // next open repeats these stores, so they need no mark.
    if std::env::var_os("PM_FAULTS_ONLY").is_some() {
        return;
    }
    let marks = marks.into_inner();
    assert!(keep || syncs.get() > 0, "no call synced the file: is it in memory?");
    assert!(marks.len() > 1, "{marks:?}");
    assert_eq!(marks.first(), Some(&keep), "{marks:?}");
    assert_eq!(marks.last(), Some(&false), "{marks:?}");
    assert!(keep || !marks.contains(&true), "{marks:?}");
}

#[test]
fn failed_sync_marks_file() {
    check_marks("failed_sync_marks_file", false);
}

#[test]
fn failed_sync_marks_file_with_kept_pages() {
    check_marks("failed_sync_marks_file_with_kept_pages", true);
}
