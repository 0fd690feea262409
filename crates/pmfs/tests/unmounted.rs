//! Files of a file system that is not mounted: listed, printed, and copied from the host and back. Needs no FUSE.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{pmfs, run};
use pm_fs::{FileKind, Fs, FsOptions, NewFile};
use rustix::fs::{SeekFrom, seek};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// A file system in a file, and room for others beside it.
struct Disk(TempDir);

impl Disk {
    fn new(size: &str) -> Self {
        // In memory: in a file on a disk each fence is an msync.
        let shm = Path::new("/dev/shm");
        let disk = Self(if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap());
        run(pmfs().args(["mkfs", "--size", size]).arg(disk.file()));
        disk
    }

    fn file(&self) -> PathBuf {
        self.host("disk.pm")
    }

    /// A path of the host.
    fn host(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A command on the file. It runs in the directory of the host.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = pmfs();
        command.current_dir(self.0.path()).arg(arguments[0]).arg("disk.pm").args(&arguments[1..]);
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments))
    }

    /// Runs a command that fails with this message, and leaves a file system without problems.
    #[track_caller]
    fn refuses(&self, arguments: &[&str], message: &str) {
        let output = self.command(arguments).output().unwrap();
        // Long lines are folded.
        let text = String::from_utf8_lossy(&output.stderr).replace(['\n', '│'], " ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
        self.check();
    }

    #[track_caller]
    fn check(&self) {
        assert!(self.run(&["fsck"]).contains("clean"));
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())).unwrap()
    }
}

/// Bytes that differ at each offset.
fn bytes(len: u32) -> Vec<u8> {
    (0..len).flat_map(u32::to_le_bytes).take(len as usize).collect()
}

fn set_time(path: &Path, seconds: u64, ns: u32) {
    let time = UNIX_EPOCH + Duration::new(seconds, ns);
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// A tree with files of several lengths and modes, links, and an empty directory.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    fs::create_dir(root.join("none")).unwrap();
    for (name, len, mode) in
        [("empty", 0, 0o600), ("sub/page", 4096, 0o644), ("sub/deep/long", 3_000_001, 0o750)]
    {
        fs::write(root.join(name), bytes(len)).unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        set_time(&root.join(name), 1_000_000_000 + u64::from(len), 123_456_789);
    }
    symlink("sub/page", root.join("link")).unwrap();
    symlink("/no such target".repeat(10), root.join("sub/broken")).unwrap();
    fs::set_permissions(root.join("sub"), Permissions::from_mode(0o1700)).unwrap();
    for name in ["sub/deep", "sub", "none"] {
        set_time(&root.join(name), 1_234_567_890, name.len().try_into().unwrap());
    }
}

/// What a file is: mode, time, and contents or target.
type Found = (u32, SystemTime, Vec<u8>);

/// Everything below a directory.
fn tree(root: &Path) -> BTreeMap<PathBuf, Found> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let contents = if metadata.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if metadata.is_dir() {
                directories.push(path.clone());
                vec![]
            } else {
                fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(root).unwrap().to_path_buf();
            found.insert(name, (metadata.mode(), metadata.modified().unwrap(), contents));
        }
    }
    found
}

#[test]
fn tree_survives_the_way_in_and_out() {
    let disk = Disk::new("32M");
    make_tree(&disk.host("tree"));
    // The time of a link cannot be set with the standard library: it must not be the time of the copy.
    std::thread::sleep(Duration::from_millis(20));
    let summary = disk.json(&["cp", "-r", "tree/", ":/copy"]);
    let counts = ["files", "directories", "links", "bytes", "refused"].map(|name| summary[name].as_u64());
    assert_eq!(counts, [3, 4, 2, 4096 + 3_000_001, 0].map(Some), "{summary}");
    disk.check();
    disk.run(&["cp", "-r", ":/copy", "back"]);
    let (original, back) = (tree(&disk.host("tree")), tree(&disk.host("back")));
    assert_eq!(original.len(), 8);
    assert_eq!(original.keys().collect::<Vec<_>>(), back.keys().collect::<Vec<_>>());
    for (name, found) in &original {
        assert_eq!(back[name].0, found.0, "the mode of {name:?}");
        assert_eq!(back[name].1, found.1, "the time of {name:?}");
        assert!(back[name].2 == found.2, "the contents of {name:?}");
    }

    // Into directories that exist: with its name, and without.
    disk.run(&["cp", "-r", "tree", "tree/empty", ":/"]);
    disk.run(&["cp", "-r", "tree/.", ":/copy"]);
    fs::create_dir(disk.host("all")).unwrap();
    disk.run(&["cp", "-r", ":/", "all"]);
    assert_eq!(tree(&disk.host("all/tree")), original);
    assert_eq!(tree(&disk.host("all/copy")), original);
    assert_eq!(fs::read_dir(disk.host("all")).unwrap().count(), 3);
    disk.run(&["cp", "-r", ":/", "whole"]);
    assert_eq!(tree(&disk.host("whole")), tree(&disk.host("all")));
    disk.run(&["cp", "-r", ":/tree/sub", ":/empty", "all/copy/none"]);
    assert_eq!(fs::read(disk.host("all/copy/none/sub/page")).unwrap(), bytes(4096));
    assert!(disk.host("all/copy/none/empty").is_file());
}

