//! Pools and regions on unusual file systems: overlays, full ones, ones without nameless files, with a limit of lengths, with failed write-backs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use answers::{answer, error};
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

const POOL_BYTES: u64 = 1 << 16;

/// For a child of the test: the directory where its file system is mounted.
const MOUNTED: &str = "PM_CORE_TEST_MOUNTED";

/// Runs `test` again in a mount namespace of its own, after the script `mount`, whose `$0` is `dir`. The child finds `mounted` in [`MOUNTED`].
fn run_mounted(test: &str, dir: &Path, mounted: &Path, mount: &str) {
    let script = format!(r#"{mount} && exec "$1" "$2" --exact --nocapture"#);
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        // Without root, as the root of a user namespace.
        command.arg("--map-root-user");
    }
    command.args(["/bin/sh", "-c", &script]).arg(dir).arg(std::env::current_exe().unwrap()).arg(test);
    let output = command.env(MOUNTED, mounted).output().unwrap();
    let [told, failed] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{mount}: {}: {told}{failed}", output.status);
    assert!(told.contains("1 passed"), "{mount}: {told}");
}

/// The case of an overlay for a child of the test: the number of its entry in [`OVERLAYS`].
const OVERLAY: &str = "PM_CORE_TEST_OVERLAY";

/// Names of overlays, the scripts that mount them, whose `$0` is the directory of all layers, and the domain of a region.
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
        "on a disk: not every overlay is volatile",
        r#"mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work" merged"#,
        Domain::Page,
    ),
    (
        "mounted by relative paths, in a directory whose namesake in the working directory is in memory",
        r#"mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged &&
        mount -t tmpfs tmpfs memory && mkdir memory/upper && cd memory"#,
        Domain::Page,
    ),
    (
        "the path of the upper layer leads to the overlay itself, and from there again",
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
        // The same for an existing file.
        check(RegionOptions::new().open(&path).unwrap());
        return;
    }
    for (index, (name, mount, _)) in OVERLAYS.into_iter().enumerate() {
        println!("overlay: {name}");
        // On a disk. Layers in memory are mounted in it.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mount = format!(
            r#"cd "$0" && mkdir lower memory upper work merged && export {OVERLAY}={index} && {mount}"#
        );
        let test = "domain_on_overlay_is_that_of_its_upper_layer";
        run_mounted(test, dir.path(), &dir.path().join("merged"), &mount);
    }
}

/// Runs `body` in a separate process, in whose mount namespace there is a small file system.
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

/// A pool whose growth was interrupted before the first store at its new end, on a file system that is full since.
fn pool_with_a_hole_at_its_end(dir: &Path) -> PathBuf {
    let path = dir.join("pool.pm");
    drop(Pool::create(&path, POOL_BYTES, &sparse(), &PoolOptions::new()).unwrap());
    OpenOptions::new().write(true).open(&path).unwrap().set_len(2 * POOL_BYTES).unwrap();
    let other = File::create(dir.join("other")).unwrap();
    let is_stored = |page: u64| other.write_at(&[1; 4096], page * 4096).is_ok_and(|len| len == 4096);
    let stored_count = (0..).take_while(|page| is_stored(*page)).count();
    assert!(stored_count < 256, "the file system is not full");
    path
}

#[test]
fn pool_opens_after_interrupted_growth() {
    on_small_tmpfs("pool_opens_after_interrupted_growth", |dir| {
        let path = pool_with_a_hole_at_its_end(dir);
        for options in [sparse().read_only(), sparse().scratch(), sparse()] {
            let pool = Pool::open(&path, &options).unwrap();
            assert_eq!((pool.pool_bytes(), pool.header_state()), (POOL_BYTES, HeaderState::Intact));
        }
    });
}

