//! The server in the background: the command ends when the file system is mounted, and the server goes on without it.

use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_cli_common::say;
use rustix::stdio::{dup2_stderr, dup2_stdout};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, ExitCode, Stdio};

/// Starts the server as another process, with the words of a command line `pmfs mount`, all of them, so that no option is lost. Waits until the server has
/// mounted the file system, or has ended. Its errors are on the standard error of this process.
pub(super) fn start(words: impl IntoIterator<Item = OsString>, is_quiet: bool) -> Result<ExitCode> {
    let mut command = Command::new("/proc/self/exe");
    let mut is_to_mark = true;
    for word in words {
        // The subcommand, which only options without values can precede.
        let is_subcommand = is_to_mark && word == "mount";
        command.arg(word);
        if is_subcommand {
            command.arg("--in-background");
            is_to_mark = false;
        }
    }
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut server = started.into_diagnostic().wrap_err("starting the server")?;
    let mut line = String::new();
    if let Some(out) = server.stdout.take() {
        BufReader::new(out).read_line(&mut line).into_diagnostic().wrap_err("waiting for the server")?;
    }
    if line.is_empty() {
        // It has reported why.
        let status = server.wait().into_diagnostic().wrap_err("waiting for the server")?;
        let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
        return Ok(ExitCode::from(code.unwrap_or(1)));
    }
    if !is_quiet {
        say(line.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Leaves the session and the standard streams of the command that has started this server. Its warnings go to the system's log.
pub(super) fn detach() -> Result<()> {
    rustix::process::setsid().into_diagnostic().wrap_err("leaving the session")?;
    let null = OpenOptions::new().write(true).open("/dev/null");
    let null = null.into_diagnostic().wrap_err("/dev/null")?;
    let log = UnixDatagram::unbound().and_then(|log| {
        log.connect("/dev/log")?;
        // A log that nothing reads delays no request.
        log.set_nonblocking(true)?;
        Ok(log)
    });
    let err = log.as_ref().map_or(null.as_fd(), |log| log.as_fd());
    dup2_stdout(&null)
        .and_then(|()| dup2_stderr(err))
        .into_diagnostic()
        .wrap_err("leaving the standard streams")
}
