//! Disks that keep writes back, or are protected, after their servers were killed.

use super::nbd_common::Client;
use super::scratch::{Scratch, Server, assert_has, names, serving, text};

/// The word of the disk's descriptor that tells of deferred writes.
fn unflushed(scratch: &Scratch) -> u64 {
    let bytes = std::fs::read(scratch.path("disk.pm")).unwrap();
    u64::from_le_bytes(bytes[8192 + 24..8192 + 32].try_into().unwrap())
}

#[test]
fn deferred_writes_survive_killed_servers() {
    let scratch = Scratch::new();
    let socket = scratch.path("disk.pm.sock");
    for (count, options) in [(1, &["--size", "1M"][..]), (2, &[])] {
        let mut server = scratch.serve(&[&["disk.pm", "--scheme", "deferred"], options].concat());
        let mut client = Client::ready(&socket, true);
        if count == 2 {
            assert_eq!(client.read(0, 512), Ok(vec![1; 512]));
        }
        assert_eq!(client.write(0, &[count; 512]), Ok(vec![]));
        server.0.kill().unwrap();
        assert!(!server.wait().success());
        assert_eq!(unflushed(&scratch), u64::from_le_bytes(*b"UNFLUSHD"));
        // What only reads leaves the mark.
        scratch.good(&["check", "disk.pm"]);
        scratch.good(&["info", "disk.pm"]);
        assert_ne!(unflushed(&scratch), 0);
    }
    let server = scratch.serve(&["disk.pm", "--scheme", "clflush", "--subupdate", "--wrverify"]);
    assert_eq!(unflushed(&scratch), 0);
    let mut client = Client::ready(&socket, true);
    assert_eq!(client.read(0, 512), Ok(vec![2; 512]));
    assert_eq!(client.write(0, &[3; 512]), Ok(vec![]));
    drop((client, server));
    let server = scratch.serve(&["disk.pm", "--scheme", "deferred"]);
    assert_ne!(unflushed(&scratch), 0);
    drop(server);
    assert_eq!(unflushed(&scratch), 0, "a stopped server has written everything back");
    std::fs::write(scratch.path("raw"), [0; 512]).unwrap();
    scratch.refuses(&["serve", "raw", "--raw", "--scheme", "deferred"], &["no place for the mark"]);
}

#[test]
fn buffered_writes_survive_killed_servers() {
    let scratch = Scratch::new();
    let socket = scratch.path("disk.pm.sock");
    let slots = tempfile::tempdir_in("/dev/shm").unwrap();
    let place = ["--buffer-dir", slots.path().to_str().unwrap()];
    let serve = |options: &[&str]| scratch.serve(&[&["disk.pm"], &place[..], options].concat());
    let kill = |mut server: Server| {
        server.0.kill().unwrap();
        server.wait();
        assert_eq!(names(slots.path()).len(), 1);
    };
    scratch.good(&["create", "disk.pm", "--size", "1M"]);
    for (last, options) in [
        (0, &["--buffer", "64K"][..]),
        (1, &["--buffer", "16K", "--buffers", "3", "--stride", "8K", "--no-batch"]),
    ] {
        let server = serve(options);
        let mut client = Client::ready(&socket, true);
        assert_eq!(client.read(4096, 40960), Ok(vec![last; 40960]));
        assert_eq!(client.write(4096, &[last + 1; 40960]), Ok(vec![]));
        assert_eq!(client.write(512, &[last + 1; 512]), Ok(vec![]));
        kill(server);
    }
    let message =
        scratch.bad(&[&["serve", "disk.pm", "--read-only", "--transport", "nbd"], &place[..]].concat());
    assert_has(&message, &["left buffered writes"]);
    // A server without buffers stores them.
    let server = serve(&["--protect", "unmapped"]);
    assert_eq!((unflushed(&scratch), names(slots.path()).len()), (0, 0));
    let mut client = Client::ready(&socket, true);
    assert_eq!(client.read(4096, 40960), Ok(vec![2; 40960]));
    assert_eq!(client.read(512, 512), Ok(vec![2; 512]));
    drop((client, server));
    // A stopped server has stored everything, and leaves no file.
    let server = serve(&["--buffer", "64K"]);
    let mut client = Client::ready(&socket, true);
    assert_eq!(client.write(0, &[3; 4096]), Ok(vec![]));
    drop((client, server));
    assert_eq!((unflushed(&scratch), names(slots.path()).len()), (0, 0));
    let server = serve(&[]);
    assert_eq!(Client::ready(&socket, true).read(0, 4096), Ok(vec![3; 4096]));
    drop(server);
    scratch.refuses(&["serve", "disk.pm", "--buffer", "5000"], &["multiples of 4 KiB"]);
    scratch.refuses(
        &["serve", "disk.pm", "--buffer", "64K", "--scheme", "deferred"],
        &["not with --scheme deferred"],
    );
}

