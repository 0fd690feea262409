//! The log on standard error. A thread of its own writes it, so that no log line delays a request, blocks it or ends the server, whatever standard
//! error is: a pipe that nothing reads, a full disk, closed.

use anstream::{AutoStream, ColorChoice};
use core::time::Duration;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::thread;
use std::time::Instant;

/// The lines that wait for the thread, at most. Further ones are lost.
const WAITING_LINES: usize = 1 << 13;
/// How long the end of a command waits for its lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The log. Its lines are written until this is dropped.
pub(crate) struct Log {
    lines: Lines,
    ended: Receiver<()>,
}

/// What the thread receives.
enum Message {
    Line(Vec<u8>),
    /// Answered when the lines before it are written.
    Written(Sender<()>),
    End,
}

/// The writer of lines, each with one call.
#[derive(Clone)]
struct Lines {
    queue: SyncSender<Message>,
    /// The number of lines for which there was no room, and that have not been mentioned.
    lost: Arc<AtomicU64>,
}

impl Lines {
    /// Sends a message, for which the queue may have no room while the thread is blocked. Returns whether it was sent.
    fn send(&self, mut message: Message, end: Instant) -> bool {
        while let Err(refused) = self.queue.try_send(message) {
            message = match refused {
                TrySendError::Full(message) if Instant::now() < end => message,
                TrySendError::Full(_) | TrySendError::Disconnected(_) => return false,
            };
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Writes a line, and waits until it is written, or for as long as that may take.
    fn write_now(&self, line: String) {
        let end = Instant::now() + PATIENCE;
        let (written, wait) = mpsc::channel();
        if self.send(Message::Line(line.into_bytes()), end) && self.send(Message::Written(written), end) {
            wait.recv_timeout(end.saturating_duration_since(Instant::now())).unwrap_or(());
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Message::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs to standard error, by default warnings; `RUST_LOG` selects. In colour on a terminal.
pub(crate) fn start() -> Log {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // As clap decides for `--help`.
    let colour = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
    let ((queue, messages), (end, ended)) = (mpsc::sync_channel(WAITING_LINES), mpsc::channel());
    let lines = Lines { queue, lost: Arc::default() };
    let lost = Arc::clone(&lines.lost);
    thread::spawn(move || {
        write_all(&messages, &lost);
        drop(end);
    });
    // What the subscriber itself cannot write it would report on standard error, and panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colour).log_internal_errors(false);
    let writer = lines.clone();
    log.with_writer(move || writer.clone()).init();
    let writer = lines.clone();
    // The default hook would block for ever if nothing reads standard error.
    std::panic::set_hook(Box::new(move |panic| writer.write_now(format!("{panic}\n"))));
    Log { lines, ended }
}

/// Writes lines until the end. What cannot be written is lost.
fn write_all(messages: &Receiver<Message>, lost: &AtomicU64) {
    while let Ok(message) = messages.recv() {
        let line = match message {
            Message::Line(line) => line,
            Message::Written(answer) => {
                // Unless the thread has waited for too long.
                answer.send(()).unwrap_or(());
                continue;
            }
            Message::End => return,
        };
        let mut written = io::stderr().write_all(&line);
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            written = writeln!(io::stderr(), "{count} lines of the log were lost");
        }
        // There is no other place to say so.
        drop(written);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        if !self.lines.send(Message::End, end) {
            return;
        }
        let waited = self.ended.recv_timeout(end.saturating_duration_since(Instant::now()));
        debug_assert!(matches!(waited, Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)));
    }
}

/// Writes the last line of a command to standard error. If that cannot be written the exit code alone tells that it failed.
pub(crate) fn last_words(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}
