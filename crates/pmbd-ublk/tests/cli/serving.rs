//! Disks are created, served, stopped and described.

use super::nbd_common::{Client, PATIENCE};
use super::scratch::{
    Scratch, assert_has, names, serve_refuses, serve_to, serving, stop_and_read_stderr, text,
};
use rustix::fs::{FlockOperation, fcntl_lock};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn disk_is_created_checked_and_served() {
    let scratch = Scratch::new();
    let said = scratch.good(&["create", "disk.pm", "--size", "64M", "--sector", "4096"]);
    assert!(said.starts_with("disk.pm: 64 MiB, sectors of 4096 bytes, on memory (tmpfs)"), "{said}");
    assert_has(&said, &["volatile: data survives a crash of the process, but neither a reboot nor"]);
    assert_has(&scratch.good(&["check", "disk.pm"]), &["are sound"]);
    let info: serde_json::Value =
        serde_json::from_str(&scratch.good(&["--json", "info", "disk.pm"])).unwrap();
    assert_eq!(info["capacity_bytes"], 64 << 20);
    assert_eq!(info["domain"], "volatile");

    let server = scratch.serve(&["disk.pm"]);
    assert_has(&scratch.good(&["list"]), &["served over nbd"]);
    assert_has(&scratch.good(&["info", "disk.pm"]), &["served over nbd"]);
    assert!(UnixStream::connect(scratch.path("disk.pm.sock")).is_ok());
    drop(server);
    assert_eq!(scratch.good(&["list"]), "no disk is being served\n");
    assert!(!scratch.path("disk.pm.sock").exists(), "the server removes its socket");
}

#[test]
fn serve_with_size_creates_disk_once() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.pm", "--size", "1M"]);
    assert_eq!(scratch.good(&["stop", "disk.pm"]), "stopped disk.pm\n");
    assert!(server.wait().success());
    let before = fs::read(scratch.path("disk.pm")).unwrap();
    drop(scratch.serve(&["disk.pm", "--size", "1M"]));
    assert!(fs::read(scratch.path("disk.pm")).unwrap() == before, "the existing disk is served");
    scratch.refuses(
        &["serve", "disk.pm", "--size", "2M", "--transport", "nbd"],
        &["already exists, with 1 MiB, but --size is 2 MiB"],
    );
    let said = scratch.bad(&["serve", "new.pm", "--size", "1M", "--tcp", "0.0.0.0:10809"]);
    assert!(said.contains("is not a loopback address") && !scratch.path("new.pm").exists(), "{said}");
    scratch.refuses(&["stop", "disk.pm"], &["no server has the name disk.pm"]);
}

#[test]
fn disk_of_killed_server_is_served_again() {
    let scratch = Scratch::new();
    let mut server = scratch.serve(&["disk.pm", "--size", "1M"]);
    server.0.kill().unwrap();
    assert!(!server.wait().success());
    assert_eq!(scratch.good(&["list"]), "no disk is being served\n");
    drop(scratch.serve(&["disk.pm"]));
}

#[test]
fn file_without_pool_is_served_raw_only() {
    let scratch = Scratch::new();
    let path = scratch.path("image");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    serve_refuses(&scratch, &path, "this is not a pool");
    drop(scratch.serve(&["image", "--raw"]));
    assert_has(&scratch.good(&["info", "image", "--raw"]), &["none: raw bytes"]);
}

#[test]
fn raw_file_of_any_number_of_sectors_is_served() {
    let scratch = Scratch::new();
    let path = scratch.path("image");
    fs::write(&path, vec![7; 4096 + 512]).unwrap();
    scratch.refuses(&["serve", "image", "--raw", "--sector", "4096"], &["not a multiple of"]);
    let server = scratch.serve(&["image", "--raw"]);
    let mut client = Client::ready(&scratch.path("image.sock"), true);
    assert_eq!(client.write(4000, &[9; 608]), Ok(vec![]));
    assert_eq!(client.read(4096, 512), Ok(vec![9; 512]), "the last sector");
    drop(client);
    drop(server);
    let bytes = fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[3999], bytes[4000], bytes[4607]), (4608, 7, 9, 9));
    fs::write(&path, vec![7; 4096 + 100]).unwrap();
    scratch.refuses(&["serve", "image", "--raw"], &["not a multiple of"]);
}

#[test]
fn filling_sparse_raw_file_is_announced() {
    let scratch = Scratch::new();
    let file = fs::File::create(scratch.path("image")).unwrap();
    file.set_len(1 << 20).unwrap();
    let mut command = scratch.command(&["--json", "serve", "image", "--raw", "--transport", "nbd"]);
    let (server, _) = serving(command.stderr(Stdio::piped()));
    let said = stop_and_read_stderr(server);
    assert_has(&said, &["the file has holes", "missing_bytes=1048576"]);
    assert!(!said.contains('\u{1b}'), "no colour codes where no person looks: {said:?}");
}

