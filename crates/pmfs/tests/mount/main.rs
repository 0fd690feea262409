//! A mounted file system, used by programs of the system. Needs FUSE, and fails without it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod mounted;
mod panics;
mod protected;

use common::{pmfs, run};
use mounted::{Mount, PATIENCE};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags, fallocate, flistxattr,
    getxattr, listxattr, removexattr, renameat_with, seek, setxattr, statx,
};
use rustix::io::Errno;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

#[test]
fn calls_of_the_system_work() {
    call_the_system(Mount::new());
}

fn call_the_system(mut mount: Mount) {
    let path = |name: &str| mount.path(name);
    fs::create_dir(path("dir")).unwrap();
    fs::write(path("dir/file"), vec![7; 100_000]).unwrap();
    fs::hard_link(path("dir/file"), path("link")).unwrap();
    assert_eq!(fs::metadata(path("link")).unwrap().nlink(), 2);
    symlink("dir/file", path("symlink")).unwrap();
    assert_eq!(fs::read(path("symlink")).unwrap(), vec![7; 100_000]);
    fs::rename(path("dir/file"), path("renamed")).unwrap();
    assert!(fs::read_dir(path("dir")).unwrap().next().is_none());
    fs::remove_dir(path("dir")).unwrap();
    // A file without a name, as long as it is open.
    let file = fs::File::options().read(true).write(true).open(path("renamed")).unwrap();
    fs::remove_file(path("link")).unwrap();
    fs::remove_file(path("renamed")).unwrap();
    file.write_all_at(b"still there", 50_000).unwrap();
    let mut found = [0; 11];
    file.read_exact_at(&mut found, 50_000).unwrap();
    assert_eq!(&found, b"still there");
    drop(file);
    // A sparse file, truncated and extended.
    let file = fs::File::create(path("sparse")).unwrap();
    file.write_all_at(b"end", 10_000_000).unwrap();
    file.set_len(10_000_001).unwrap();
    file.set_len(10_000_003).unwrap();
    assert_eq!(&fs::read(path("sparse")).unwrap()[9_999_999..], b"\0e\0\0");
    drop(file);
    // Many entries, in several reads of the directory.
    fs::create_dir(path("many")).unwrap();
    (0..3000).for_each(|number| drop(fs::File::create(path(&format!("many/{number}"))).unwrap()));
    assert_eq!(fs::read_dir(path("many")).unwrap().count(), 3000);
    assert!(run(Command::new("df").arg(path(""))).contains("disk.pm"));
    let root = path("");
    mount.stop();
    assert!(fs::read_dir(root).unwrap().next().is_none(), "unmounted");
    mount.check();
    mount.start();
    assert_eq!(fs::read_dir(mount.path("many")).unwrap().count(), 3000);
    mount.stop();
}

/// Calls that have no shorter way than the system call: exchanging names, ranges of a file, extended attributes.
#[test]
fn calls_of_linux_work() {
    call_linux(Mount::new());
}

