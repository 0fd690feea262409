//! A process whose two threads change a file system is killed, again and again. After each kill everything that the threads have reported is there, and
//! everything is accounted for.

use pm_core::Pmem;
use pm_core::protection::{Method, Protection, ProtectionError};
use pm_fs::{Fs, FsError, FsOptions, Handle, NewFile};
use pm_testkit::run_and_kill;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// The environment variable for the child: the file of the file system.
const FILE: &str = "PM_FS_TEST_FILE";

/// Another one: the protection.
const METHOD: &str = "PM_FS_TEST_METHOD";

const THREADS: u8 = 2;

/// The files that a thread keeps.
const KEPT: u64 = 20;

fn new() -> NewFile {
    NewFile { mode: 0o644, uid: 0, gid: 0, umask: 0 }
}

/// A record of the log, of which the numbers of complete ones ascend.
fn record(number: u64) -> [u8; 40] {
    core::array::from_fn(|at| number.to_le_bytes()[at % 8])
}

fn contents(number: u64) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; usize::try_from(number * 977 % 60_000).unwrap()]
}

/// The number of records in a thread's log.
fn logged<P: Pmem>(dir: &Handle<P>) -> u64 {
    let log = dir.lookup("log").unwrap();
    let mut bytes = vec![0; usize::try_from(log.attributes().unwrap().size).unwrap()];
    assert_eq!(log.read_at(0, &mut bytes).unwrap(), bytes.len());
    let (records, rest) = bytes.as_chunks::<40>();
    assert!(rest.is_empty(), "a record is atomic");
    for (number, found) in (0..).zip(records) {
        assert_eq!(*found, record(number));
    }
    records.len() as u64
}

/// Changes of a thread, without end: a file is written under another name, renamed, and an old one removed; then the log gets a record.
fn run<P: Pmem>(fs: &Fs<P>, thread: u8) -> Result<(), FsError> {
    let dir = fs.lookup(format!("thread {thread}"))?;
    for number in logged(&dir).. {
        drop(dir.unlink("draft"));
        let file = dir.create("draft", new())?;
        file.write_at(0, &contents(number))?;
        dir.rename("draft", &dir, format!("{number}"))?;
        if number >= KEPT {
            match dir.unlink(format!("{}", number - KEPT)) {
                // The process that was killed has done so.
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        dir.lookup("log")?.append(&record(number))?;
        // Standard error is not buffered.
        std::io::stderr().write_all(&[thread]).unwrap();
    }
    unreachable!("the numbers do not end");
}

/// In a child: changes the file system until the child is killed.
fn change_if_child() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let method: Method = std::env::var(METHOD).unwrap().parse().unwrap();
    let fs = Fs::open_protected(path, &FsOptions::new(), &Protection::new(method)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || run(fs, thread).unwrap());
        }
    });
}

/// A file system with a directory and a log for each thread.
fn create(path: &Path) {
    let fs = Fs::create(path, 64 << 20, &FsOptions::new()).unwrap();
    for thread in 0..THREADS {
        let dir = fs.root().mkdir(format!("thread {thread}"), new()).unwrap();
        dir.create("log", new()).unwrap();
    }
}

/// Runs the test of this name as a child that [changes](change_if_child) a file system over this protection, and kills it, again and again. Returns the
/// number of changes of each thread.
fn survive(test: &str, method: Method, kills: u64) -> [u64; THREADS as usize] {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk.pm");
    create(&path);
    let mut random = fastrand::Rng::with_seed(1);
    let mut reported = [0; THREADS as usize];
    for kill in 0..kills {
        let time = Duration::from_millis(random.u64(20..150));
        let variables = [(FILE, path.as_os_str()), (METHOD, method.name().as_ref())];
        count(&run_and_kill(test, &variables, time), &mut reported);
        // The next open is protected, too: recovery runs in windows.
        let fs = Fs::open_protected(&path, &FsOptions::new(), &Protection::new(method)).unwrap();
        let report = fs.check();
        assert!(report.problems.is_empty(), "{method}, kill {kill}: {:#?}", report.problems);
        for (thread, reported) in reported.iter_mut().enumerate() {
            let dir = fs.lookup(format!("thread {thread}")).unwrap();
            let logged = logged(&dir);
            assert!(
                (*reported..=*reported + 1).contains(&logged),
                "{method}, kill {kill}: {logged} and {reported}"
            );
            *reported = logged;
            for number in logged.saturating_sub(KEPT)..logged {
                let mut found = vec![0; 70_000];
                let file = dir.lookup(format!("{number}"));
                // The one in progress may have removed the oldest.
                if file.is_err() && number + KEPT == logged {
                    continue;
                }
                let len = file.unwrap().read_at(0, &mut found).unwrap();
                assert!(found[..len] == contents(number), "{method}, kill {kill}: file {number}");
            }
        }
    }
    reported
}

/// The number of kills that `PM_KILLS` sets.
fn kills(default: u64) -> u64 {
    std::env::var("PM_KILLS").map_or(default, |count| count.parse().expect("a number"))
}

#[test]
fn reported_changes_survive_kills() {
    change_if_child();
    let reported = survive("kill::reported_changes_survive_kills", Method::None, kills(10));
    assert!(reported.iter().all(|count| *count > 50), "the threads have made {reported:?} changes");
}

#[test]
fn reported_changes_survive_kills_by_every_protection() {
    change_if_child();
    for method in Method::ALL {
        if !has(method) {
            println!("{method}: this machine has no protection keys");
            continue;
        }
        let test = "kill::reported_changes_survive_kills_by_every_protection";
        let reported = survive(test, method, kills(4));
        assert!(reported.iter().all(|count| *count > 5), "{method}: {reported:?} changes");
    }
}

/// Whether the machine has a protection.
pub(crate) fn has(method: Method) -> bool {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk.pm");
    Fs::create(&path, pm_fs::POOL_BYTES_MIN, &FsOptions::new()).unwrap().close().unwrap();
    match Fs::open_protected(&path, &FsOptions::new(), &Protection::new(method)) {
        Err(FsError::Protection(ProtectionError::NoKey(_))) => false,
        other => other.map(|_| true).unwrap(),
    }
}

/// Adds what the child has reported: bytes with the numbers of its threads.
fn count(reports: &[u8], reported: &mut [u64]) {
    for report in reports {
        let count = reported.get_mut(usize::from(*report));
        // All else is the message of a panic.
        *count.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(reports))) += 1;
    }
}
