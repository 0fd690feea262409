//! What a run has set up in the system, so that it is taken down however the run ends.
//!
//! Each thing is recorded before it is made. The run takes them down in reverse order; if it is killed, the next run or `--clean` does. BPF programs need
//! no entry: the kernel detaches them when the process that holds them ends.

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// For so long a file system may stay busy with requests that are in flight.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why things are not taken down, or not recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another run has the journal.
    #[error("another run is going on: it holds {0}")]
    Busy(PathBuf),
    /// The journal, or a file of the kernel, cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// A line is not an entry.
    #[error("{path} has a line that is no entry: {line:?}")]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// The line.
        line: String,
    },
    /// A program that takes something down fails.
    #[error("{0}")]
    Stays(String),
}

/// Something that a run leaves behind if it is killed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Left {
    /// A group of processes. The time at which its first process started tells it from a later group of the same number.
    Processes {
        /// The group's number.
        group: i32,
        /// The time in ticks since the machine started.
        started: u64,
    },
    /// A zram device is about to be added to these. An unused one that is not among them is ours.
    ZramBesides(Vec<u32>),
    /// A zram device.
    Zram(u32),
    /// A loop device, by the file behind it.
    Loop(PathBuf),
    /// A mounted file system, and its directory.
    Mount(PathBuf),
    /// A device on which the kernel swaps.
    Swap(PathBuf),
    /// A control group, whose processes are killed.
    Cgroup(PathBuf),
}

/// A file of entries, a line each.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    entries: Vec<Left>,
}

/// Excludes other runs as long as it exists.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "holds the lock")] File);

impl Journal {
    /// Locks the journal in `directory` against other runs, and reads what an earlier run left.
    pub fn lock(directory: &Path) -> Result<(Self, Lock), JournalError> {
        fs::create_dir_all(directory).map_err(|source| error(directory, source))?;
        let path = directory.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|source| error(&path, source))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(JournalError::Busy(path)),
            locked => locked.map_err(|source| error(&path, source.into()))?,
        }
        Ok((Self::open(directory)?, Lock(file)))
    }

    /// Reads the journal in `directory`, for a process whose parent has locked it.
    pub fn open(directory: &Path) -> Result<Self, JournalError> {
        let path = directory.join("journal");
        let text = match fs::read_to_string(&path) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|source| error(&path, source))?,
        };
        let mut entries = Vec::new();
        for line in text.split_inclusive('\n') {
            match serde_json::from_str(line) {
                Ok(entry) => entries.push(entry),
                // An entry is made before what it stands for, so what an unfinished one stands for does not exist.
                Err(_) if !line.ends_with('\n') => {}
                Err(_) => return Err(JournalError::Corrupt { path, line: line.trim_end().to_owned() }),
            }
        }
        let journal = Self { path, entries };
        journal.save()?;
        Ok(journal)
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Left] {
        &self.entries
    }

    /// Records what is about to be made, and returns the number of entries before it.
    pub fn add(&mut self, left: Left) -> Result<usize, JournalError> {
        self.entries.push(left);
        self.save()?;
        Ok(self.entries.len() - 1)
    }

    /// Replaces the newest entry, when what was made is known.
    pub fn replace_last(&mut self, left: Left) -> Result<(), JournalError> {
        self.entries.pop();
        self.entries.push(left);
        self.save()
    }

    /// Takes everything down that was recorded after the first `count` entries, the newest first.
    ///
    /// # Errors
    /// With the first that stays. It and those before it keep their entries.
    pub fn undo_to(&mut self, count: usize) -> Result<(), JournalError> {
        // Processes keep file systems and devices in use, so they end before anything else is taken down.
        let processes =
            self.entries.iter().skip(count).filter(|entry| matches!(entry, Left::Processes { .. }));
        processes.into_iter().try_for_each(Left::undo)?;
        while self.entries.len() > count {
            if let Some(entry) = self.entries.last() {
                entry.undo()?;
            }
            self.entries.pop();
            self.save()?;
        }
        Ok(())
    }

    fn save(&self) -> Result<(), JournalError> {
        let mut text = String::new();
        for entry in &self.entries {
            text += &serde_json::to_string(entry).map_err(|source| error(&self.path, source.into()))?;
            text.push('\n');
        }
        // Replaced as a whole, for a kill between truncation and write would lose all entries.
        let new = self.path.with_extension("new");
        let written = File::create(&new).and_then(|mut file| file.write_all(text.as_bytes()));
        written.and_then(|()| fs::rename(&new, &self.path)).map_err(|source| error(&self.path, source))
    }
}

