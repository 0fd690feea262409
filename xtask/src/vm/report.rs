//! Lines that the guest writes to `/dev/report`, its second serial port.
//!
//! A serial port is slow and exact: the guest's `close` and `tcdrain` return when the last byte has left the
//! port, and by then QEMU has written it to the host's socket, where it outlives QEMU.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, miette};

/// The host's end of the reports.
#[derive(Debug)]
pub(super) struct Reports {
    lines: Receiver<String>,
    reader: JoinHandle<std::io::Result<()>>,
}

impl Reports {
    /// Collects lines from `stream` until it ends, so that the guest never waits for the host to want them.
    pub(super) fn collect(stream: UnixStream) -> Self {
        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line)? > 0 {
                // Bytes after the last line's end are a line that the power cut interrupted: never reported.
                if line.pop() == Some(b'\n')
                    && sender.send(String::from_utf8_lossy(&line).into_owned()).is_err()
                {
                    break;
                }
                line.clear();
            }
            Ok(())
        });
        Self { lines, reader }
    }

    /// The next line, waiting for it until `timeout` has passed; `None` then, and when the guest is gone.
    pub(super) fn next(&self, timeout: Duration) -> Option<String> {
        self.lines.recv_timeout(timeout).ok()
    }

    /// The lines not yet taken, after QEMU has ended: every line that the guest had finished writing.
    pub(super) fn rest(self) -> Result<Vec<String>> {
        let ended = self.reader.join().map_err(|_| miette!("the reader of reports panicked"))?;
        ended.into_diagnostic().wrap_err("cannot read the guest's reports")?;
        Ok(self.lines.try_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn truncated_line_is_dropped() {
        let (mut guest, host) = UnixStream::pair().expect("a pair");
        let reports = Reports::collect(host);
        guest.write_all(b"one\ntwo\nthree\nfou").expect("written");
        assert_eq!(reports.next(Duration::from_secs(10)).as_deref(), Some("one"));
        drop(guest);
        assert_eq!(reports.rest().expect("a clean end"), ["two", "three"]);
    }

    #[test]
    fn waiting_ends() {
        let (_guest, host) = UnixStream::pair().expect("a pair");
        assert_eq!(Reports::collect(host).next(Duration::from_millis(1)), None);
    }
}
