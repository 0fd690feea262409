//! The log on standard error. A thread of its own writes it, so that no log line delays a request, blocks it or ends the server, whatever standard
//! error is: a pipe that nothing reads, a full disk, closed.

use anstream::{AutoStream, ColorChoice};
use std::io::{self, Write as _};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};

/// The lines that wait for the thread, at most. Further ones are lost.
const WAITING_LINES: usize = 1 << 13;

/// The log. Its lines are written until this is dropped.
pub(crate) struct Log {
    /// Taken out if lines were lost.
    writer: Option<WorkerGuard>,
    lost: ErrorCounter,
}

/// Logs to standard error, by default warnings; `RUST_LOG` selects. In colour on a terminal.
pub(crate) fn start() -> Log {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // As clap decides for `--help`.
    let colour = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES);
    let (lines, writer) = queue.finish(io::stderr());
    let lost = lines.error_counter();
    // What the subscriber itself cannot write it would report on standard error, and panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colour).log_internal_errors(false);
    log.with_writer(lines).init();
    Log { writer: Some(writer), lost }
}

impl Drop for Log {
    fn drop(&mut self) {
        // The thread may be blocked for ever, so it is not waited for.
        if self.lost.dropped_lines() > 0 {
            core::mem::forget(self.writer.take());
        }
    }
}

/// Writes the last line of a command to standard error. If that cannot be written the exit code alone tells that it failed.
pub(crate) fn last_words(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}
