//! Pools and regions on unusual file systems: overlays; full; without `O_TMPFILE`; with a limit of the file length; with failed write-backs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod syscall_filter;

use pm_core::fault::MediumFault;
use pm_core::{
    Domain, HeaderState, HugePages, Medium, OpenError, Pmem, Pool, PoolError, PoolOptions, Region,
    RegionOptions,
};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use syscall_filter::{errno_result, set_result};

const POOL_BYTES: u64 = 1 << 16;

/// The environment variable for a child of a test: the directory where its file system is mounted.
const MOUNTED: &str = "PM_CORE_TEST_MOUNTED";

/// Runs `test` again in a child with its own mount namespace, after the script `mount`, whose `$0` is `dir`. [`MOUNTED`] is `mounted` in the child.
fn run_mounted(test: &str, dir: &Path, mounted: &Path, mount: &str) {
    let script = format!(r#"{mount} && exec "$1" "$2" --exact --nocapture"#);
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        // An ordinary user may mount only as the root of a user namespace.
        command.arg("--map-root-user");
    }
    command.args(["/bin/sh", "-c", &script]).arg(dir).arg(std::env::current_exe().unwrap()).arg(test);
    let output = command.env(MOUNTED, mounted).output().unwrap();
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{mount}: {}: {stdout}{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "{mount}: {stdout}");
}

/// The environment variable for a child of the overlay test: the index of its case in [`OVERLAYS`].
const OVERLAY: &str = "PM_CORE_TEST_OVERLAY";

/// The cases: a name, the script that mounts the overlay, whose `$0` is the directory of all layers, and the expected domain of a region.
const OVERLAYS: [(&str, &str, Domain); 5] = [
    (
        "upper layer in memory",
        r#"mount -t tmpfs tmpfs memory && mkdir memory/upper memory/work &&
        mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/memory/upper,workdir=$0/memory/work" merged"#,
        Domain::Volatile,
    ),
    (
        "mounted volatile",
        r#"mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work,volatile" merged"#,
        Domain::Volatile,
    ),
    (
        "all layers on a disk",
        r#"mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work" merged"#,
        Domain::Page,
    ),
    (
        "mounted by relative paths; from the later working directory, the upper layer's leads to memory",
        r#"mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged &&
        mount -t tmpfs tmpfs memory && mkdir memory/upper && cd memory"#,
        Domain::Page,
    ),
    (
        "the path of the upper layer leads to the overlay itself, in a cycle",
        r#"mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work" merged &&
        mkdir merged/upper merged/merged && mount --bind merged "$0""#,
        Domain::Page,
    ),
];

#[test]
fn domain_on_overlay_is_that_of_its_upper_layer() {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        let index: usize = std::env::var(OVERLAY).unwrap().parse().unwrap();
        let (name, _, expected) = OVERLAYS[index];
        let path = Path::new(&dir).join("data.pm");
        let check = |region: Region| {
            assert_eq!((region.medium(), region.domain()), (Medium::File, expected), "{name}")
        };
        check(RegionOptions::new().create(&path, 1 << 16).unwrap());
        // The domain of an existing file is the same.
        check(RegionOptions::new().open(&path).unwrap());
        return;
    }
    for (index, (name, mount, _)) in OVERLAYS.into_iter().enumerate() {
        println!("overlay: {name}");
        // This directory is on a disk; layers in memory are mounted in it.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mount = format!(
            r#"cd "$0" && mkdir lower memory upper work merged && export {OVERLAY}={index} && {mount}"#
        );
        let test = "domain_on_overlay_is_that_of_its_upper_layer";
        run_mounted(test, dir.path(), &dir.path().join("merged"), &mount);
    }
}