fn call_linux(mut mount: Mount) {
    let path = |name: &str| mount.path(name);
    fs::write(path("one"), [1; 20_000]).unwrap();
    fs::create_dir(path("two")).unwrap();
    renameat_with(CWD, path("one"), CWD, path("two"), RenameFlags::EXCHANGE).unwrap();
    assert!(path("one").is_dir() && path("two").is_file());
    let error = renameat_with(CWD, path("one"), CWD, path("two"), RenameFlags::NOREPLACE).unwrap_err();
    assert_eq!(error, Errno::EXIST);

    let file = fs::File::options().read(true).write(true).open(path("two")).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4000, 8300).unwrap();
    // It could be mapped.
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 20_000);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 19_999, 2).unwrap();
    fallocate(&file, FallocateFlags::empty(), 30_000, 1000).unwrap();
    let mut expected = vec![1; 19_999];
    expected[4000..12_300].fill(0);
    expected.resize(31_000, 0);
    assert_eq!(fs::read(path("two")).unwrap(), expected);
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096).unwrap_err(), Errno::OPNOTSUPP);

    let mut value = [0; 100];
    assert_eq!(getxattr(path("two"), "user.none", &mut value).unwrap_err(), Errno::NODATA);
    setxattr(path("two"), "user.colour", b"red", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(path("two"), "user.colour", b"", XattrFlags::CREATE).unwrap_err(), Errno::EXIST);
    assert_eq!(setxattr(path("two"), "user.size", b"", XattrFlags::REPLACE).unwrap_err(), Errno::NODATA);
    setxattr(path("two"), "user.colour", b"blue", XattrFlags::REPLACE).unwrap();
    drop(file);
    mount.stop();
    mount.check();
    mount.start();
    let path = |name: &str| mount.path(name);
    let file = fs::File::open(path("two")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 4096);
    assert_eq!(seek(&file, SeekFrom::Data(4096)).unwrap(), 12_288);
    drop(file);
    assert_eq!(getxattr(path("two"), "user.colour", &mut value).unwrap(), 4);
    assert_eq!(&value[..4], b"blue");
    assert_eq!(getxattr(path("two"), "user.colour", &mut [0; 2]).unwrap_err(), Errno::RANGE);
    assert_eq!(listxattr(path("two"), &mut value).unwrap(), "user.colour\0".len());
    removexattr(path("two"), "user.colour").unwrap();
    assert_eq!(listxattr(path("two"), &mut value).unwrap(), 0);
    mount.stop();
}

#[test]
fn holes_have_no_blocks_and_times_are_signed() {
    let mut mount = Mount::new();
    let file = fs::File::create(mount.path("sparse")).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"two pages", (1 << 20) - 1).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 16);
    file.set_modified(UNIX_EPOCH - Duration::from_nanos(86_400_000_000_001)).unwrap();
    let found = file.metadata().unwrap();
    assert_eq!((found.mtime(), found.mtime_nsec()), (-86_401, 999_999_999));
    drop(file);
    mount.stop();
}

/// While a program has a file mapped to store to, no part of it is a hole for copies: the kernel has what was stored, and has not written it yet.
#[test]
fn copies_have_what_is_stored_to_maps() {
    const BYTES: u64 = 4 << 20;
    let mut mount = Mount::new();
    let python = "import mmap,os,sys\nfd=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\nos.ftruncate(fd,4<<20)\nm=mmap.mmap(fd,4<<20)\nos.close(fd)\n\
        for i in range(0,4<<20,1<<16): m[i:i+4]=b'DATA'\nprint('ready',flush=True)\nsys.stdin.read()";
    let file = mount.path("sparse");
    let mut program = Command::new("python3")
        .args(["-c", python])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let mut expected = vec![0; usize::try_from(BYTES).unwrap()];
    expected.chunks_mut(1 << 16).for_each(|chunk| chunk[..4].copy_from_slice(b"DATA"));
    // Like copies that trust the number of blocks.
    assert!(fs::metadata(&file).unwrap().blocks() > 0);
    let open = fs::File::open(&file).unwrap();
    assert_eq!(seek(&open, SeekFrom::Data(5000)), Ok(5000));
    assert_eq!(seek(&open, SeekFrom::Hole(5000)), Ok(BYTES));
    assert_eq!(seek(&open, SeekFrom::Data(BYTES)), Err(Errno::NXIO));
    drop(open);
    let (copy, archive) = (mount.dir.path().join("copy"), mount.dir.path().join("archive"));
    for how in ["auto", "always"] {
        run(Command::new("cp").arg(format!("--sparse={how}")).args([&file, &copy]));
        assert!(fs::read(&copy).unwrap() == expected, "cp --sparse={how}");
    }
    run(Command::new("tar").arg("-C").arg(mount.path("")).arg("-cSf").args([&archive]).arg("sparse"));
    run(Command::new("tar").arg("-C").arg(mount.dir.path()).arg("-xf").arg(&archive));
    assert!(fs::read(mount.dir.path().join("sparse")).unwrap() == expected, "tar -S");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());

    // Afterwards holes are holes. The kernel releases a file after the last close of it.
    let begin = Instant::now();
    let hole = || seek(fs::File::open(&file).unwrap(), SeekFrom::Hole(0)).unwrap();
    while hole() != 4096 && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(hole(), 4096);
    mount.stop();
}

