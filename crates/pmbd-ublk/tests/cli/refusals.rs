//! What is refused, and changes nothing.

use super::nbd_common::PATIENCE;
use super::scratch::{Scratch, assert_has, message, names, text, unshare};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;
use std::time::Instant;

#[test]
fn read_only_and_raw_create_no_disk() {
    let scratch = Scratch::new();
    let serve = ["serve", "new.pm", "--size", "1M", "--transport", "nbd"];
    scratch
        .refuses(&[&serve[..], &["--read-only"]].concat(), &["read-only medium help: without --read-only"]);
    scratch.refuses(&[&serve[..], &["--raw"]].concat(), &["no such file, and --raw serves an existing file"]);
    assert!(!scratch.path("new.pm").exists());
    // The size of an existing disk is only compared.
    scratch.create();
    drop(scratch.serve(&["disk.pm", "--size", "1M", "--read-only"]));
    fs::write(scratch.path("raw"), vec![0; 1 << 20]).unwrap();
    drop(scratch.serve(&["raw", "--size", "1M", "--raw"]));
}

#[test]
fn invalid_sizes_are_refused_and_create_nothing() {
    let scratch = Scratch::new();
    for (size, words) in [
        ("0", "a device of zero bytes has no sectors"),
        ("1000", "the capacity of 1000 bytes is not a multiple of the sector of 512 bytes"),
        ("16T", "no space for"),
        ("16777215T", "no space for"),
    ] {
        for args in [["create", "new.pm", "--size", size], ["serve", "new.pm", "--size", size]] {
            let said = scratch.bad(&args);
            assert!(said.contains(words), "{args:?}: {said}");
            assert!(!scratch.path("new.pm").exists());
        }
    }
    let usage = scratch.run(&["create", "new.pm", "--size", "1.5X"]);
    assert_eq!(usage.status.code(), Some(2));
    scratch.refuses(&["create", "new.pm", "--size", "1M", "--sector", "1024"], &["choose 512 or 4096"]);
    assert_eq!(names(scratch.dir.path()), ["pmbd"]);
}

#[test]
fn second_opener_is_refused() {
    let scratch = Scratch::new();
    let _server = scratch.serve(&["disk.pm", "--size", "1M"]);
    scratch.refuses(
        &["serve", "disk.pm", "--transport", "nbd", "--socket", "other.sock"],
        &["is in use: it is open elsewhere"],
    );
    scratch.refuses(&["check", "disk.pm"], &["is in use: it is open elsewhere"]);
    scratch.refuses(&["create", "disk.pm", "--size", "1M"], &["already exists"]);
    assert!(UnixStream::connect(scratch.path("disk.pm.sock")).is_ok(), "the first server continues");
}

#[test]
fn unsuitable_paths_are_refused() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("dir")).unwrap();
    scratch.refuses(&["serve", "dir"], &["dir is a directory, not a regular file or a device-dax"]);
    scratch.refuses(&["serve", "/dev/null"], &["is a character device"]);
    scratch.refuses(&["serve", "no.pm"], &["no such file help: `pmbd create no.pm --size 1G` makes one"]);
    scratch.refuses(&["create", "no/dir/disk.pm", "--size", "1M"], &["no such file"]);
}