/// Runs `body` in a child process, with the directory of a small tmpfs that is mounted in the child's mount namespace.
fn on_small_tmpfs(test: &str, body: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        return body(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    run_mounted(test, dir.path(), dir.path(), r#"mount -t tmpfs -o size=1m,mode=700 tmpfs "$0""#);
}

fn sparse() -> RegionOptions {
    RegionOptions::new().sparse(true).huge_pages(HugePages::Never)
}

/// A pool whose growth was interrupted before the first store at its new end, on a file system that has become full since.
fn pool_with_a_hole_at_its_end(dir: &Path) -> PathBuf {
    let path = dir.join("pool.pm");
    drop(Pool::create(&path, POOL_BYTES, &sparse(), &PoolOptions::new()).unwrap());
    OpenOptions::new().write(true).open(&path).unwrap().set_len(2 * POOL_BYTES).unwrap();
    let other = File::create(dir.join("other")).unwrap();
    let is_stored = |page: u64| other.write_at(&[1; 4096], page * 4096).is_ok_and(|len| len == 4096);
    let stored_count = (0..).take_while(|page| is_stored(*page)).count();
    assert!(stored_count < 256, "the file system must be full");
    path
}

#[test]
fn pool_on_full_file_system_opens_after_interrupted_growth() {
    on_small_tmpfs("pool_on_full_file_system_opens_after_interrupted_growth", |dir| {
        let path = pool_with_a_hole_at_its_end(dir);
        for options in [sparse().read_only(), sparse().scratch(), sparse()] {
            let pool = Pool::open(&path, &options).unwrap();
            assert_eq!((pool.pool_bytes(), pool.header_state()), (POOL_BYTES, HeaderState::Intact));
        }
    });
}

#[test]
fn pool_on_full_file_system_opens_with_corrupted_header() {
    on_small_tmpfs("pool_on_full_file_system_opens_with_corrupted_header", |dir| {
        let path = pool_with_a_hole_at_its_end(dir);
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0xDE], 70).unwrap();
        for options in [sparse().read_only(), sparse().scratch(), sparse()] {
            let pool = Pool::open(&path, &options).unwrap();
            assert_eq!(pool.pool_bytes(), POOL_BYTES);
            assert!(matches!(pool.header_state(), HeaderState::PrimaryCorrupted(_)));
        }
    });
}

#[test]
fn try_load_returns_zeroes_for_holes() {
    on_small_tmpfs("try_load_returns_zeroes_for_holes", |dir| {
        let path = pool_with_a_hole_at_its_end(dir);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for options in [sparse().read_only(), sparse()] {
            let pool = Pool::open(&path, &options).unwrap();
            // The range starts in the backup of the header, which is no hole.
            let start = POOL_BYTES - 8;
            let mut bytes = [1; 3 * 4096];
            assert_eq!(pool.pmem().try_load(start, &mut bytes), Ok(()));
            assert!(bytes[8..].iter().all(|byte| *byte == 0));
            file.set_len(POOL_BYTES + 4096).unwrap();
            assert_eq!(pool.pmem().try_load(start, &mut bytes), Err(MediumFault));
            drop(pool);
            file.set_len(2 * POOL_BYTES).unwrap();
        }
    });
}

/// The environment variables for a child of the test: the pool that it grows, and the system call at which it is killed, if any.
const GROWN: &str = "PM_CORE_TEST_GROWN";
const KILLED_AT: &str = "PM_CORE_TEST_KILLED_AT";

/// The pool grows by more than the free space of the file system, in a process that is killed at a system call, or is not killed.
#[test]
fn pool_opens_after_growth_without_space() {
    let test = "pool_opens_after_growth_without_space";
    let options = || RegionOptions::new().huge_pages(HugePages::Never);
    if let Some(path) = std::env::var_os(GROWN) {
        let mut pool = Pool::open(&path, &options()).unwrap();
        if let Ok(call) = std::env::var(KILLED_AT) {
            set_result(call.parse().unwrap(), None, syscall_filter::KILL);
        }
        assert!(matches!(pool.grow(2 << 20), Err(PoolError::Region(OpenError::NoSpace { .. }))));
        return;
    }
    on_small_tmpfs(test, |dir| {
        let path = dir.join("pool.pm");
        for (name, killed_at) in [
            ("not killed", None),
            ("fallocate", Some(libc::SYS_fallocate)),
            ("ftruncate", Some(libc::SYS_ftruncate)),
        ] {
            drop(Pool::create(&path, POOL_BYTES, &options(), &PoolOptions::new()).unwrap());
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args([test, "--exact"]).env(GROWN, &path);
            if let Some(call) = killed_at {
                child.env(KILLED_AT, call.to_string());
            }
            let grown = child.output().unwrap();
            match killed_at {
                None => assert!(grown.status.success(), "{name}: {grown:?}"),
                Some(_) => assert_eq!(grown.status.signal(), Some(libc::SIGSYS), "{name}: {grown:?}"),
            }
            for options in [options().read_only(), options()] {
                let pool = Pool::open(&path, &options).unwrap();
                assert_eq!(
                    (pool.pool_bytes(), pool.header_state()),
                    (POOL_BYTES, HeaderState::Intact),
                    "{name}"
                );
            }
            std::fs::remove_file(&path).unwrap();
        }
    });
}

/// `__O_TMPFILE` in the flags of openat(2).
const TMPFILE: u32 = 0o20_000_000;