impl Left {
    /// The group of the calling process, of which it is the first.
    #[must_use]
    pub fn own_processes() -> Self {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        Self::Processes { group: own, started: start_of(own).unwrap_or(0) }
    }

    fn undo(&self) -> Result<(), JournalError> {
        match self {
            Self::Processes { group, started } => kill_group(*group, *started),
            Self::ZramBesides(others) => {
                for number in zram_devices()?.into_iter().filter(|number| !others.contains(number)) {
                    let size = read(&zram(number).join("disksize"))?;
                    if size == "0" {
                        remove_zram(number)?;
                    }
                }
                Ok(())
            }
            Self::Zram(number) if zram(*number).exists() => {
                // The kernel refuses while something has the device open, as udev and a dying program do for a moment.
                patiently(|| write(&zram(*number).join("reset"), "1"))?;
                remove_zram(*number)
            }
            Self::Zram(_) => Ok(()),
            Self::Loop(file) => loop_devices(file)?
                .into_iter()
                .try_for_each(|device| patiently(|| command("losetup", &["--detach"], &device).map(drop))),
            Self::Mount(directory) => {
                while is_mounted(directory)? {
                    patiently(|| command("umount", &[], directory).map(drop))?;
                }
                match fs::remove_dir(directory) {
                    Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(()),
                    removed => removed.map_err(|source| error(directory, source)),
                }
            }
            Self::Swap(device) => {
                let swaps = read(Path::new("/proc/swaps"))?;
                let is_in_use = swaps.lines().any(|line| line.split(' ').next() == device.to_str());
                if is_in_use { command("swapoff", &[], device).map(drop) } else { Ok(()) }
            }
            Self::Cgroup(directory) if directory.exists() => {
                for pid in read(&directory.join("cgroup.procs"))?.lines() {
                    if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                        // One that has just ended is as good.
                        rustix::process::kill_process(pid, Signal::KILL).ok();
                    }
                }
                patiently(|| fs::remove_dir(directory).map_err(|source| error(directory, source)))
            }
            Self::Cgroup(_) => Ok(()),
        }
    }
}

/// The numbers of all zram devices.
pub fn zram_devices() -> Result<Vec<u32>, JournalError> {
    let blocks = Path::new("/sys/block");
    let entries = fs::read_dir(blocks).map_err(|source| error(blocks, source))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.to_str()?.strip_prefix("zram")?.parse().ok()).collect())
}

/// The loop devices on a file. By its name, for a file whose server has ended cannot be asked for its number.
fn loop_devices(file: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let blocks = Path::new("/sys/block");
    let entries = fs::read_dir(blocks).map_err(|source| error(blocks, source))?;
    let is_on_file = |block: &fs::DirEntry| {
        fs::read_to_string(block.path().join("loop/backing_file"))
            .is_ok_and(|name| Path::new(name.trim_end()) == file)
    };
    Ok(entries.flatten().filter(is_on_file).map(|block| Path::new("/dev").join(block.file_name())).collect())
}

fn zram(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/zram{number}"))
}

fn remove_zram(number: u32) -> Result<(), JournalError> {
    patiently(|| write(Path::new("/sys/class/zram-control/hot_remove"), &number.to_string()))
}

