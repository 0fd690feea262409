//! Threads on one file system: each finds its own files as it has left them, calls on the same names end as if one came after the other, and everything is
//! accounted for.

use fastrand::Rng;
use pm_core::Region;
use pm_fs::{Fs, FsError, FsOptions, Handle, NewFile, SetAttributes};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 3;
const DIRS: usize = 2;

fn new() -> NewFile {
    NewFile { mode: 0o755, uid: 0, gid: 0, umask: 0 }
}

/// Calls of each thread. `PM_FS_CALLS` sets it.
fn calls() -> u64 {
    std::env::var("PM_FS_CALLS").map_or(4000, |count| count.parse().expect("a number"))
}

fn formatted() -> Fs<Region> {
    let fs = Fs::format(Region::anonymous(64 << 20).unwrap(), &FsOptions::new()).unwrap();
    for dir in 0..DIRS {
        fs.root().mkdir(format!("{dir}"), new()).unwrap();
    }
    fs
}

/// In each directory, the contents of a thread's files by name.
type Files = [BTreeMap<String, Vec<u8>>; DIRS];

fn contents(dir: &Handle<Region>, name: &str) -> Vec<u8> {
    let file = dir.lookup(name).unwrap();
    let mut found = vec![0; usize::try_from(file.attributes().unwrap().size).unwrap()];
    assert_eq!(file.read_at(0, &mut found).unwrap(), found.len());
    found
}

/// Calls of one thread on its own names, in directories that it shares with the others.
fn own_names(fs: &Fs<Region>, thread: u64) -> Files {
    let mut random = Rng::with_seed(thread);
    let dirs = [0, 1].map(|dir| fs.lookup(format!("{dir}")).unwrap());
    let mut files = Files::default();
    for _ in 0..calls() {
        let (from, to) = (random.usize(0..DIRS), random.usize(0..DIRS));
        let name = format!("{thread} {}", random.u8(0..12));
        match random.u8(0..4) {
            0 => {
                let made = dirs[from].create(&name, new());
                assert_eq!(made.is_err(), files[from].contains_key(&name), "{made:?}");
                if let Ok(file) = made {
                    let bytes = vec![random.u8(..); random.usize(0..40_000)];
                    assert_eq!(file.write_at(0, &bytes).unwrap(), bytes.len());
                    files[from].insert(name, bytes);
                }
            }
            1 => {
                let removed = dirs[from].unlink(&name);
                assert_eq!(removed.is_ok(), files[from].remove(&name).is_some(), "{removed:?}");
            }
            2 => {
                let new = format!("{thread} {}", random.u8(0..12));
                let renamed = dirs[from].rename(&name, &dirs[to], &new);
                let moved = files[from].remove(&name);
                assert_eq!(renamed.is_ok(), moved.is_some(), "{renamed:?}");
                files[to].extend(moved.map(|bytes| (new, bytes)));
            }
            _ => {
                if let Some(bytes) = files[from].get_mut(&name) {
                    assert!(contents(&dirs[from], &name) == *bytes, "{name}");
                    assert_eq!(dirs[from].lookup(&name).unwrap().append(&[7; 64]).unwrap(), 64);
                    bytes.extend([7; 64]);
                }
            }
        }
    }
    files
}