/// NFS, 9p and most FUSE file systems support neither `O_TMPFILE` nor the flags of renameat2(2). A filter of system calls imitates them.
#[test]
fn pool_is_created_without_o_tmpfile() {
    for has_rename_flags in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool.pm");
        // In a thread of its own, because the filter affects only that thread.
        std::thread::scope(|threads| {
            let creator = threads.spawn(|| {
                set_result(libc::SYS_openat, Some((2, TMPFILE)), errno_result(libc::EOPNOTSUPP));
                if !has_rename_flags {
                    set_result(libc::SYS_renameat2, None, errno_result(libc::EINVAL));
                }
                let create = || Pool::create(&path, POOL_BYTES, &RegionOptions::new(), &PoolOptions::new());
                drop(create().unwrap());
                let again = create();
                let is_refused = matches!(again, Err(PoolError::Region(OpenError::Exists { .. })));
                assert!(is_refused, "rename flags: {has_rename_flags}: {again:?}");
            });
            creator.join().unwrap();
        });
        let count = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(count, 1, "rename flags: {has_rename_flags}: no temporary name may be left");
        Pool::open(&path, &RegionOptions::new()).unwrap();
    }
}

/// The environment variable that is set for the child whose files have a limit of length.
const LIMITED: &str = "PM_CORE_TEST_LENGTH_LIMIT";

#[test]
fn length_above_limit_is_error_without_signal() {
    let test = "length_above_limit_is_error_without_signal";
    if std::env::var_os(LIMITED).is_none() {
        // POSIX defines the unit of the limit as 512 bytes.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"ulimit -f 128 && exec "$0" "$1" --exact --nocapture"#]);
        let output = shell.arg(std::env::current_exe().unwrap()).arg(test).env(LIMITED, "").output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{}: {stdout}", output.status);
        return;
    }
    let is_refused = |error: &OpenError| error.to_string().contains("RLIMIT_FSIZE");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pm");
    let options = RegionOptions::new();
    assert!(is_refused(&options.create(&path, 1 << 20).unwrap_err()));
    assert!(is_refused(&Region::anonymous(1 << 20).unwrap_err()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    drop(Pool::create(&path, 1 << 16, &options, &PoolOptions::new()).unwrap());
    let mut region = options.open(&path).unwrap();
    assert!(is_refused(&region.grow(1 << 20).unwrap_err()));
    drop(region);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 16);
    drop(Pool::open(&path, &options).unwrap());
}

/// The kernel reports a failed write-back once. A reader receives the report and fails; a later open that keeps the pages still detects the lost
/// writes.
#[cfg(target_arch = "x86_64")]
#[test]
fn write_back_error_received_by_reader_is_kept() {
    for options in [RegionOptions::new().read_only(), RegionOptions::new().scratch()] {
        // On a disk, not in memory.
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file.pm");
        std::fs::write(&path, vec![7; 1 << 16]).unwrap();
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                set_result(libc::SYS_fdatasync, None, errno_result(libc::EIO));
                assert!(options.open(&path).is_err(), "{options:?}");
            });
            reader.join().unwrap();
        });
        let next = RegionOptions::new().keep_pages(true).open(&path).unwrap();
        assert_eq!(next.domain(), Domain::Page);
        assert!(next.poison_if_writes_were_lost(), "{options:?}");
    }
}

/// An open that keeps the pages receives the report of a failed write-back and marks the file. Then `other` opens the file. Returns whether the
/// next open that keeps the pages still detects the lost writes.
#[cfg(target_arch = "x86_64")]
fn next_open_detects_lost_writes(is_pool: bool, other: impl FnOnce(&Path)) -> bool {
    // On a disk, not in memory.
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("file.pm");
    if is_pool {
        drop(Pool::create(&path, 1 << 16, &RegionOptions::new(), &PoolOptions::new()).unwrap());
    } else {
        std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    }
    let keep = RegionOptions::new().keep_pages(true);
    std::thread::scope(|threads| {
        let opener = threads.spawn(|| {
            set_result(libc::SYS_fdatasync, None, errno_result(libc::EIO));
            keep.open(&path).unwrap();
        });
        opener.join().unwrap();
    });
    other(&path);
    let next = keep.open(&path).unwrap();
    assert_eq!(next.domain(), Domain::Page);
    next.poison_if_writes_were_lost()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn refused_open_keeps_mark_of_lost_writes() {
    assert!(next_open_detects_lost_writes(true, |_| ()));
    assert!(next_open_detects_lost_writes(true, |path| {
        let refused = Pool::open_with(path, &RegionOptions::new(), |_| Err(PoolError::NotAPool));
        assert!(matches!(refused, Err(PoolError::NotAPool)), "{refused:?}");
    }));
    assert!(next_open_detects_lost_writes(false, |path| {
        let refused = Pool::open(path, &RegionOptions::new());
        assert!(matches!(refused, Err(PoolError::NotAPool)), "{refused:?}");
    }));
    let successful = |path: &Path| drop(Pool::open(path, &RegionOptions::new()).unwrap());
    assert!(!next_open_detects_lost_writes(true, successful), "a successful open removes the mark");
}
