//! Reports of durable lines.

use crate::report::say;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The time between two reports.
const PERIOD: Duration = Duration::from_millis(100);

/// The number of lines between two reports.
const LINES: u64 = 10_000;

/// Reports how many lines of an input are durable in the store: every 10,000 lines, and every 0.1 s, even while the input is waited for.
///
/// With `--json` a report is an object on standard output, and otherwise a line on standard error; a terminal shows a progress bar instead.
pub(crate) struct Progress<'a> {
    path: &'a Path,
    is_json: bool,
    bar: Option<ProgressBar>,
    durable: AtomicU64,
    /// The bytes of the input that were read.
    read_bytes: AtomicU64,
    /// The last number that was reported.
    reported: Mutex<u64>,
    is_ended: AtomicBool,
}

impl<'a> Progress<'a> {
    /// For an input of this length, if it is known.
    pub(crate) fn new(path: &'a Path, is_json: bool, input_bytes: Option<u64>) -> Self {
        let bar = (!is_json && std::io::stderr().is_terminal()).then(|| {
            let (bar, template) = match input_bytes {
                Some(bytes) => {
                    (ProgressBar::new(bytes), "{msg} {bar:30} {bytes} of {total_bytes}, {elapsed}")
                }
                None => (ProgressBar::new_spinner(), "{msg} {spinner} {bytes}, {elapsed}"),
            };
            bar.with_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        });
        let (durable, read_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (reported, is_ended) = (Mutex::new(0), AtomicBool::new(false));
        Self { path, is_json, bar, durable, read_bytes, reported, is_ended }
    }

    /// Runs `load`, which calls [`advance`](Self::advance). At the end, also after an error, all durable lines are reported.
    pub(crate) fn during<R>(&self, load: impl FnOnce() -> R) -> R {
        thread::scope(|scope| {
            let reporter = scope.spawn(|| {
                while !self.is_ended.load(Ordering::Acquire) {
                    thread::park_timeout(PERIOD);
                    self.report();
                }
            });
            // Also after a panic, for which the scope would wait forever.
            let _end = End { progress: self, reporter: reporter.thread() };
            load()
        })
    }

    /// The input's first `lines` lines are durable, and `bytes` of it were read.
    pub(crate) fn advance(&self, lines: u64, bytes: u64) {
        self.read_bytes.store(bytes, Ordering::Relaxed);
        let before = self.durable.swap(lines, Ordering::Release);
        if lines / LINES > before / LINES {
            self.report();
        }
    }

    /// The number of durable lines.
    pub(crate) fn durable_lines(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    fn report(&self) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = self.durable_lines();
        if lines == *reported {
            return;
        }
        *reported = lines;
        if self.is_json {
            // Standard output is flushed at the end of each line, also if it is a file.
            say(json!({ "durable_lines": lines }));
        } else if let Some(bar) = &self.bar {
            bar.set_message(format!("{lines} lines are durable"));
            bar.set_position(self.read_bytes.load(Ordering::Relaxed));
        } else {
            // Standard error has no buffer. Without a reader the load continues.
            writeln!(std::io::stderr(), "{}: {lines} lines are durable", self.path.display())
                .unwrap_or_default();
        }
    }
}

/// Ends the reports.
struct End<'a> {
    progress: &'a Progress<'a>,
    reporter: &'a thread::Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.progress.is_ended.store(true, Ordering::Release);
        self.reporter.unpark();
        self.progress.report();
        if let Some(bar) = &self.progress.bar {
            bar.finish_and_clear();
        }
    }
}