/// A change of a file's contents or owner takes its set-user-ID bit, unless root makes it.
#[test]
fn set_user_id_bits_are_cleared() {
    let mut mount = Mount::new();
    assert!(rustix::process::getuid().is_root(), "changing owners needs root");
    // As execve(2), which asks for nothing else: what the kernel has kept is not asked for again.
    let mode = |path: &Path| {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
        u32::from(found.stx_mode) & 0o7777
    };
    let file = mount.path("file");
    fs::write(&file, "a program").unwrap();
    let set = || fs::set_permissions(&file, fs::Permissions::from_mode(0o4777)).unwrap();
    fs::set_permissions(mount.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let allocations = ["fallocate -l 8192", "fallocate -p -o 0 -l 4096"];
    for change in ["printf x >>", "printf y 1<>", ":>", "truncate --size=3"].into_iter().chain(allocations) {
        set();
        assert_eq!(mode(&file), 0o4777);
        let as_nobody = format!("{change} {}", file.display());
        run(Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"])
            .arg(as_nobody));
        assert_eq!(mode(&file), 0o777, "after {change}");
    }
    set();
    std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
    assert_eq!(mode(&file), 0o777, "after chown");

    // The set-group-ID bit of a file that its group may not execute goes, too, unless the caller is in the group: as the kernel's other file systems do.
    std::os::unix::fs::chown(&file, Some(0), Some(7)).unwrap();
    for (group, cleared) in [("65534", 0o666), ("7", 0o2666)] {
        for change in ["printf x >>", ":>", "truncate --size=3"].into_iter().chain(allocations) {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o6666)).unwrap();
            run(Command::new("setpriv")
                .args(["--reuid=65534", "--regid", group, "--clear-groups", "sh", "-c"])
                .arg(format!("{change} {}", file.display())));
            assert_eq!(mode(&file), cleared, "after {change} by group {group}");
        }
    }

    // A new owner takes them from what is no regular file, too, and not from a directory.
    run(Command::new("mkfifo").arg(mount.path("pipe")));
    drop(std::os::unix::net::UnixListener::bind(mount.path("socket")).unwrap());
    run(Command::new("mknod").arg(mount.path("device")).args(["c", "1", "3"]));
    fs::create_dir(mount.path("dir")).unwrap();
    for (name, cleared) in [("pipe", 0o777), ("socket", 0o777), ("device", 0o777), ("dir", 0o6777)] {
        let path = mount.path(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).unwrap();
        assert_eq!(mode(&path), cleared, "{name}");
    }
    mount.stop();
}

/// `..` has the number of the directory above, and of the root its own.
#[test]
fn directories_list_their_parents() {
    let mut mount = Mount::new();
    fs::create_dir_all(mount.path("one/two")).unwrap();
    let number_of_parent = |name: &str| {
        let dir =
            rustix::fs::openat(CWD, mount.path(name), rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        let mut entries = rustix::fs::Dir::read_from(dir.unwrap()).unwrap();
        entries.find_map(|entry| entry.ok().filter(|entry| entry.file_name() == c"..")).unwrap().ino()
    };
    let number = |name: &str| fs::metadata(mount.path(name)).unwrap().ino();
    assert_eq!(number_of_parent("one/two"), number("one"));
    assert_eq!(number_of_parent("one"), number(""));
    assert_eq!(number_of_parent(""), number(""));
    fs::rename(mount.path("one/two"), mount.path("three")).unwrap();
    assert_eq!(number_of_parent("three"), number(""));
    mount.stop();
}

/// Only root sees the names of attributes that only root may use.
#[test]
fn trusted_attributes_are_listed_for_root() {
    let mut mount = Mount::new();
    let file = mount.path("file");
    fs::write(&file, "").unwrap();
    for name in ["trusted.one", "user.two"] {
        setxattr(&file, name, b"value", XattrFlags::CREATE).unwrap();
    }
    let mut names = [0; 100];
    let len = listxattr(&file, &mut names).unwrap();
    assert_eq!(&names[..len], b"trusted.one\0user.two\0");
    let open = fs::File::open(&file).unwrap();
    let as_nobody = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut names = vec![0; 100];
        let len = flistxattr(&open, &mut names).unwrap();
        names.truncate(len);
        names
    });
    assert_eq!(as_nobody.join().unwrap(), b"user.two\0");
    mount.stop();
}