#[test]
fn only_socket_of_dead_server_is_replaced() {
    let scratch = Scratch::new();
    scratch.create();
    let socket = scratch.path("disk.pm.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    scratch.refuses(&["serve", "disk.pm", "--transport", "nbd"], &["cannot listen for NBD clients"]);
    assert!(UnixStream::connect(&socket).is_ok(), "the other server continues");
    drop(listener);
    // A child that another test is starting holds the listener until it calls exec.
    let start = Instant::now();
    while UnixStream::connect(&socket).is_ok() {
        assert!(start.elapsed() < PATIENCE, "the listener is closed");
    }
    drop(scratch.serve(&["disk.pm"]));
    fs::write(&socket, "a file").unwrap();
    scratch.bad(&["serve", "disk.pm", "--transport", "nbd"]);
    assert_eq!(fs::read(&socket).unwrap(), b"a file");
}

/// Runs the program as a user that owns no files here.
fn as_other_user(scratch: &Scratch, args: &[&str]) -> Output {
    let mut command = scratch.command(args);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command.env("PMBD_RUN_DIR", "/nonexistent").output().unwrap()
}

#[test]
fn file_permissions_are_respected() {
    let scratch = Scratch::new();
    let path = scratch.create();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let said = message(&as_other_user(&scratch, &["info", "disk.pm"]));
    assert_has(&said, &["no permission to open it for reading"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let said = message(&as_other_user(&scratch, &["serve", "disk.pm", "--transport", "nbd"]));
    assert_has(&said, &["no permission to open it for reading and writing"]);
    assert_has(&said, &["--read-only"]);
    let info = as_other_user(&scratch, &["info", "disk.pm"]);
    assert!(text(&info.stdout).contains("1 MiB"), "{}", text(&info.stderr));
}

#[test]
fn missing_ublk_driver_has_help() {
    let scratch = Scratch::new();
    scratch.create();
    if Path::new("/dev/ublk-control").exists() {
        // With a driver it serves; the tests with a real kernel cover that.
        assert_has(&scratch.good(&["list"]), &["no disk"]);
        return;
    }
    scratch.refuses(&["serve", "disk.pm", "--transport", "ublk"], &["modprobe ublk_drv", "--transport nbd"]);
}

/// Runs the program without permission to open /dev/ublk-control, on a machine with these ublk devices.
fn without_ublk_permission(scratch: &Scratch, devices: &[&str], args: &[&str]) -> Output {
    let script = r#"set -e
mkdir dev; mount -t tmpfs tmpfs dev; mkdir dev/shm; mount --bind /dev/shm dev/shm
for node in null zero urandom; do touch dev/$node; mount --bind /dev/$node dev/$node; done
touch dev/ublk-control; chmod 0 dev/ublk-control; mount --rbind dev /dev
mount -t tmpfs tmpfs /sys/class; mkdir /sys/class/ublk-char; for device in $0; do mkdir /sys/class/ublk-char/$device; done
exec setpriv --bounding-set=-all --inh-caps=-all -- timeout 10 "$@""#;
    let mut command = unshare(scratch, &["--mount"]);
    command.args(["/bin/sh", "-c", script, &devices.join(" ")]).arg(scratch.path("pmbd")).args(args);
    let output = command.output().unwrap();
    fs::remove_dir(scratch.path("dev")).unwrap();
    output
}

#[test]
fn disk_is_unchanged_if_ublk_driver_may_not_be_queried() {
    let scratch = Scratch::new();
    scratch.create();
    let writers: [&[&str]; 3] = [
        &["serve", "disk.pm", "--transport", "nbd"],
        &["check", "disk.pm", "--repair"],
        &["create", "disk.pm", "--format", "--overwrite"],
    ];
    for args in writers {
        let said = message(&without_ublk_permission(&scratch, &["ublkc0"], args));
        assert_has(&said, &["may be disk.pm, waiting for its next server"]);
        assert_has(&said, &["run this as root"]);
    }
    for (devices, args) in [
        (&["ublkc0"][..], &["info", "disk.pm"][..]),
        (&["ublkc0"], &["check", "disk.pm"]),
        (&["ublkc0"], &["create", "new.pm", "--size", "1M"]),
        // No device can wait.
        (&[], &["check", "disk.pm", "--repair"]),
    ] {
        let output = without_ublk_permission(&scratch, devices, args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    }
}

/// What would have no effect is refused, with what would have.
#[test]
fn options_without_effect_are_refused() {
    let scratch = Scratch::new();
    let disk = scratch.create();
    let before = fs::read(&disk).unwrap();
    for options in
        [&["--window", "8K"][..], &["--protect-reads"], &["--on-stray", "log"], &["--protect-after", "7"]]
    {
        let output = scratch.run(&[&["serve", "disk.pm", "--transport", "nbd"], options].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", text(&output.stderr));
        assert_has(&text(&output.stderr), &["--protect <METHOD>"]);
    }
    for (options, words) in [
        (&["--protect", "none", "--protect-reads"][..], "have no effect with --protect none"),
        (&["--protect", "none", "--on-stray", "log"], "have no effect with --protect none"),
        (&["--protect", "unmapped", "--window", "8K"], "--window is for --protect page-table and async"),
        (&["--protect", "page-table", "--protect-after", "7"], "--protect-after is for --protect async"),
        (&["--read-only", "--buffer", "64K"], "--read-only refuses writes"),
        (&["--scheme", "clflush", "--flush", "clwb"], "--scheme clflush writes back by clflush"),
    ] {
        scratch.refuses(&[&["serve", "disk.pm", "--transport", "nbd"], options].concat(), &[words]);
    }
    assert!(fs::read(&disk).unwrap() == before);
}