#[test]
fn protected_disks_survive_killed_servers() {
    let scratch = Scratch::new();
    let (socket, mut last) = (scratch.path("disk.pm.sock"), 0);
    scratch.good(&["create", "disk.pm", "--size", "1M"]);
    for options in [
        &["--protect", "page-table"][..],
        &["--protect", "page-table", "--protect-reads", "--window", "2M", "--scheme", "clwb"],
        &["--protect", "async", "--protect-after", "100"],
        &["--protect", "unmapped"],
        &["--protect", "unmapped", "--protect-reads", "--scheme", "deferred", "--subupdate"],
        &["--protect", "private-map", "--wrverify"],
        &["--protect", "private-map", "--scheme", "deferred", "--emulate", "pcm", "--on-stray", "log"],
    ] {
        let mut server = scratch.serve(&[&["disk.pm"], options].concat());
        let mut client = Client::ready(&socket, true);
        assert_eq!(client.read(4096, 8192), Ok(vec![last; 8192]), "{options:?}");
        last += 1;
        assert_eq!(client.write(4096, &[last; 8192]), Ok(vec![]), "{options:?}");
        assert_eq!(client.read(4096, 8192), Ok(vec![last; 8192]), "{options:?}");
        server.0.kill().unwrap();
        server.wait();
    }
    let wrong = scratch.run(&["serve", "disk.pm", "--protect", "mprotect"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert_has(&text(&wrong.stderr), &["private-map"]);
    let (server, up) = serving(&mut scratch.command(&[
        "--json",
        "serve",
        "disk.pm",
        "--transport",
        "nbd",
        "--protect",
        "unmapped",
    ]));
    assert_eq!(up["event"], "serving");
    drop(server);
}

/// Of a disk whose server was killed, the file lacks what is in the buffers: `info` and `check` say so, and `check` verifies it.
#[test]
fn info_and_check_tell_of_buffered_writes() {
    let scratch = Scratch::new();
    scratch.create();
    assert!(!scratch.good(&["info", "disk.pm"]).contains("pending"));
    let mut server = scratch.serve(&["disk.pm", "--buffer", "64K", "--buffer-dir", "."]);
    let mut client = Client::ready(&scratch.path("disk.pm.sock"), true);
    assert_eq!(client.write(0, &[7; 8192]), Ok(vec![]));
    server.0.kill().unwrap();
    server.wait();
    drop(client);
    let words = ["2 blocks of completed writes of a killed server are in"];
    assert_has(&scratch.good(&["info", "disk.pm", "--buffer-dir", "."]), &words);
    assert_has(&scratch.good(&["check", "disk.pm", "--buffer-dir", "."]), &words);
    let json: serde_json::Value =
        serde_json::from_str(&scratch.good(&["--json", "info", "disk.pm", "--buffer-dir", "."])).unwrap();
    assert!(json["pending"].as_str().unwrap().contains("2 blocks"), "{json}");
    // Without them a server is refused.
    let missing = scratch.run(&["check", "disk.pm"]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    assert_has(&text(&missing.stdout), &["completed writes of a killed server cannot be stored"]);
    drop(scratch.serve(&["disk.pm", "--buffer-dir", "."]));
    assert!(!scratch.good(&["check", "disk.pm", "--buffer-dir", "."]).contains("pending"));
}