/// While two long allocations run, other calls are answered.
#[test]
fn long_allocations_do_not_stall_other_calls() {
    let mut mount = Mount::with_size("1G");
    let begin = Instant::now();
    let children: Vec<_> = ["one", "two"]
        .map(|name| Command::new("fallocate").args(["-l", "350M"]).arg(mount.path(name)).spawn().unwrap())
        .into();
    let mut calls = Vec::new();
    for mut child in children {
        while child.try_wait().unwrap().is_none() {
            let call = Instant::now();
            fs::write(mount.path("small"), "").unwrap();
            fs::remove_file(mount.path("small")).unwrap();
            calls.push(call.elapsed());
        }
        assert!(child.wait().unwrap().success());
    }
    let whole = begin.elapsed();
    calls.sort();
    // Most are as fast as ever, also on a busy machine; with all threads in allocations, a call would take as long as these.
    assert!(calls.len() > 5 && calls[calls.len() / 2] < whole / 8, "{calls:?} of {whole:?}");
    mount.stop();
}

/// Kills the server, and mounts again over what it has left: the first mount, too.
#[test]
fn files_survive_the_kill_of_the_server() {
    survive_kills(Mount::new(), 5);
}

fn survive_kills(mut mount: Mount, rounds: u8) {
    for round in 0..rounds {
        let dir = mount.path(&format!("dir {round}"));
        fs::create_dir(&dir).unwrap();
        for number in 0..50 {
            fs::write(dir.join(format!("{number}")), vec![round; 5000]).unwrap();
        }
        // Open, without a name: freed by the next server.
        let open = fs::File::create(mount.path("open")).unwrap();
        open.write_all_at(&[1; 100_000], 0).unwrap();
        fs::remove_file(mount.path("open")).unwrap();
        mount.kill();
        mount.start();
        drop(open);
        for round in 0..=round {
            let dir = mount.path(&format!("dir {round}"));
            for number in 0..50 {
                assert_eq!(fs::read(dir.join(format!("{number}"))).unwrap(), vec![round; 5000]);
            }
        }
    }
    mount.stop();
    mount.check();
    let info = run(pmfs().args(["info", "--json"]).arg(mount.file()));
    assert!(info.contains("free_bytes"), "{info}");
}

/// Wrong arguments are errors with a message, and change nothing.
#[test]
fn wrong_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refuses = |command: &mut Command, message: &str| {
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(message), "{command:?}: {text}");
    };
    let file = |name: &str| -> PathBuf { Path::new(dir.path()).join(name) };
    refuses(pmfs().arg("fsck").arg(file("none")), "no such file");
    fs::write(file("text"), "text").unwrap();
    refuses(pmfs().arg("fsck").arg(file("text")), "");
    assert_eq!(fs::read(file("text")).unwrap(), b"text");
    refuses(pmfs().args(["mkfs", "--size", "64M"]).arg(file("text")), "exists");
    refuses(pmfs().args(["mkfs", "--size", "4K"]).arg(file("small")), "small");
    assert!(!file("small").exists());
}

/// An entry of an access control list.
fn acl_entry(tag: u8, permissions: u8, id: u32) -> Vec<u8> {
    [&[tag, 0, permissions, 0][..], &id.to_le_bytes()].concat()
}

/// A list with permissions for the owner, user 1, the group, the mask and others.
fn acl([owner, user, group, mask, other]: [u8; 5]) -> Vec<u8> {
    let none = u32::MAX;
    [
        vec![2, 0, 0, 0],
        acl_entry(0x01, owner, none),
        acl_entry(0x02, user, 1),
        acl_entry(0x04, group, none),
        acl_entry(0x10, mask, none),
        acl_entry(0x20, other, none),
    ]
    .concat()
}

