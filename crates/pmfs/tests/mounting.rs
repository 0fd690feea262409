//! `pmfs mount` itself: in the background, with options, for mount(8), and read-only, where nothing is stored. Needs FUSE and root, and fails without them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{pmfs, run};
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, XattrFlags, chmodat, renameat_with, setxattr};
use rustix::io::Errno;
use std::fs::{self, File, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time limit for a server to end, generous for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file system in a file with a directory, a file of 10,000 bytes and a link, and a directory to mount it at.
struct Disk(TempDir);

impl Disk {
    fn new() -> Self {
        let disk = Self(tempfile::tempdir_in("/dev/shm").unwrap());
        // For other users.
        fs::set_permissions(disk.0.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(disk.directory()).unwrap();
        fs::create_dir(disk.path("source")).unwrap();
        fs::create_dir(disk.path("source/dir")).unwrap();
        fs::write(disk.path("source/dir/file"), vec![7; 10_000]).unwrap();
        symlink("dir/file", disk.path("source/link")).unwrap();
        run(pmfs().args(["mkfs", "--size", "16M"]).arg(disk.file()));
        run(pmfs().arg("cp").arg(disk.file()).arg("-r").arg(disk.path("source/.")).arg(":/"));
        disk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self) -> PathBuf {
        self.path("disk.pm")
    }

    fn directory(&self) -> PathBuf {
        self.path("mount")
    }

    fn mount(&self, arguments: &[&str]) -> Output {
        pmfs().arg("mount").arg(self.file()).arg(self.directory()).args(arguments).output().unwrap()
    }

    /// The line of the mount in /proc/mounts.
    fn line(&self) -> Option<String> {
        let directory = format!(" {} ", self.directory().display());
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        mounts.lines().find(|line| line.contains(&directory)).map(str::to_owned)
    }

    /// Unmounts. A child that another test starts has this one's open files, too, until it runs its program.
    fn unmount(&self) {
        let begin = Instant::now();
        loop {
            let output = pmfs().arg("umount").arg(self.directory()).output().unwrap();
            if output.status.success() {
                return;
            }
            assert!(text(&output).contains("os error 16") && begin.elapsed() < PATIENCE, "{output:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Unmounts, and waits until the server has closed the file.
    fn stop(&self) {
        self.unmount();
        let begin = Instant::now();
        loop {
            let output = pmfs().args(["fsck", "--repair"]).arg(self.file()).output().unwrap();
            if output.status.success() {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{output:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills a server amid its work, which has stored to the file and not closed it.
    fn kill_a_server(&self) {
        let mut server = pmfs()
            .args(["mount", "-f"])
            .arg(self.file())
            .arg(self.directory())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let orphan = File::create(self.directory().join("orphan")).unwrap();
        orphan.set_len(5000).unwrap();
        fs::remove_file(self.directory().join("orphan")).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        drop(orphan);
        self.unmount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.directory()).stderr(Stdio::null()).status().ok();
    }
}

fn text(output: &Output) -> String {
    // Long lines are folded.
    let text = String::from_utf8_lossy(&output.stderr).replace(['\n', '│'], " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The command ends when the file system is mounted, and leaves its standard streams: else this test would wait for their end.
#[test]
fn mounts_in_the_background() {
    let disk = Disk::new();
    let mounted = disk.mount(&[]);
    assert!(mounted.status.success(), "{mounted:?}");
    assert!(String::from_utf8_lossy(&mounted.stdout).contains("is mounted at"), "{mounted:?}");
    assert_eq!(fs::read(disk.directory().join("link")).unwrap(), [7; 10_000]);
    fs::write(disk.directory().join("new"), "written").unwrap();
    let line = disk.line().unwrap();
    let expected =
        format!("{} {} fuse.pmfs rw,nosuid,nodev,", disk.file().display(), disk.directory().display());
    assert!(line.starts_with(&expected), "{line}");
    disk.stop();
    assert_eq!(run(pmfs().arg("cat").arg(disk.file()).arg("/new")), "written");

    let mounted = disk.mount(&["-o", "noexec,noatime,allow_other,strict", "-o", "suid", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&mounted.stdout).unwrap();
    assert_eq!(json["event"], "mounted");
    let line = disk.line().unwrap();
    assert!(line.contains(" rw,nodev,noexec,") && !line.contains("nosuid"), "{line}");
    disk.stop();
}

/// An error is the command's: its message, and its exit code.
#[test]
fn errors_of_the_background_are_reported() {
    let disk = Disk::new();
    let refused = |output: Output, message: &str| {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output).contains(message), "{output:?}");
        assert_eq!(disk.line(), None);
    };
    let at = |file: &Path, directory: &Path| pmfs().arg("mount").arg(file).arg(directory).output().unwrap();
    refused(at(&disk.path("none"), &disk.directory()), "no such file");
    refused(at(&disk.file(), &disk.path("none")), "No such file");
    refused(at(&disk.file(), &disk.path("source/link")), "is no directory");
    refused(at(&disk.file(), &disk.path("source")), "is not empty");
    refused(disk.mount(&["-o", "strikt"]), "unknown option strikt");
    refused(pmfs().arg("umount").arg(disk.directory()).output().unwrap(), "nothing is mounted there");
    let mounted = disk.mount(&[]);
    assert!(mounted.status.success(), "{mounted:?}");
    let busy = at(&disk.file(), &disk.path("source/dir"));
    assert_eq!(busy.status.code(), Some(1), "{busy:?}");
    disk.stop();
}

/// Each command that only reads leaves the file as it is, needs no permission to write it, and runs on a file system that is read-only.
#[test]
fn reading_stores_nothing() {
    for is_killed in [false, true] {
        let disk = Disk::new();
        if is_killed {
            disk.kill_a_server();
        }
        fs::set_permissions(disk.file(), Permissions::from_mode(0o444)).unwrap();
        let before = fs::read(disk.file()).unwrap();
        let file = disk.file().display().to_string();
        let out = tempfile::tempdir().unwrap();
        fs::set_permissions(out.path(), Permissions::from_mode(0o777)).unwrap();
        let program = env!("CARGO_BIN_EXE_pmfs");
        let commands = [
            format!("{program} ls -lR {file}"),
            format!("{program} cat {file} /dir/file"),
            format!("{program} info {file}"),
            format!("{program} map {file}"),
            format!("{program} fsck {file}"),
            format!("{program} cp {file} -r :/ {}", out.path().display()),
        ];
        let host = disk.0.path().display();
        for command in &commands {
            // The build directory may be closed to other users: the program is opened before.
            let as_nobody = format!(
                "exec 9<{program}; exec setpriv --reuid=65534 --regid=65534 --clear-groups \
                 --inh-caps=-all --bounding-set=-all {}",
                command.replacen(program, "/proc/self/fd/9", 1)
            );
            run(Command::new("sh").arg("-c").arg(as_nobody));
            let read_only =
                format!("mount --bind {host} {host} && mount -o remount,bind,ro {host} && exec {command}");
            run(Command::new("unshare").args(["-m", "sh", "-c"]).arg(read_only));
            assert!(fs::read(disk.file()).unwrap() == before, "{command}, killed: {is_killed}");
        }
        assert_eq!(fs::read(out.path().join("dir/file")).unwrap(), [7; 10_000]);

        let mounted = disk.mount(&["-o", "ro"]);
        assert!(mounted.status.success(), "{mounted:?}");
        assert!(disk.line().unwrap().contains(" ro,"), "{:?}", disk.line());
        let path = |name: &str| disk.directory().join(name);
        assert_eq!(fs::read(path("link")).unwrap(), [7; 10_000]);
        let raw = |result: std::io::Result<()>| Errno::from_io_error(&result.unwrap_err());
        let existing = path("dir/file");
        let refused = [
            raw(fs::write(path("new"), "")),
            raw(fs::write(&existing, "")),
            raw(fs::OpenOptions::new().append(true).open(&existing).map(drop)),
            raw(fs::create_dir(path("new"))),
            raw(symlink("target", path("new"))),
            raw(fs::hard_link(&existing, path("new"))),
            raw(fs::remove_file(&existing)),
            raw(fs::rename(&existing, path("new"))),
            raw(std::os::unix::fs::chown(&existing, Some(1), None)),
            raw(fs::set_permissions(&existing, Permissions::from_mode(0o600))),
            chmodat(CWD, &existing, Mode::RUSR, AtFlags::empty()).err(),
            renameat_with(CWD, &existing, CWD, path("link"), RenameFlags::EXCHANGE).err(),
            setxattr(&existing, "user.colour", b"red", XattrFlags::empty()).err(),
        ];
        assert!(refused.iter().all(|error| *error == Some(Errno::ROFS)), "{refused:?}");
        // Another reader.
        assert!(run(pmfs().arg("ls").arg(disk.file())).contains("link"));
        disk.unmount();
        assert!(fs::read(disk.file()).unwrap() == before, "mount -o ro, killed: {is_killed}");
    }
}

/// After a crash the free pages of a file system with a corrupted header of its heap are not known: changes are refused, and the command says so.
#[test]
fn broken_heap_is_mounted_read_only() {
    let disk = Disk::new();
    let listed: serde_json::Value =
        serde_json::from_str(&run(pmfs().args(["ls", "--json"]).arg(disk.file()).arg("/dir/file"))).unwrap();
    disk.kill_a_server();
    let header =
        usize::try_from(listed[0]["ino"].as_u64().unwrap_or_else(|| panic!("{listed}"))).unwrap() * 64 - 8;
    let mut bytes = fs::read(disk.file()).unwrap();
    bytes[header] ^= 4;
    fs::write(disk.file(), &bytes).unwrap();
    let mounted = disk.mount(&[]);
    assert!(mounted.status.success(), "{mounted:?}");
    assert!(text(&mounted).contains("is mounted read-only"), "{mounted:?}");
    let error = fs::write(disk.directory().join("new"), "").unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
    assert_eq!(fs::read(disk.directory().join("dir/file")).unwrap(), [7; 10_000]);
    assert_eq!(rustix::fs::statvfs(disk.directory()).unwrap().f_bavail, 0);
    disk.unmount();
}

/// A line of fstab(5), mounted by mount(8) through its helper, in namespaces of its own.
#[test]
fn line_of_fstab_is_mounted() {
    let disk = Disk::new();
    let (sbin, fstab) = (disk.path("sbin"), disk.path("fstab"));
    fs::create_dir(&sbin).unwrap();
    let (file, directory) = (disk.file().display().to_string(), disk.directory().display().to_string());
    fs::write(
        &fstab,
        format!("{file} {directory} fuse.pmfs noatime,noexec,strict,nofail,x-mine,protect=async 0 0\n"),
    )
    .unwrap();
    // What else is in the directory of helpers is not needed.
    let script = format!(
        "set -e
        cp {program} {sbin}/pmfs; ln -s pmfs {sbin}/mount.fuse.pmfs; mount=$(command -v mount)
        cp $mount {sbin}/; mount --bind {sbin} /usr/sbin; [ /sbin -ef /usr/sbin ] || mount --bind {sbin} /sbin
        {sbin}/mount -a -T {fstab}
        grep ' {directory} ' /proc/mounts
        echo written > {directory}/new
        {sbin}/pmfs umount {directory}",
        program = env!("CARGO_BIN_EXE_pmfs"),
        sbin = sbin.display(),
        fstab = fstab.display(),
    );
    let mounted = run(Command::new("unshare").args(["-m", "sh", "-c"]).arg(script));
    assert!(
        mounted.starts_with(&format!("{file} {directory} fuse.pmfs rw,nosuid,nodev,noexec,")),
        "{mounted}"
    );
    assert_eq!(disk.line(), None);
    let begin = Instant::now();
    let read = || pmfs().arg("cat").arg(disk.file()).arg("/new").output().unwrap();
    while read().stdout != b"written\n" {
        assert!(begin.elapsed() < PATIENCE, "{:?}", read());
        std::thread::sleep(Duration::from_millis(20));
    }
}
