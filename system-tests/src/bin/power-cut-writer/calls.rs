//! A load of calls of a pm-fs whose outcome can be checked after any crash: each thread has a directory, and the state of the directory after each number of
//! calls is known.
//!
//! A round of calls is for one file: it is created as a draft, appended to, overwritten, renamed, and the file of an older round is removed. The file of each
//! round says how far it came, so the directory alone shows the number of calls.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::thread;

use miette::{IntoDiagnostic, Result, ensure, miette};
use pm_fs::{Fs, FsError, FsOptions, Handle, NewFile};

const THREADS: u64 = 2;
const POOL_BYTES: u64 = 64 << 20;
/// The calls of a round.
const CALLS: u64 = 5;
/// The files that a thread keeps.
const KEPT: u64 = 16;
/// A report acknowledges all of these calls.
const CALLS_A_REPORT: u64 = 16;
const DRAFT: &str = "draft";

/// The files of a directory, with their contents.
type Files = BTreeMap<Vec<u8>, Vec<u8>>;

fn new() -> NewFile {
    NewFile { mode: 0o644, ..NewFile::default() }
}

fn directory(thread: u64) -> String {
    format!("thread {thread}")
}

/// What a round appends. Words, as each word of an overwrite is atomic.
fn appended(round: u64) -> Vec<u8> {
    let words = usize::try_from(1 + round * 977 % 2_500).unwrap_or(1);
    round.to_le_bytes().repeat(words)
}

/// What a round stores over the first word.
fn overwritten(round: u64) -> [u8; 8] {
    (!round).to_le_bytes()
}

/// Makes the call with this number, counted from zero.
fn call(dir: &Handle, number: u64) -> Result<(), FsError> {
    let round = number / CALLS;
    match number % CALLS {
        0 => dir.create(DRAFT, new()).map(drop),
        1 => dir.lookup(DRAFT)?.append(&appended(round)).map(drop),
        2 => dir.lookup(DRAFT)?.write_at(0, &overwritten(round)).map(drop),
        3 => dir.rename(DRAFT, dir, round.to_string()),
        _ if round >= KEPT => dir.unlink((round - KEPT).to_string()),
        // Nothing is old enough: a call of another kind that changes no name.
        _ => dir.lookup(round.to_string())?.write_at(0, &overwritten(round)).map(drop),
    }
}

/// The files of a directory after so many calls.
fn expected(calls: u64) -> Files {
    let (round, step) = (calls / CALLS, calls % CALLS);
    let whole = |round: u64| {
        let mut contents = appended(round);
        contents[..8].copy_from_slice(&overwritten(round));
        contents
    };
    let oldest = round.saturating_sub(KEPT);
    let mut files: Files =
        (oldest..round).map(|round| (round.to_string().into_bytes(), whole(round))).collect();
    match step {
        0 => {}
        1 => drop(files.insert(DRAFT.into(), Vec::new())),
        2 => drop(files.insert(DRAFT.into(), appended(round))),
        3 => drop(files.insert(DRAFT.into(), whole(round))),
        _ => drop(files.insert(round.to_string().into_bytes(), whole(round))),
    }
    files
}

fn files(dir: &Handle) -> Result<Files, FsError> {
    let mut files = Files::new();
    for entry in dir.entries(0)? {
        let file = dir.lookup(&entry.name)?;
        let mut contents = vec![0; usize::try_from(file.attributes()?.size).unwrap_or(0)];
        file.read_at(0, &mut contents)?;
        files.insert(entry.name, contents);
    }
    Ok(files)
}

/// The number of calls that a directory has the state after. Two numbers with the same state count as the greater one.
fn count(dir: &Handle) -> Result<u64> {
    let found = files(dir).into_diagnostic()?;
    let number = |name: &Vec<u8>| String::from_utf8_lossy(name).parse::<u64>().ok();
    let newest = found.keys().filter_map(number).max();
    let first = newest.map_or(0, |newest| newest * CALLS);
    let count = (first..first + 2 * CALLS).rev().find(|calls| expected(*calls) == found);
    count.ok_or_else(|| {
        let lens: Vec<_> =
            found.iter().map(|(name, contents)| (String::from_utf8_lossy(name), contents.len())).collect();
        miette!("the files {lens:?} are those after no call")
    })
}

/// Opens the file system, and checks that everything is accounted for.
fn open(path: &Path) -> Result<Fs> {
    let fs = Fs::open(path, &FsOptions::new()).into_diagnostic()?;
    let report = fs.check();
    ensure!(report.problems.is_empty(), "the check reports {:#?}", report.problems);
    Ok(fs)
}

/// Creates the file system and the directories that do not exist, and makes calls until one fails.
pub(crate) fn run(path: &Path) -> Result<()> {
    let fs = match path.exists() {
        true => open(path)?,
        false => Fs::create(path, POOL_BYTES, &FsOptions::new()).into_diagnostic()?,
    };
    for thread in 0..THREADS {
        match fs.root().mkdir(directory(thread), new()) {
            Ok(_) | Err(FsError::Exists) => {}
            Err(error) => return Err(error).into_diagnostic(),
        }
    }
    thread::scope(|scope| {
        let run = |thread| {
            let fs = &fs;
            scope.spawn(move || run_thread(fs, thread))
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| miette!("a writer panicked"))?)
    })
}

fn run_thread(fs: &Fs, thread: u64) -> Result<()> {
    let mut report = File::options().write(true).open("/dev/report").into_diagnostic()?;
    let dir = fs.lookup(directory(thread)).into_diagnostic()?;
    for number in count(&dir)?.. {
        call(&dir, number).into_diagnostic()?;
        // Reports are rare, so that the power cut is likely during a call.
        if number % CALLS_A_REPORT == 0 {
            report.write_all(format!("fs {thread} {number}\n").as_bytes()).into_diagnostic()?;
            rustix::termios::tcdrain(&report).into_diagnostic()?;
        }
    }
    Ok(())
}

/// Checks the file system, and returns the number of calls of each thread.
pub(crate) fn audit(path: &Path) -> Result<Vec<u64>> {
    let fs = open(path)?;
    (0..THREADS).map(|thread| count(&fs.lookup(directory(thread)).into_diagnostic()?)).collect()
}