#[test]
fn listings_show_what_was_copied() {
    let disk = Disk::new("32M");
    make_tree(&disk.host("tree"));
    disk.run(&["cp", "-r", "tree/.", ":/"]);
    assert_eq!(disk.run(&["ls"]), "empty\nlink\nnone\nsub\n");
    assert_eq!(disk.run(&["ls", ":/sub/page"]), "/sub/page\n");
    assert_eq!(disk.run(&["ls", "none"]), "");
    let recursive = "/:\nempty\nlink\nnone\nsub\n\n/none:\n\n/sub:\nbroken\ndeep\npage\n\n/sub/deep:\nlong\n";
    assert_eq!(disk.run(&["ls", "-R"]), recursive);
    let user = fs::metadata(disk.host("tree")).unwrap();
    let (uid, gid) = (user.uid(), user.gid());
    assert_eq!(
        disk.run(&["ls", "-l", "/sub/page"]),
        format!("-rw-r--r-- 1 {uid} {gid} 4096 2001-09-09T02:54:56Z /sub/page\n")
    );
    let long = disk.run(&["ls", "-l"]);
    assert!(long.contains("\ndrwx-----T 3 ") && long.contains("Z link -> sub/page\n"), "{long}");

    let all = disk.json(&["ls", "-R"]);
    let paths: Vec<_> = all.as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap()).collect();
    let expected = ["/empty", "/link", "/none", "/sub", "/sub/broken", "/sub/deep", "/sub/page"];
    assert_eq!(paths, [&expected[..], &["/sub/deep/long"]].concat());
    let page = &disk.json(&["ls", "/sub/page"])[0];
    assert_eq!((page["type"].as_str(), page["mode"].as_str()), (Some("file"), Some("0644")));
    assert_eq!((page["size"].as_u64(), page["links"].as_u64()), (Some(4096), Some(1)));
    assert_eq!(page["mtime"], "2001-09-09T02:54:56.123456789Z");
    assert_eq!(disk.json(&["ls", "/link"])[0]["target"], "sub/page");

    let output = disk.command(&["cat", "/sub/page", ":/sub/deep/long"]).output().unwrap();
    assert!(output.status.success() && output.stdout == [bytes(4096), bytes(3_000_001)].concat());
}

/// Names are bytes: neither text nor free of newlines.
#[test]
fn any_name_is_kept() {
    let disk = Disk::new("8M");
    fs::create_dir(disk.host("tree")).unwrap();
    let names = [&b":colon"[..], b"caf\xe9", b"two\nlines", &[b'x'; 255]].map(OsStr::from_bytes);
    for name in names {
        fs::write(disk.host("tree").join(name), name.as_bytes()).unwrap();
    }
    disk.run(&["cp", "-r", "tree", ":/"]);
    disk.run(&["cp", "-r", ":/tree", "back"]);
    assert_eq!(tree(&disk.host("back")), tree(&disk.host("tree")));
    assert_eq!(fs::read_dir(disk.host("back")).unwrap().count(), names.len());
    assert_eq!(disk.run(&["cat", "/tree/:colon"]), ":colon");
    assert_eq!(disk.json(&["ls", "/tree/two\nlines"])[0]["path"], "/tree/two\nlines");
    let output = disk.command(&["ls", "/tree"]).output().unwrap();
    // They are in order.
    assert_eq!(output.stdout, [&names.map(OsStr::as_bytes).join(&b'\n')[..], b"\n"].concat());
}