#[test]
fn access_control_lists_are_kept_inherited_and_checked() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let mut mount = Mount::new();
    let path = |name: &str| mount.path(name);
    let set = |name: &str, list: &str, value: &[u8]| setxattr(path(name), list, value, XattrFlags::empty());
    let get = |name: &str, list: &str| {
        let mut value = [0; 200];
        getxattr(path(name), list, &mut value).map(|len| value[..len].to_vec())
    };
    let mode = |name: &str| fs::metadata(path(name)).unwrap().mode() & 0o7777;
    let chmod = |name: &str, mode: u32| {
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    };

    fs::write(path("file"), b"secret").unwrap();
    set("file", ACCESS, &acl([6, 4, 0, 4, 0])).unwrap();
    assert_eq!(mode("file"), 0o640);
    chmod("file", 0o600);
    assert_eq!(get("file", ACCESS), Ok(acl([6, 4, 0, 0, 0])));
    chmod("file", 0o640);
    assert_eq!(get("file", ACCESS), Ok(acl([6, 4, 0, 4, 0])));
    // As user 1, which has an entry, and as user 2, which has none.
    if rustix::process::getuid().is_root() {
        chmod("", 0o755);
        fs::set_permissions(mount.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for (uid, may_read) in [("1", true), ("2", false)] {
            let ids = ["--reuid", uid, "--regid", uid, "--clear-groups"];
            let read = Command::new("setpriv").args(ids).arg("cat").arg(path("file")).output().unwrap();
            assert_eq!(read.status.success(), may_read, "{uid}: {read:?}");
        }
    }

    fs::create_dir(path("dir")).unwrap();
    assert_eq!(set("file", DEFAULT, &acl([7; 5])), Err(Errno::ACCESS));
    set("dir", DEFAULT, &acl([7, 7, 5, 7, 5])).unwrap();
    // The umask does not count there.
    let masked = |script: &str| {
        let status = Command::new("sh").current_dir(path("")).args(["-c", script]).status().unwrap();
        assert!(status.success());
    };
    masked("umask 077; touch dir/file plain; mkdir dir/below");
    assert_eq!((mode("dir/file"), mode("plain")), (0o664, 0o600));
    assert_eq!(get("dir/file", ACCESS), Ok(acl([6, 7, 5, 6, 4])));
    assert_eq!(get("dir/below", DEFAULT), Ok(acl([7, 7, 5, 7, 5])));
    assert_eq!(get("plain", ACCESS), Err(Errno::NODATA));
    removexattr(path("dir"), DEFAULT).unwrap();
    masked("umask 077; touch dir/plain");
    assert_eq!(mode("dir/plain"), 0o600);

    mount.stop();
    mount.check();
    mount.start();
    let mut value = [0; 200];
    let len = getxattr(mount.path("dir/file"), ACCESS, &mut value).unwrap();
    assert_eq!(value[..len], acl([6, 7, 5, 6, 4]));
    mount.stop();
}

/// A signal unmounts: it leaves no mount that answers nothing, and the file system is closed.
#[test]
fn signals_unmount() {
    use rustix::process::Signal;
    let mut mount = Mount::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        fs::write(mount.path("file"), "contents").unwrap();
        mount.signal(signal);
        assert!(mount.server.take().unwrap().wait().unwrap().success(), "{signal:?}");
        assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 0, "{signal:?}: the directory is usable");
        mount.check();
        mount.start();
    }
    // Files that are open are served until they are closed.
    let mut open = fs::File::create(mount.path("open")).unwrap();
    mount.signal(Signal::TERM);
    let begin = Instant::now();
    while fs::read_dir(mount.path("")).unwrap().count() != 0 {
        assert!(begin.elapsed() < PATIENCE, "the directory is not unmounted");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::io::Write::write_all(&mut open, b"written after the signal").unwrap();
    drop(open);
    assert!(mount.server.take().unwrap().wait().unwrap().success());
    mount.start();
    assert_eq!(fs::read(mount.path("open")).unwrap(), b"written after the signal");
    // A second signal does not wait for them.
    let open = fs::File::open(mount.path("open")).unwrap();
    mount.signal(Signal::TERM);
    while fs::read_dir(mount.path("")).unwrap().count() != 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    mount.signal(Signal::TERM);
    assert_eq!(mount.server.take().unwrap().wait().unwrap().code(), Some(1));
    drop(open);
    mount.check();
}