#[test]
fn stop_is_refused_while_clients_are_connected() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.pm", "--size", "1M"]);
    let mut client = Client::ready(&scratch.path("disk.pm.sock"), true);
    assert_eq!(client.write(0, &[1; 512]), Ok(vec![]));
    let own = format!("process {}", std::process::id());
    // The list is updated concurrently with the client's requests.
    let start = Instant::now();
    let mut listed = scratch.good(&["list"]);
    while !(listed.contains("client") && listed.contains(&own)) {
        assert!(start.elapsed() < PATIENCE, "{listed}");
        listed = scratch.good(&["list"]);
    }
    let listed: serde_json::Value = serde_json::from_str(&scratch.good(&["--json", "list"])).unwrap();
    assert!(listed["clients"][0].as_str().unwrap().starts_with(&own), "{listed}");

    scratch.refuses(&["stop", "disk.pm"], &["clients are connected", &own, "--force"]);
    // Nor does the server end on SIGTERM.
    let process = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(client.read(0, 512), Ok(vec![1; 512]), "the client is still served");

    assert_eq!(scratch.good(&["stop", "disk.pm", "--force"]), "stopped disk.pm\n");
    assert!(server.wait().success());
    assert!(client.is_closed());

    let server = scratch.serve(&["disk.pm"]);
    drop(Client::ready(&scratch.path("disk.pm.sock"), true));
    let number = server.0.id().to_string();
    assert_eq!(
        scratch.good(&["stop", &number]),
        format!("stopped {number}\n"),
        "a disconnected client does not count"
    );
    assert!(server.wait().success());
    assert_eq!(names(&scratch.path("run")), [""; 0]);
}

#[test]
fn failed_serve_leaves_no_new_disk() {
    let scratch = Scratch::new();
    fs::write(scratch.path("socket"), "a file").unwrap();
    for args in [&["--socket", "socket"][..], &["--socket", "no/such/directory"], &["--max-clients", "0"]] {
        let args = [&["serve", "new.pm", "--size", "1M", "--transport", "nbd"], args].concat();
        let failed = scratch.run(&args);
        assert_eq!(failed.status.code(), Some(1), "{args:?}: {failed:?}");
        assert!(!scratch.path("new.pm").exists(), "{args:?}");
    }
    // An existing disk is kept.
    scratch.create();
    scratch.bad(&["serve", "disk.pm", "--size", "1M", "--transport", "nbd", "--socket", "socket"]);
    assert!(scratch.path("disk.pm").exists());
}

/// A process that has opened the file, and locks it afterwards, finds that it has no name.
#[test]
fn new_disk_is_removed_before_its_lock_is_released() {
    let scratch = Scratch::new();
    fs::write(scratch.path("socket"), "a file").unwrap();
    let (start, mut seen) = (Instant::now(), 0);
    while seen < 20 {
        assert!(start.elapsed() < PATIENCE, "the new disk was seen {seen} times only");
        let mut serve = scratch.command(&["serve", "new.pm", "--size", "1M", "--transport", "nbd"]);
        let mut serve = serve.args(["--socket", "socket"]).stderr(Stdio::null()).spawn().unwrap();
        let file = loop {
            match fs::OpenOptions::new().read(true).write(true).open(scratch.path("new.pm")) {
                Ok(file) => break Some(file),
                Err(_) if serve.try_wait().unwrap().is_some() => break None,
                Err(_) => {}
            }
        };
        if let Some(file) = file {
            while fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {}
            assert_eq!(
                file.metadata().unwrap().nlink(),
                0,
                "the disk could be opened, and was removed afterwards"
            );
            seen += 1;
        }
        assert_eq!(serve.wait().unwrap().code(), Some(1));
    }
}