#[test]
fn closed_pipe_is_no_error() {
    let disk = Disk::new("32M");
    fs::write(disk.host("long"), bytes(3_000_000)).unwrap();
    disk.run(&["cp", "long", ":/"]);
    let mut cat =
        disk.command(&["cat", "/long"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 8];
    cat.stdout.as_mut().unwrap().read_exact(&mut start).unwrap();
    drop(cat.stdout.take());
    let output = cat.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{}: {text}", output.status);
    assert_eq!(start, bytes(8)[..]);
}

/// Whatever had the name: a longer file, a link to a file elsewhere, a link in the way of a link.
#[test]
fn existing_files_are_overwritten() {
    let disk = Disk::new("32M");
    for (name, len) in [("new", 5000), ("old", 100_000), ("elsewhere", 10)] {
        fs::write(disk.host(name), bytes(len)).unwrap();
    }
    symlink("elsewhere", disk.host("link")).unwrap();
    // In the file system.
    disk.run(&["cp", "old", ":/file"]);
    disk.run(&["cp", "new", ":/file"]);
    disk.run(&["cp", "link", ":/link"]);
    disk.run(&["cp", "link", ":/link"]);
    assert_eq!(disk.json(&["ls", "/link"])[0]["target"], "elsewhere");
    disk.run(&["cp", "new", ":/link"]);
    assert_eq!(disk.json(&["ls", "/link"])[0]["type"], "file");
    disk.check();
    // On the host.
    for name in ["old", "link"] {
        disk.run(&["cp", ":/file", name]);
        assert!(fs::symlink_metadata(disk.host(name)).unwrap().is_file(), "{name}");
        assert_eq!(fs::read(disk.host(name)).unwrap(), bytes(5000), "{name}");
    }
    assert_eq!(
        fs::read(disk.host("elsewhere")).unwrap(),
        bytes(10),
        "the target of a link that was replaced"
    );
}

#[test]
fn holes_stay_holes() {
    let disk = Disk::new("32M");
    let file = File::create(disk.host("sparse")).unwrap();
    // Longer than the file system.
    file.write_all_at(b"start", 0).unwrap();
    file.write_all_at(&bytes(10_000), 500 << 20).unwrap();
    file.set_len(1 << 30).unwrap();
    // Over the data of files that are there.
    fs::write(disk.host("back"), bytes(100_000)).unwrap();
    disk.run(&["cp", "back", ":/sparse"]);
    let summary = disk.json(&["cp", "sparse", ":/"]);
    assert!(summary["bytes"].as_u64().unwrap() < 1 << 20, "{summary}");
    disk.check();
    disk.run(&["cp", ":/sparse", "back"]);
    let back = File::open(disk.host("back")).unwrap();
    assert_eq!(back.metadata().unwrap().len(), 1 << 30);
    assert!(back.metadata().unwrap().blocks() * 512 < 1 << 20);
    assert_eq!(seek(&back, SeekFrom::Hole(0)).unwrap(), 4096);
    assert_eq!(seek(&back, SeekFrom::Data(4096)).unwrap(), 500 << 20);
    let mut found = vec![0; 10_005];
    back.read_exact_at(&mut found, (500 << 20) - 5).unwrap();
    assert_eq!(found, [vec![0; 5], bytes(10_000)].concat());
    let mut found = vec![0; 100_000];
    back.read_exact_at(&mut found, 0).unwrap();
    assert!(found.starts_with(b"start") && found[5..].iter().all(|byte| *byte == 0));
}

#[test]
fn errors_name_the_path_and_change_nothing() {
    let disk = Disk::new("8M");
    make_tree(&disk.host("tree"));
    disk.run(&["cp", "-r", "tree", ":/"]);
    let before = disk.run(&["ls", "-lR"]);
    disk.refuses(&["ls", "/none/file"], ":/none ╰─▶ no such file");
    disk.refuses(&["cat", "/tree/empty", "/tree/none/file"], ":/tree/none/file ╰─▶ no such file");
    disk.refuses(&["cat", "/tree/empty/file"], ":/tree/empty/file ╰─▶ not a directory");
    disk.refuses(&["cat", "/tree/sub"], ":/tree/sub is a directory");
    disk.refuses(&["cat", "/tree/link"], ":/tree/link is a symbolic link");
    disk.refuses(&["ls", "/tree/sub/../none"], ". and .. are no names");
    disk.refuses(
        &["cp", ":/tree/link/file", "file"],
        ":/tree/link is a symbolic link, which is not followed",
    );
    disk.refuses(&["cp", ":/none", "file"], ":/none ╰─▶ no such file");
    disk.refuses(&["cp", "none", ":/"], "none ╰─▶ No such file");
    disk.refuses(&["cp", "tree", ":/"], "tree is a directory");
    disk.refuses(&["cp", "tree/.", ":/"], "tree/. is a directory");
    disk.refuses(&["cp", ":/tree", "."], ":/tree is a directory");
    disk.refuses(&["cp", "tree/empty", ":/none/file"], ":/none ╰─▶ no such file");
    disk.refuses(&["cp", "tree/empty", ":/tree/empty/file"], "not a directory");
    disk.refuses(&["cp", "tree/empty", "tree/link", ":/new"], ":/new is no directory");
    disk.refuses(&["cp", ":/tree/empty", ":/tree/link", "new"], "new is no directory");
    disk.refuses(&["cp", "tree/empty", "new"], "both outside of the file system");
    disk.refuses(&["cp", "-r", ":/tree", ":/tree/sub"], "both in the file system");
    // A directory does not take the place of a file, nor the other way round.
    fs::create_dir_all(disk.host("other/tree/empty")).unwrap();
    disk.refuses(&["cp", "-r", "other/tree", ":/"], ":/tree/empty ╰─▶ not a directory");
    disk.refuses(&["cp", "-r", ":/tree", "other"], "is a directory");
    disk.refuses(&["cp", "tree/link", ":/tree/sub/deep/long/x"], "not a directory");
    fs::write(disk.host("sub"), "a file").unwrap();
    disk.refuses(&["cp", "sub", ":/tree"], ":/tree/sub ╰─▶ is a directory");
    assert!(!disk.host("file").exists() && !disk.host("new").exists());
    assert_eq!(disk.run(&["ls", "-lR"]), before);
}

/// They could lead to any directory of the host.
#[test]
fn links_at_the_destination_are_not_followed() {
    let disk = Disk::new("8M");
    for directory in ["tree/dir", "outside", "back/tree"] {
        fs::create_dir_all(disk.host(directory)).unwrap();
    }
    fs::write(disk.host("tree/dir/file"), "text").unwrap();
    disk.run(&["cp", "-r", "tree", ":/"]);
    symlink(disk.host("outside"), disk.host("back/tree/dir")).unwrap();
    disk.refuses(&["cp", "-r", ":/tree", "back"], "back/tree/dir ╰─▶ not a directory");
    assert!(fs::read_dir(disk.host("outside")).unwrap().next().is_none());
    // But the destination itself may be a link.
    disk.run(&["cp", "-r", ":/tree", "back/tree/dir"]);
    assert_eq!(fs::read(disk.host("outside/tree/dir/file")).unwrap(), b"text");
}

#[test]
fn full_file_system_is_an_error() {
    let disk = Disk::new("8M");
    fs::create_dir(disk.host("tree")).unwrap();
    for number in 0..4 {
        fs::write(disk.host(&format!("tree/{number}")), bytes(3_000_000)).unwrap();
    }
    disk.refuses(&["cp", "-r", "tree", ":/"], "no space left");
    // What was copied before stays.
    let output = disk.command(&["cat", "/tree/0"]).output().unwrap();
    assert!(output.stdout == bytes(3_000_000));
    // Metadata, too, has an end.
    let disk = Disk::new("1M");
    fs::create_dir(disk.host("many")).unwrap();
    (0..2000).for_each(|number| drop(File::create(disk.host(&format!("many/{number}"))).unwrap()));
    disk.refuses(&["cp", "-r", "many", ":/"], "no space left");
}

#[test]
fn special_files_are_refused_and_counted() {
    let disk = Disk::new("8M");
    fs::create_dir(disk.host("tree")).unwrap();
    let _socket = UnixListener::bind(disk.host("tree/a socket")).unwrap();
    fs::write(disk.host("tree/file"), "text").unwrap();
    // The file with the file system is in the directory, too.
    let output = disk.command(&["cp", "-r", ".", ":/", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("./tree/a socket is a socket: not copied"), "{text}");
    assert!(text.contains("./disk.pm is the file with this file system: not copied"), "{text}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((summary["files"].as_u64(), summary["refused"].as_u64()), (Some(1), Some(2)));
    assert_eq!(disk.run(&["ls", "-R"]), "/:\ntree\n\n/tree:\nfile\n");

    let fs_of = Fs::open(disk.file(), &FsOptions::new()).unwrap();
    let new = NewFile { mode: 0o600, uid: 1, gid: 2, umask: 0 };
    fs_of.root().mknod("pipe", FileKind::Pipe, new, 0).unwrap();
    fs_of.root().mknod("null", FileKind::CharDevice, NewFile { mode: 0o4666, ..new }, 0x103).unwrap();
    let in_use = disk.command(&["ls"]).output().unwrap();
    assert_eq!(in_use.status.code(), Some(1), "another process has it open");
    drop(fs_of);
    let long = disk.run(&["ls", "-l"]);
    assert!(long.contains("prw------- 1 1 2    0 ") && long.contains("crwSrw-rw- 1 1 2  1,3 "), "{long}");
    fs::create_dir(disk.host("back")).unwrap();
    disk.refuses(&["cp", "-r", ":/", "back"], ":/null is a character device: not copied");
    assert_eq!(fs::read(disk.host("back/tree/file")).unwrap(), b"text");
    assert_eq!(fs::read_dir(disk.host("back")).unwrap().count(), 1);
}

/// Its mapping would lose its pages.
#[test]
fn file_with_the_file_system_is_not_overwritten() {
    let disk = Disk::new("8M");
    fs::write(disk.host("text"), "text").unwrap();
    disk.run(&["cp", "text", ":/disk.pm"]);
    disk.refuses(&["cp", ":/disk.pm", "."], "it is the file with this file system");
    fs::hard_link(disk.file(), disk.host("link")).unwrap();
    disk.refuses(&["cp", ":/disk.pm", "link"], "it is the file with this file system");
    assert_eq!(disk.run(&["cat", "/disk.pm"]), "text");
}

/// The copies of another user are its own, without set-user-ID bits.
#[test]
fn owners_are_kept_by_root_only() {
    let disk = Disk::new("8M");
    fs::write(disk.host("file"), "text").unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(disk.host("file"), Some(12), Some(34)).unwrap();
    }
    fs::set_permissions(disk.host("file"), Permissions::from_mode(0o4755)).unwrap();
    disk.run(&["cp", "file", ":/"]);
    disk.run(&["cp", ":/file", "back"]);
    let (original, back) =
        (fs::metadata(disk.host("file")).unwrap(), fs::metadata(disk.host("back")).unwrap());
    assert_eq!((original.uid(), original.gid()), (back.uid(), back.gid()));
    assert_eq!(disk.json(&["ls", "/file"])[0]["uid"], original.uid());
    assert_eq!(back.mode() & 0o7777, if is_root { 0o4755 } else { 0o755 });
}

/// A name that was lost on the medium: what it named is in lost+found.
#[test]
fn repair_gives_lost_files_a_name() {
    let disk = Disk::new("1M");
    fs::write(disk.host("a-name-to-be-lost"), b"contents").unwrap();
    disk.run(&["cp", "a-name-to-be-lost", ":/"]);
    // Recovery replays the last changes, over what is overwritten.
    for _ in 0..4 {
        fs::write(disk.host("other"), b"other").unwrap();
        disk.run(&["cp", "other", ":/"]);
    }
    let image = fs::read(disk.file()).unwrap();
    let lost = b"a-name-to-be-lost";
    let at = image.windows(lost.len()).rposition(|window| window == lost).unwrap();
    File::options().write(true).open(disk.file()).unwrap().write_all_at(b"A", at as u64).unwrap();

    let checked = disk.command(&["fsck"]).output().unwrap();
    assert_eq!(checked.status.code(), Some(3), "{checked:?}");
    let repaired = disk.json(&["fsck", "--repair"]);
    assert!(!repaired["repaired"].as_array().unwrap().is_empty(), "{repaired}");
    assert_eq!(repaired["problems"].as_array().unwrap().len(), 0, "{repaired}");
    let found = disk.run(&["ls", "/lost+found"]);
    assert_eq!(disk.run(&["cat", &format!("/lost+found/{}", found.trim())]), "contents");
    assert_eq!(disk.run(&["cat", "/other"]), "other");
    disk.check();
}

#[test]
fn map_shows_the_frames_in_use() {
    let disk = Disk::new("32M");
    let used = |disk: &Disk| {
        let map = disk.json(&["map"]);
        let sum =
            |name: &str| map[name].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
        let [pages, used]: [u64; 2] = ["frame_pages", "frame_used"].map(sum);
        let info = disk.json(&["info"]);
        // A file of tmpfs, or of a disk, is no persistent memory.
        assert_eq!(
            (info["data_bytes"].as_u64().unwrap(), &info["domain"]),
            (pages * 4096, &"volatile".into())
        );
        used
    };
    assert_eq!(used(&disk), 0);
    fs::write(disk.host("file"), vec![1; 5 << 20]).unwrap();
    disk.run(&["cp", "file", ":/"]);
    assert_eq!(used(&disk), (5 << 20) / 4096);
    let picture = disk.run(&["map"]);
    let line = picture.lines().nth(1).unwrap();
    assert_eq!(line.len(), disk.json(&["map"])["frame_used"].as_array().unwrap().len());
    assert!(line.contains('#') && line.contains('.'), "{picture}");
}

/// Standard output that cannot be written is an error, or, if it is a closed pipe, none; never a panic.
#[test]
fn answers_that_cannot_be_written_are_errors() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = dir.path().join("disk.pm");
    run(pmfs().args(["mkfs", "--size", "64M"]).arg(&file));
    for command in ["info", "map", "fsck"] {
        for (is_full, code) in [(true, 1), (false, 0)] {
            let out = match is_full {
                true => Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()),
                false => Stdio::from(std::io::pipe().unwrap().1),
            };
            let ended = pmfs().arg(command).arg(&file).stdout(out).stderr(Stdio::piped()).output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(code), "{command}: {said}");
            assert!(!said.contains("panicked"), "{command}: {said}");
        }
    }
}