#[test]
fn pool_opens_with_corrupted_header() {
    on_small_tmpfs("pool_opens_with_corrupted_header", |dir| {
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
            // From the backup of the header on, which is no hole.
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

/// For a child of the test: the pool that it grows, and the system call at which it is killed, if any.
const GROWN: &str = "PM_CORE_TEST_GROWN";
const KILLED_AT: &str = "PM_CORE_TEST_KILLED_AT";

/// The pool grows by more than the file system has, in a process that is killed at a system call or not.
#[test]
fn pool_opens_after_growth_without_space() {
    let test = "pool_opens_after_growth_without_space";
    let options = || RegionOptions::new().huge_pages(HugePages::Never);
    if let Some(path) = std::env::var_os(GROWN) {
        let mut pool = Pool::open(&path, &options()).unwrap();
        if let Ok(call) = std::env::var(KILLED_AT) {
            answer(call.parse().unwrap(), None, answers::KILL);
        }
        assert!(matches!(pool.grow(2 << 20), Err(PoolError::Region(OpenError::NoSpace { .. }))));
        return;
    }
    on_small_tmpfs(test, |dir| {
        let path = dir.join("pool.pm");
        for (name, killed_at) in [
            ("alive", None),
            ("fallocate", Some(libc::SYS_fallocate)),
            ("ftruncate", Some(libc::SYS_ftruncate)),
        ] {
            drop(Pool::create(&path, POOL_BYTES, &options(), &PoolOptions::new()).unwrap());
            let mut grows = Command::new(std::env::current_exe().unwrap());
            grows.args([test, "--exact"]).env(GROWN, &path);
            if let Some(call) = killed_at {
                grows.env(KILLED_AT, call.to_string());
            }
            let grown = grows.output().unwrap();
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

/// NFS, 9p and most of FUSE have neither nameless files nor flags of renames. A filter of system calls imitates them.
#[test]
fn pool_is_created_without_nameless_files() {
    for has_rename_flags in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool.pm");
        // In a thread, as the filter holds for that thread only.
        std::thread::scope(|threads| {
            let made = threads.spawn(|| {
                answer(libc::SYS_openat, Some((2, TMPFILE)), error(libc::EOPNOTSUPP));
                if !has_rename_flags {
                    answer(libc::SYS_renameat2, None, error(libc::EINVAL));
                }
                let create = || Pool::create(&path, POOL_BYTES, &RegionOptions::new(), &PoolOptions::new());
                drop(create().unwrap());
                let again = create();
                let is_refused = matches!(again, Err(PoolError::Region(OpenError::Exists { .. })));
                assert!(is_refused, "flags of renames: {has_rename_flags}: {again:?}");
            });
            made.join().unwrap();
        });
        let count = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(count, 1, "flags of renames: {has_rename_flags}: no other name is left");
        Pool::open(&path, &RegionOptions::new()).unwrap();
    }
}

/// Set for the process whose files have a limit of length.
const LIMITED: &str = "PM_CORE_TEST_LENGTH_LIMIT";

#[test]
fn length_above_limit_is_error_without_signal() {
    let test = "length_above_limit_is_error_without_signal";
    if std::env::var_os(LIMITED).is_none() {
        // POSIX: in units of 512 bytes.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"ulimit -f 128 && exec "$0" "$1" --exact --nocapture"#]);
        let output = shell.arg(std::env::current_exe().unwrap()).arg(test).env(LIMITED, "").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{}: {told}", output.status);
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

/// The kernel reports a failed write-back once. The reader receives the report and fails; a later opening that keeps the pages still learns of the
/// lost writes.
#[cfg(target_arch = "x86_64")]
#[test]
fn report_received_by_reader_is_kept() {
    for options in [RegionOptions::new().read_only(), RegionOptions::new().scratch()] {
        // Not in memory.
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file.pm");
        std::fs::write(&path, vec![7; 1 << 16]).unwrap();
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                answer(libc::SYS_fdatasync, None, error(libc::EIO));
                assert!(options.open(&path).is_err(), "{options:?}");
            });
            reader.join().unwrap();
        });
        let next = RegionOptions::new().keep_pages(true).open(&path).unwrap();
        assert_eq!(next.domain(), Domain::Page);
        assert!(next.poison_if_writes_were_lost(), "{options:?}");
    }
}

/// An opening that keeps the pages receives the report of a failed write-back and marks the file. Then `other` opens the file. Returns whether the
/// next opening that keeps the pages still learns of the lost writes.
#[cfg(target_arch = "x86_64")]
fn next_learns_of_lost_writes(is_pool: bool, other: impl FnOnce(&Path)) -> bool {
    // Not in memory.
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("file.pm");
    if is_pool {
        drop(Pool::create(&path, 1 << 16, &RegionOptions::new(), &PoolOptions::new()).unwrap());
    } else {
        std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    }
    let keep = RegionOptions::new().keep_pages(true);
    std::thread::scope(|threads| {
        let told = threads.spawn(|| {
            answer(libc::SYS_fdatasync, None, error(libc::EIO));
            keep.open(&path).unwrap();
        });
        told.join().unwrap();
    });
    other(&path);
    let next = keep.open(&path).unwrap();
    assert_eq!(next.domain(), Domain::Page);
    next.poison_if_writes_were_lost()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn refused_opening_leaves_the_mark_of_lost_writes() {
    assert!(next_learns_of_lost_writes(true, |_| ()));
    assert!(next_learns_of_lost_writes(true, |path| {
        let refused = Pool::open_with(path, &RegionOptions::new(), |_| Err(PoolError::NotAPool));
        assert!(matches!(refused, Err(PoolError::NotAPool)), "{refused:?}");
    }));
    assert!(next_learns_of_lost_writes(false, |path| {
        let refused = Pool::open(path, &RegionOptions::new());
        assert!(matches!(refused, Err(PoolError::NotAPool)), "{refused:?}");
    }));
    let successful = |path: &Path| drop(Pool::open(path, &RegionOptions::new()).unwrap());
    assert!(!next_learns_of_lost_writes(true, successful), "a successful opening removes the mark");
}