#[test]
fn json_errors_are_objects() {
    let scratch = Scratch::new();
    let object = |args: &[&str], code: i32| {
        let output = scratch.run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let said = text(&output.stderr);
        serde_json::from_str::<serde_json::Value>(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    };
    let error = object(&["--json", "info", "no.pm"], 1);
    assert!(error["error"].as_str().unwrap().contains("no such file"), "{error}");
    assert!(error["help"].as_str().unwrap().contains("pmbd create"), "{error}");
    let error = object(&["--json", "stop", "unknown"], 1);
    assert!(error["error"].as_str().unwrap().contains("unknown"), "{error}");
    let error = object(&["create", "--json", "new.pm"], 2);
    assert!(error["error"].as_str().unwrap().contains("--size"), "{error}");
}

#[test]
fn uri_is_percent_encoded_and_tcp_access_is_reported() {
    let scratch = Scratch::new();
    let mut command = scratch.command(&["--json", "serve", "disk.pm", "--size", "1M", "--transport", "nbd"]);
    let (server, up) = serving(command.args(["--socket", "a b&c%.sock", "--tcp", "127.0.0.1:0"]));
    let uri = up["detail"]["uri"].as_str().unwrap();
    assert!(uri.ends_with("/a%20b%26c%25.sock"), "{uri}");
    assert!(up["detail"]["tcp_access"].as_str().unwrap().contains("every user of this machine"), "{up}");
    let output =
        Command::new("nbdinfo").args(["--size", uri]).output().expect("nbdinfo: apt-get install libnbd-bin");
    assert_eq!(text(&output.stdout), "1048576\n", "{}", text(&output.stderr));
    drop(server);
}

#[test]
fn slow_memory_is_emulated() {
    let scratch = Scratch::new();
    let slow = ["--emulate", "nand", "--write-latency", "1000000"];
    let stopped = serve_to(&scratch, &slow, |client| {
        let begin = Instant::now();
        assert_eq!(client.write(0, &[1; 512]), Ok(vec![]));
        assert!(begin.elapsed() > Duration::from_millis(8), "eight lines, each in a millisecond");
        assert_eq!(client.read(0, 512), Ok(vec![1; 512]));
    });
    let delayed = &stopped["detail"]["emulation"]["delayed_s"];
    assert!(delayed.as_f64().unwrap() > 0.008, "{stopped}");
    let serve = ["serve", "new.pm", "--size", "1M", "--transport", "nbd"];
    scratch.refuses(&[&serve[..], &["--emulate", "stt-mram"]].concat(), &["1 x 64 bytes would take 6ns"]);
    scratch.refuses(&[&serve[..], &["--rdsx", "0.5"]].concat(), &["a factor from 1 to 1,000,000"]);
    assert!(!scratch.path("new.pm").exists());
}

#[test]
fn times_are_measured_on_request() {
    let scratch = Scratch::new();
    let times = |options: &[&str]| {
        let mut took_s = 0.0;
        let stopped = serve_to(&scratch, options, |client| {
            let begin = Instant::now();
            for at in 0..64 {
                assert_eq!(client.write(at * 4096, &[1; 4096]), Ok(vec![]));
            }
            took_s = begin.elapsed().as_secs_f64();
        });
        let times = stopped["detail"]["times"].clone();
        if times.is_null() {
            return None;
        }
        let [windows, copies, fences, delays] =
            ["windows_s", "copies_s", "fences_s", "delays_s"].map(|name| times[name].as_f64().unwrap());
        assert!(windows + copies + fences + delays < took_s + 0.1, "{times} of {took_s}");
        assert!(copies > 0.0 && fences > 0.0, "{times}");
        Some((windows, delays))
    };
    assert_eq!(times(&["--protect", "page-table"]), None);
    assert_eq!(times(&["--times"]), Some((0.0, 0.0)));
    let (windows, delays) = times(&["--times", "--protect", "page-table"]).unwrap();
    assert!(windows > 0.0 && delays == 0.0, "{windows} {delays}");
    // 64 lines a write, each in a microsecond.
    let slow = ["--times", "--write-latency", "64000"];
    let (windows, delays) = times(&slow).unwrap();
    assert!(windows == 0.0 && delays > 64.0 * 64e-6 / 2.0, "{windows} {delays}");
}

#[test]
fn server_survives_hangup_and_writable_run_directory_is_refused() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.pm", "--size", "1M"]);
    let process = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    assert_has(&scratch.good(&["list"]), &["served over nbd"]);
    drop(server);
    fs::set_permissions(scratch.path("run"), fs::Permissions::from_mode(0o777)).unwrap();
    scratch.refuses(&["list"], &["only this user can write to"]);
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        assert_has(&scratch.good(&["completions", shell]), &["pmbd"]);
    }
    fs::create_dir(scratch.path("man")).unwrap();
    scratch.good(&["man", "man"]);
    for page in ["pmbd.1", "pmbd-serve.1", "pmbd-stop.1"] {
        assert!(scratch.path("man").join(page).exists(), "{page}");
    }
}

/// The server that takes over the disk's device needs the pages, and in a container the device may be invisible.
#[test]
fn info_and_check_keep_pages_cached() {
    let scratch = Scratch::new();
    // Not in the directory of temporary files, which may be memory.
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().canonicalize().unwrap().join("disk.pm");
    let disk = path.to_str().unwrap();
    // Larger than the kernel's read-ahead.
    scratch.good(&["create", disk, "--size", "32M"]);
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let cached_bytes = || -> u64 {
        let fincore =
            Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES", disk]).output();
        text(&fincore.unwrap().stdout).trim().parse().unwrap()
    };
    for command in ["info", "check"] {
        // The kernel may evict some pages at any time; a discard leaves none of what is not mapped.
        let most_bytes = fs::read(&path).unwrap().len() as u64 / 4 * 3;
        assert!(cached_bytes() > most_bytes, "before {command}");
        scratch.good(&[command, disk]);
        assert!(cached_bytes() > most_bytes, "after {command}");
    }
}
