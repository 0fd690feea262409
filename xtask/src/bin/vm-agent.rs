//! The agent in the guest: runs the host's shell scripts one after another, and returns their output and exit codes.
//!
//! init starts it with the device of the virtio-serial port as its argument, and powers the guest off when it ends, which is when the host closes the
//! port. It is compiled by rustc as a static program without dependencies.

#![forbid(unsafe_code)]

#[path = "../vm/frame.rs"]
mod frame;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use frame::Frame;

/// The interval of polling for output and for the end of a script.
const PAUSE: Duration = Duration::from_millis(2);

/// `O_NONBLOCK` on the architectures of QEMU's q35 machine.
const NONBLOCK: i32 = 0o4000;

fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::args().nth(1).ok_or("usage: vm-agent PORT")?;
    let mut port = OpenOptions::new().read(true).write(true).open(port)?;
    let scripts = listen(port.try_clone()?);
    Frame::Ready.write(&mut port)?;
    for script in scripts {
        let code = run(&script, &mut port)?;
        Frame::Exit(code).write(&mut port)?;
    }
    Ok(())
}

/// Reads the host's scripts in a separate thread, so that the agent ends with its host even during a script.
fn listen(mut port: File) -> Receiver<String> {
    let (sender, scripts) = mpsc::channel();
    thread::spawn(move || {
        let ended = loop {
            let script = match Frame::read(&mut port) {
                Ok(Some(Frame::Run(script))) => String::from_utf8(script).map_err(|error| error.to_string()),
                Ok(Some(frame)) => Err(format!("unexpected frame from the host: {frame:?}")),
                Ok(None) => break 0,
                Err(error) => Err(error.to_string()),
            };
            match script.map(|script| sender.send(script)) {
                Ok(Ok(())) => {}
                // The main thread has failed, and reports its error.
                Ok(Err(_)) => return,
                Err(error) => {
                    eprintln!("{error}");
                    break 1;
                }
            }
        };
        process::exit(ended)
    });
    scripts
}

/// Runs a script and sends its output as it arrives. Returns when the shell has ended, even if background processes still hold the pipes: the output of
/// the shell and of the processes that it waited for is in the pipes by then.
fn run(script: &str, port: &mut File) -> io::Result<u8> {
    let (stdout, stdout_writer) = io::pipe()?;
    let (stderr, stderr_writer) = io::pipe()?;
    let mut shell = Command::new("/bin/sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(stdout_writer)
        .stderr(stderr_writer)
        .spawn()?;
    let mut out = nonblocking(stdout.as_raw_fd())?;
    let mut err = nonblocking(stderr.as_raw_fd())?;
    loop {
        // Checked before the pipes are read, so that all output is read after the shell has ended.
        let ended = shell.try_wait()?;
        let some_out = forward(&mut out, Frame::Stdout, port)?;
        let some_err = forward(&mut err, Frame::Stderr, port)?;
        match ended {
            Some(status) => {
                discard(stdout);
                discard(stderr);
                return Ok(exit_code(status));
            }
            None if some_out || some_err => {}
            None => thread::sleep(PAUSE),
        }
    }
}

/// Opens the pipe again, in non-blocking mode.
fn nonblocking(pipe: RawFd) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NONBLOCK).open(format!("/proc/self/fd/{pipe}"))
}

/// Sends the current content of the pipe, and returns whether there was any.
fn forward(pipe: &mut File, frame: fn(Vec<u8>) -> Frame, port: &mut impl Write) -> io::Result<bool> {
    let mut any = false;
    loop {
        let mut bytes = vec![0; 64 << 10];
        match pipe.read(&mut bytes) {
            Ok(0) => return Ok(any),
            Ok(count) => {
                bytes.truncate(count);
                frame(bytes).write(port)?;
                any = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(any),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads and discards the output of background processes, which a closed pipe would kill.
fn discard(mut pipe: PipeReader) {
    thread::spawn(move || io::copy(&mut pipe, &mut io::sink()));
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