#[test]
fn each_thread_finds_its_own_files() {
    let fs = formatted();
    let files = std::thread::scope(|scope| {
        let fs = &fs;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || own_names(fs, thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for dir in 0..DIRS {
        let handle = fs.lookup(format!("{dir}")).unwrap();
        let expected: BTreeMap<_, _> = files.iter().flat_map(|files| files[dir].clone()).collect();
        assert_eq!(handle.entries(0).unwrap().len(), expected.len());
        for (name, bytes) in expected {
            assert!(contents(&handle, &name) == bytes, "{name}");
        }
    }
    let problems = fs.check().problems;
    assert!(problems.is_empty(), "{problems:#?}");
}

/// A call on names that all threads use: files, and directories that move into each other.
fn same_names(dirs: &[Handle<Region>; DIRS], random: &mut Rng) -> Result<(), FsError> {
    let [mut from, mut to] = [0; 2].map(|_| dirs[random.usize(0..DIRS)].clone());
    let [name, other, inner] = [0; 3].map(|_| format!("{}", random.u8(0..4)));
    for dir in [&mut from, &mut to] {
        if random.bool() {
            *dir = dir.lookup(&inner)?;
        }
    }
    match random.u8(0..9) {
        0 | 1 => from.create(&name, new())?.write_at(0, &[1; 5000]).map(drop),
        2 | 3 => from.mkdir(&name, new()).map(drop),
        4 => from.unlink(&name),
        5 => from.rmdir(&name),
        6 => from.rename(&name, &to, &other),
        7 => from.exchange(&name, &to, &other),
        _ => to.link(&from.lookup(&name)?, &other),
    }
}

#[test]
fn calls_on_the_same_names_leave_everything_accounted_for() {
    let fs = formatted();
    let dirs = [0, 1].map(|dir| fs.lookup(format!("{dir}")).unwrap());
    let succeeded: u64 = std::thread::scope(|scope| {
        let calls = |thread| {
            let (mut random, mut succeeded) = (Rng::with_seed(thread), 0);
            for _ in 0..calls() {
                match same_names(&dirs, &mut random) {
                    Ok(()) => succeeded += 1,
                    Err(
                        FsError::NotFound
                        | FsError::Exists
                        | FsError::NotEmpty
                        | FsError::IsADirectory
                        | FsError::NotADirectory
                        | FsError::NotPermitted
                        | FsError::NoSpace
                        | FsError::Invalid,
                    ) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            succeeded
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || calls(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(succeeded > calls() / 10, "{succeeded} calls have succeeded");
    let problems = fs.check().problems;
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Repeats `call` for two seconds beside chmod(2) of a file, and checks that it does not fail.
fn check_beside_chmod(file: &Handle<Region>, call: impl Fn() -> Result<(), FsError>) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let modes = (0..).take_while(|_| !stop.load(Ordering::Relaxed));
            modes.for_each(|mode| {
                let set = SetAttributes { mode: Some(mode & 0o777), ..SetAttributes::default() };
                file.set_attributes(&set).unwrap();
            });
        });
        let end = Instant::now() + Duration::from_secs(2);
        let mut done = Ok(());
        while Instant::now() < end && done.is_ok() {
            done = call();
        }
        stop.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}

#[test]
fn lookup_beside_chmod_reports_no_corruption() {
    let fs = formatted();
    let file = fs.root().create("file", new()).unwrap();
    check_beside_chmod(&file, || fs.root().lookup("file").map(drop));
}

/// A directory is moved below the one whose attributes change.
#[test]
fn rename_beside_chmod_of_an_ancestor_reports_no_corruption() {
    let fs = formatted();
    let root = fs.root();
    let a = root.mkdir("a", new()).unwrap();
    let c = a.mkdir("b", new()).unwrap().mkdir("c", new()).unwrap();
    root.mkdir("moved", new()).unwrap();
    check_beside_chmod(&a, || {
        root.rename("moved", &c, "moved").and_then(|()| c.rename("moved", &root, "moved"))
    });
}

/// A clock that a thread with the name `slow` is late to hear.
fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(1000);
    let now = NOW.fetch_add(1, Ordering::SeqCst);
    if std::thread::current().name() == Some("slow") {
        std::thread::sleep(Duration::from_millis(500));
    }
    now
}

/// The time of a directory does not go back if two threads create files in it: the time is that at which the lock is held.
#[test]
fn time_of_a_directory_does_not_go_back() {
    let fs = Fs::format(Region::anonymous(4 << 20).unwrap(), &FsOptions::new().clock(clock)).unwrap();
    let dir = fs.root().mkdir("d", new()).unwrap();
    let (one, two) = std::thread::scope(|scope| {
        let slow = std::thread::Builder::new().name("slow".into());
        let slow = slow.spawn_scoped(scope, || drop(dir.create("slow", new()).unwrap())).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        drop(dir.create("fast", new()).unwrap());
        let one = dir.attributes().unwrap();
        slow.join().unwrap();
        (one, dir.attributes().unwrap())
    });
    assert!(one.mtime_ns <= two.mtime_ns && one.ctime_ns <= two.ctime_ns, "{one:?} {two:?}");
}