/// A flipped bit in a header of the heap, before a file's inode: a repair would remove the file, so it stores nothing.
#[test]
fn broken_heap_is_not_repaired() {
    let disk = Disk::new("1M");
    fs::write(disk.host("source"), bytes(10_000)).unwrap();
    disk.run(&["cp", "source", ":/file"]);
    let ino = {
        let fs = Fs::open(disk.file(), &FsOptions::new()).unwrap();
        fs.lookup("file").unwrap().ino()
    };
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, ino * 64 - 8).unwrap();
    file.write_all_at(&[byte[0] ^ 4], ino * 64 - 8).unwrap();
    drop(file);
    let corrupted = fs::read(disk.file()).unwrap();
    let output = disk.command(&["fsck", "--repair"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        text.contains("refused: nothing was stored") && text.contains("keep a copy of the file"),
        "{text}"
    );
    assert!(text.trim_end().ends_with(": corrupted"), "{text}");
    let json = disk.command(&["fsck", "--repair", "--json"]).output().unwrap();
    assert_eq!(json.status.code(), Some(3), "{json:?}");
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["refusal"].is_string() && json["repaired"] == serde_json::json!([]), "{json}");
    assert!(fs::read(disk.file()).unwrap() == corrupted);
    assert_eq!(disk.command(&["cat", "/file"]).output().unwrap().stdout, bytes(10_000));
}

/// Errors name the path once, say what would help, and are JSON if answers are.
#[test]
fn errors_are_short_and_helpful() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let error = |arguments: &[&str]| {
        let output = pmfs().args(arguments).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stderr).unwrap()
    };
    let none = path("none.pm");
    let found = error(&["info", &none]);
    assert_eq!(found["error"], format!("{none}: no such file"));
    assert_eq!(found["help"], format!("`pmfs mkfs {none} --size 1G` makes one"));
    let below = path("none/none.pm");
    assert_eq!(error(&["mkfs", "--size", "1M", &below])["help"], "its directory does not exist");
    let small = error(&["mkfs", "--size", "1K", &none]);
    assert_eq!(small["error"], format!("{none}: a file system needs 128 KiB, and not 1 KiB"));
    let made = run(pmfs().args(["mkfs", "--size", "1M", &none]));
    assert!(made.contains(" for data, ") && made.contains("persistence domain"), "{made}");
    assert_eq!(error(&["mkfs", "--size", "1M", &none])["error"], format!("{none} already exists"));
}