/// Kills a group and waits until its processes have ended.
fn kill_group(group: i32, started: u64) -> Result<(), JournalError> {
    if start_of(group).is_some_and(|other| other != started) {
        return Ok(());
    }
    let Some(pid) = Pid::from_raw(group) else { return Ok(()) };
    let begin = Instant::now();
    // Also those of a group whose first process has ended, whose number the kernel does not reuse as long as the group exists.
    while kill_process_group(pid, Signal::KILL).is_ok() && !only_zombies(group) {
        if begin.elapsed() > PATIENCE {
            return Err(JournalError::Stays(format!("process group {group} does not end")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether no process of a group lives. A zombie has ended, and vanishes when its parent asks for it.
fn only_zombies(group: i32) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut stats = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    !stats.any(|stat| {
        let mut fields = stat_fields(&stat);
        let state = fields.next();
        // Then the parent and the group.
        fields.nth(1).and_then(|of| of.parse().ok()) == Some(group) && !matches!(state, Some("Z" | "X"))
    })
}

/// The time at which a process started, in ticks: field 22 of proc(5).
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat_fields(&stat).nth(19)?.parse().ok()
}

/// The fields from the third on: the second, in parentheses, can contain anything.
fn stat_fields(stat: &str) -> std::str::SplitWhitespace<'_> {
    stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace()
}

fn is_mounted(directory: &Path) -> Result<bool, JournalError> {
    let mounts = read(Path::new("/proc/self/mounts"))?;
    Ok(mounts.lines().any(|line| line.split(' ').nth(1) == directory.to_str()))
}

/// Tries until it succeeds or time is up.
fn patiently(mut act: impl FnMut() -> Result<(), JournalError>) -> Result<(), JournalError> {
    let begin = Instant::now();
    loop {
        match act() {
            Err(_) if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
}

fn command(program: &str, arguments: &[&str], of: &Path) -> Result<String, JournalError> {
    xtask::process::output(Command::new(program).args(arguments).arg(of))
        .map_err(|failed| JournalError::Stays(failed.to_string()))
}

fn read(path: &Path) -> Result<String, JournalError> {
    fs::read_to_string(path).map(|text| text.trim_end().to_owned()).map_err(|source| error(path, source))
}

fn write(path: &Path, text: &str) -> Result<(), JournalError> {
    fs::write(path, text).map_err(|source| error(path, source))
}

fn error(path: &Path, source: io::Error) -> JournalError {
    JournalError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;

    #[test]
    fn entries_survive_and_unfinished_ones_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let entries = [
            Left::Zram(3),
            Left::Mount("/no/such directory".into()),
            Left::Processes { group: 7, started: 8 },
            Left::ZramBesides(vec![0, 1]),
        ];
        let (mut journal, lock) = Journal::lock(directory.path()).unwrap();
        for entry in &entries {
            journal.add(entry.clone()).unwrap();
        }
        drop((journal, lock));
        let path = directory.path().join("journal");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"zram\"").unwrap();
        assert_eq!(Journal::open(directory.path()).unwrap().entries(), entries);
        fs::write(&path, "{\"zram\":1}\nrm -rf /\n").unwrap();
        let error = Journal::open(directory.path()).unwrap_err();
        assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
    }

    #[test]
    fn only_one_run_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = Journal::lock(directory.path()).unwrap();
        assert!(matches!(Journal::lock(directory.path()), Err(JournalError::Busy(_))));
        drop(first);
        Journal::lock(directory.path()).unwrap();
    }

    #[test]
    fn processes_are_killed_and_things_that_never_came_to_be_are_gone() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _lock) = Journal::lock(directory.path()).unwrap();
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let group = i32::try_from(child.id()).unwrap();
        let mount = directory.path().join("mount");
        fs::create_dir(&mount).unwrap();
        journal.add(Left::Processes { group, started: start_of(group).unwrap() }).unwrap();
        let mark = journal.add(Left::Mount(mount.clone())).unwrap();
        journal.add(Left::Mount(directory.path().join("never"))).unwrap();
        journal.add(Left::Zram(u32::MAX)).unwrap();
        journal.add(Left::Cgroup(directory.path().join("cgroup"))).unwrap();
        journal.add(Left::Swap("/dev/none".into())).unwrap();
        journal.add(Left::Loop("/no/such/file".into())).unwrap();
        journal.undo_to(mark).unwrap();
        assert!(!mount.exists());
        assert!(child.try_wait().unwrap().is_none(), "before the mark");
        // A directory that is not empty stays, but not what could keep it in use.
        fs::create_dir(&mount).unwrap();
        fs::write(mount.join("file"), "").unwrap();
        journal.add(Left::Mount(mount.clone())).unwrap();
        assert!(matches!(journal.undo_to(0), Err(JournalError::Io { .. })));
        assert!(!child.wait().unwrap().success());
        assert_eq!(journal.entries().len(), 2);
        fs::remove_file(mount.join("file")).unwrap();
        journal.undo_to(0).unwrap();
        assert_eq!(Journal::open(directory.path()).unwrap().entries(), []);
    }

    #[test]
    fn later_process_of_the_same_number_lives() {
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let group = i32::try_from(child.id()).unwrap();
        Left::Processes { group, started: start_of(group).unwrap() + 1 }.undo().unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
