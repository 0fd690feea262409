//! The command as a user runs it: its messages and exit codes for bad input, which changes nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod nbd_common;

use nbd_common::{Client, PATIENCE, error_of};
use pm_core::pool::format::Header;
use rustix::fs::{FlockOperation, fcntl_lock};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory in memory, with a copy of the program that every user may run.
struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // By another process: children that other threads start inherit a file that this one has open for writing, and a file that is open
        // for writing cannot be run.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_pmbd")).arg(dir.path()).status().unwrap();
        assert!(copied.success());
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("pmbd"));
        command.args(args).current_dir(self.dir.path()).env("PMBD_RUN_DIR", self.path("run"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs and expects success. Returns its output.
    fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs and expects failure with exit code 1 and no panic. Returns the message in one line.
    fn bad(&self, args: &[&str]) -> String {
        message(&self.run(args))
    }

    /// Runs and expects a failure whose message contains these words.
    #[track_caller]
    fn refuses(&self, args: &[&str], words: &[&str]) {
        assert_has(&self.bad(args), words);
    }

    fn create(&self) -> PathBuf {
        self.good(&["create", "disk.pm", "--size", "1M"]);
        self.path("disk.pm")
    }

    fn serve(&self, args: &[&str]) -> Server {
        serving(self.command(&["--json", "serve"]).args(args).args(["--transport", "nbd"])).0
    }
}

/// A server that is stopped when dropped.
struct Server(Child);

impl Server {
    /// Waits for a server that was stopped or killed.
    fn wait(mut self) -> ExitStatus {
        let status = self.0.wait().unwrap();
        std::mem::forget(self);
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success(), "a server ends with success on SIGTERM");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn message(output: &Output) -> String {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    // The report is wrapped and has a margin.
    message
        .split_whitespace()
        .filter(|word| !matches!(*word, "│" | "×" | "╰─▶" | "├─▶"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Asserts that a text contains all of these words.
#[track_caller]
fn assert_has(text: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(text.contains(words), "{words:?} is not in: {text}"));
}

/// The names in a directory, in order.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

fn serve_refuses(scratch: &Scratch, path: &Path, words: &str) {
    let before = fs::read(path).unwrap();
    scratch.refuses(&["serve", path.to_str().unwrap(), "--transport", "nbd"], &[words]);
    assert!(fs::read(path).unwrap() == before, "the file was changed");
}

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
fn truncated_pool_is_refused() {
    let scratch = Scratch::new();
    let path = scratch.create();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(512 << 10).unwrap();
    serve_refuses(&scratch, &path, "the pool is truncated: it has 524288 bytes of 1064960");
    file.set_len(5000).unwrap();
    serve_refuses(&scratch, &path, "the size of 5000 bytes is not a multiple of 4096");
    file.set_len(0).unwrap();
    serve_refuses(&scratch, &path, "this is not a pool");
}

#[test]
fn corrupted_header_is_restored_and_reported() {
    let scratch = Scratch::new();
    let path = scratch.create();
    flip(&path, 70);
    let checked = scratch.run(&["check", "disk.pm"]);
    assert_eq!(checked.status.code(), Some(3));
    assert!(text(&checked.stdout).contains("its backup was used"), "{}", text(&checked.stdout));
    assert!(text(&checked.stdout).contains("--repair"), "a check alone repairs nothing");
    assert_eq!(scratch.run(&["check", "disk.pm"]).status.code(), Some(3));
    assert_eq!(scratch.run(&["check", "disk.pm", "--repair"]).status.code(), Some(3));
    assert_eq!(scratch.run(&["check", "disk.pm"]).status.code(), Some(0));

    flip(&path, 70);
    let mut command = scratch.command(&["serve", "disk.pm", "--transport", "nbd"]);
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines: Vec<_> =
        BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok).take(6).collect();
    drop(Server(server));
    assert!(
        lines.iter().any(|line| line.contains("corruption") && line.contains("its backup was used")),
        "{lines:?}"
    );
}

/// A repair is reported even if other corruption is beyond repair. A pool without a disk is not changed.
#[test]
fn check_reports_header_and_descriptor_corruption() {
    let scratch = Scratch::new();
    let path = scratch.create();
    let sound = fs::read(&path).unwrap()[..4096].to_vec();
    flip(&path, 70);
    flip(&path, 8192 + 9);
    let check = |args: &[&str]| -> serde_json::Value {
        let output = scratch.run(&[&["--json", "check", "disk.pm"], args].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for (args, repaired, corruption_count) in
        [(&[][..], false, 2), (&["--repair"], true, 2), (&["--repair"], false, 1), (&[], false, 1)]
    {
        let told = check(args);
        assert_eq!(told["repaired"], repaired, "{told}");
        assert_eq!(told["corruption"].as_array().unwrap().len(), corruption_count, "{told}");
        assert_eq!(fs::read(&path).unwrap()[..4096] == sound, repaired || corruption_count == 1);
    }

    let heap = scratch.path("heap.pm");
    let options = pm_core::RegionOptions::new().sparse(true);
    drop(pm_core::Pool::create(&heap, 8 << 20, &options, &pm_core::PoolOptions::new()).unwrap());
    let before = fs::metadata(&heap).unwrap().blocks();
    assert_eq!(scratch.run(&["check", "--repair", "heap.pm"]).status.code(), Some(1));
    assert_eq!(fs::metadata(&heap).unwrap().blocks(), before);
}

#[test]
fn two_corrupted_headers_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.create();
    let len = fs::metadata(&path).unwrap().len();
    flip(&path, 70);
    flip(&path, len - 4096 + 70);
    serve_refuses(&scratch, &path, "both headers are corrupted");
    let checked = scratch.run(&["check", "disk.pm", "--repair"]);
    assert_eq!(checked.status.code(), Some(3));
    assert!(text(&checked.stdout).contains("nothing that could be restored"), "{}", text(&checked.stdout));
}

#[test]
fn other_pool_versions_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.create();
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - size_of::<Header>();
    for (version, words, help) in [
        (3, "format version 3, and this program supports versions up to 2", "a newer pmbd can open it"),
        (
            1,
            "format version 1, and this program supports only version 2",
            "the pmbd of the version that made it",
        ),
    ] {
        for at in [0, last] {
            bytes[at + 8] = version;
            let crc = crc32c::crc32c(&bytes[at..at + 4092]);
            bytes[at + 4092..at + 4096].copy_from_slice(&crc.to_le_bytes());
        }
        fs::write(&path, &bytes).unwrap();
        serve_refuses(&scratch, &path, words);
        scratch.refuses(&["info", "disk.pm"], &[help]);
    }
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

/// Failing requests and refused clients: a client may cause thousands a second, which could fill the disk of the server's log.
#[test]
fn messages_caused_by_clients_are_limited() {
    const CAUSES: usize = 150;
    let scratch = Scratch::new();
    fs::write(scratch.path("image"), vec![7; 1 << 20]).unwrap();
    let mut command = scratch.command(&["--json", "serve", "image", "--raw", "--transport", "nbd"]);
    let began = Instant::now();
    let (server, _) = serving(command.args(["--max-clients", "1"]).stderr(Stdio::piped()));
    let mut client = Client::ready(&scratch.path("image.sock"), true);
    let file = fs::OpenOptions::new().write(true).open(scratch.path("image")).unwrap();
    file.set_len(4096).unwrap();
    for _ in 0..CAUSES {
        assert_ne!(error_of(&client.read(8192, 512)), 0);
    }
    for _ in 0..CAUSES {
        let mut refused = Client::connect(&scratch.path("image.sock"));
        std::io::Read::read_to_end(&mut refused, &mut Vec::new()).unwrap();
    }
    drop(client);
    let said = stop_and_read_stderr(server);
    // Five in each period of ten seconds.
    let most = 5 * usize::try_from(began.elapsed().as_secs() / 10 + 2).unwrap();
    for message in ["a request failed", "too many clients"] {
        let count = said.matches(message).count();
        assert!((5..=most.min(CAUSES - 1)).contains(&count), "{count} times {message:?}:\n{said}");
    }
}

/// Standard error, and what keeps it as it is.
type Log = fn() -> (Option<std::io::PipeReader>, Stdio);

/// The log's disk is full, its pipe has no reader, or a reader that does not read. Each would end or block a server that writes its log itself.
#[test]
fn log_that_cannot_be_written_does_not_disturb_requests() {
    // More than a pipe holds: a line for each request.
    const REQUESTS: u64 = 3000;
    let logs: [(&str, Log); 3] = [
        ("full", || (None, fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into())),
        ("closed", || (None, std::io::pipe().unwrap().1.into())),
        ("unread", || {
            let (reader, writer) = std::io::pipe().unwrap();
            (Some(reader), writer.into())
        }),
    ];
    for (name, log) in logs {
        let scratch = Scratch::new();
        fs::write(scratch.path("image"), vec![7; 1 << 20]).unwrap();
        let mut command = scratch.command(&["--json", "serve", "image", "--raw", "--transport", "nbd"]);
        let (held, stderr) = log();
        let (mut server, _) = serving(command.env("RUST_LOG", "trace").stderr(stderr));
        drop(command);
        let mut client = Client::ready(&scratch.path("image.sock"), true);
        for number in 0..REQUESTS {
            assert_eq!(client.write(number % 100 * 512, &[9; 512]), Ok(vec![]), "{name}, request {number}");
            // Each connection has lines of its own.
            if number % 30 == 0 {
                drop(Client::ready(&scratch.path("image.sock"), true));
            }
        }
        drop(client);
        assert!(server.0.try_wait().unwrap().is_none(), "{name}: the server has ended");
        drop(server);
        drop(held);
    }
}

/// What must not happen: because lines were lost once, in a burst long ago, the last lines of the log are lost, too: those that say why a server ends, and
/// that completed writes could not be written back. Here the reader reads again; so the lines that wait at the end can all be written.
#[test]
fn last_lines_are_written_although_earlier_ones_were_lost() {
    use std::io::Read as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    const LAST: u64 = 6000;
    for has_lost in [false, true] {
        let scratch = Scratch::new();
        fs::write(scratch.path("image"), vec![7; 1 << 20]).unwrap();
        let mut command = scratch.command(&["--json", "serve", "image", "--raw", "--transport", "nbd"]);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (server, _) = serving(command.env("RUST_LOG", "trace").stderr(writer));
        drop(command);
        let (may_read, said) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let reading = {
            let (may_read, said) = (Arc::clone(&may_read), Arc::clone(&said));
            std::thread::spawn(move || {
                let mut buffer = [0; 1 << 12];
                loop {
                    while !may_read.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    match reader.read(&mut buffer).unwrap() {
                        0 => return,
                        len => said.lock().unwrap().extend_from_slice(&buffer[..len]),
                    }
                }
            })
        };
        // Each connection has a line of its own.
        let connect = |count: u64| {
            (0..count).for_each(|_| drop(Client::ready(&scratch.path("image.sock"), true)));
            std::thread::sleep(Duration::from_millis(300));
        };
        connect(if has_lost { 14_000 } else { 10 });
        // All that waits is read.
        may_read.store(true, Ordering::Release);
        let mut before = usize::MAX;
        while before != said.lock().unwrap().len() {
            before = said.lock().unwrap().len();
            std::thread::sleep(Duration::from_millis(500));
        }
        // Fewer than may wait. The reader, which waits for the next bytes, takes some of them at once.
        may_read.store(false, Ordering::Release);
        connect(LAST);
        may_read.store(true, Ordering::Release);
        drop(server);
        reading.join().unwrap();
        let lines = said.lock().unwrap()[before..].iter().filter(|byte| **byte == b'\n').count() as u64;
        assert!(lines >= LAST, "{lines} lines of {LAST} connections, after lines were lost: {has_lost}");
    }
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
fn failed_output_is_error_unless_pipe_is_closed() {
    let scratch = Scratch::new();
    scratch.create();
    for args in [&["list"][..], &["info", "disk.pm"], &["check", "disk.pm"], &["completions", "bash"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let said = message(&scratch.command(args).stdout(full).output().unwrap());
        assert!(said.contains("No space left"), "{args:?}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = scratch.command(args).stdout(writer).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{args:?}");
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

/// Starts a server with JSON output. Returns its first event.
fn serving(command: &mut Command) -> (Server, serde_json::Value) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let up: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(up["event"], "serving", "{up}");
    (Server(child), up)
}

fn stop_and_read_stderr(mut server: Server) -> String {
    let mut stderr = server.0.stderr.take().unwrap();
    drop(server);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    said
}

/// Serves a disk with these options to `client`, and returns the server's last event.
fn serve_to(scratch: &Scratch, options: &[&str], client: impl FnOnce(&mut Client)) -> serde_json::Value {
    let serve = ["--json", "serve", "disk.pm", "--size", "1M", "--transport", "nbd"];
    let mut command = scratch.command(&[&serve[..], options].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let server = Server(child);
    client(&mut Client::ready(&scratch.path("disk.pm.sock"), true));
    drop(server);
    serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
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

/// A command in namespaces of its own; the program and its arguments are to be added.
fn unshare(scratch: &Scratch, namespaces: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(namespaces);
    if !rustix::process::geteuid().is_root() {
        // Without root, as the root of a user namespace.
        command.arg("--map-root-user");
    }
    command.arg("--").current_dir(scratch.dir.path()).env("PMBD_RUN_DIR", scratch.path("run"));
    command
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

/// A child that is killed with its children.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Runs a program as process 1 of a PID namespace of its own. /proc stays that of this namespace.
fn as_process_1(scratch: &Scratch, program: &Path, args: &[&str]) -> Command {
    let mut command = unshare(scratch, &["--pid", "--fork", "--kill-child"]);
    command.arg(program).args(args);
    command
}

/// Serves a new disk as process 1 of a PID namespace.
#[track_caller]
fn serve_as_process_1(scratch: &Scratch, disk: &str) -> Killed {
    let args = ["--json", "serve", disk, "--size", "1M", "--transport", "nbd"];
    let mut command = as_process_1(scratch, &scratch.path("pmbd"), &args);
    let mut server = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let stdout = server.0.stdout.take().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        tell.send(line)
    });
    let line = told.recv_timeout(PATIENCE).expect("the server serves");
    assert!(line.contains(r#""event":"serving""#), "{line:?}");
    server
}

#[test]
fn servers_in_two_pid_namespaces_may_share_number() {
    let scratch = Scratch::new();
    let servers = ["a.pm", "b.pm"].map(|disk| serve_as_process_1(&scratch, disk));
    let listed = scratch.good(&["list"]);
    for disk in ["a.pm", "b.pm"] {
        let words = format!("{disk}.sock by process 1 of another PID namespace");
        assert!(listed.contains(&words), "{words:?}: {listed}");
        assert!(UnixStream::connect(scratch.path(&format!("{disk}.sock"))).is_ok());
    }
    drop(servers);
}

#[test]
fn stop_signals_no_process_of_another_pid_namespace() {
    let scratch = Scratch::new();
    let server = serve_as_process_1(&scratch, "disk.pm");
    // In its own namespace, the shell has the server's number.
    let script = r#"trap 'echo signalled' TERM QUIT
timeout 2 "$0" stop disk.pm; timeout 2 "$0" stop disk.pm --force; timeout 2 "$0" stop 1; exit 0"#;
    let program = scratch.path("pmbd");
    let args = ["-c", script, program.to_str().unwrap()];
    let output = as_process_1(&scratch, Path::new("/bin/sh"), &args).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(stdout, "", "{stderr}");
    assert_eq!(stderr.matches("is served by process 1 of another PID namespace").count(), 2, "{stderr}");
    assert_has(&stderr, &["no server has the name 1"]);
    drop(server);
}

#[test]
fn list_removes_only_files_of_dead_servers() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let of_others = ["1--3.json", "1-2-3-4.json", "1-2-x.json", "1-2.json", "package.json"];
    let of_dead_server = "1-2-3.json";
    for name in of_others.iter().chain([&of_dead_server]) {
        fs::write(run.join(name), "{}").unwrap();
    }
    assert_eq!(scratch.good(&["list", "--json"]), "");
    assert_eq!(names(&run), of_others);
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
