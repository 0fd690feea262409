//! Servers under measurement.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail, miette};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time limit for a server's start, which may include zeroing a gigabyte.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A server in the background; killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
}

impl Server {
    /// Starts `command`.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = child.into_diagnostic().wrap_err_with(|| format!("cannot run {name}"))?;
        Ok(Self { child, name })
    }

    /// Waits for a line of its standard output that contains `text`.
    pub fn wait_for_line(&mut self, text: &str) -> Result<()> {
        let output = self.child.stdout.take().ok_or_else(|| miette!("its output was taken already"))?;
        for line in BufReader::new(output).lines() {
            if line.into_diagnostic()?.contains(text) {
                return Ok(());
            }
        }
        bail!("{} ended without being ready", self.name)
    }

    /// Waits until `is_ready`.
    ///
    /// # Errors
    /// If the server ends first, or takes more than a minute.
    pub fn wait_until(&mut self, is_ready: impl Fn() -> bool) -> Result<()> {
        let begin = Instant::now();
        while !is_ready() {
            if let Some(status) = self.child.try_wait().into_diagnostic()? {
                bail!("{} ended without being ready: {status}", self.name);
            }
            if begin.elapsed() > START_TIMEOUT {
                bail!("{} was not ready after {START_TIMEOUT:?}", self.name);
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The processor time of all its threads so far, of ended ones too.
    pub fn processor_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).into_diagnostic()?;
        // proc(5): fields 14 and 15, in ticks. Field 2 is the program's name in parentheses and may contain any character.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        let nanoseconds = ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second();
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("{} could not be ended: {error}", self.name);
        }
    }
}
