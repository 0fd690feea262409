//! The server's log and output, when they cannot be written.

use super::nbd_common::{Client, error_of};
use super::scratch::{Scratch, message, serving, stop_and_read_stderr, text};
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

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
