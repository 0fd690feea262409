//! Reports: lines that the guest writes to `/dev/report`, its second serial port.
//!
//! The guest's `close` and `tcdrain` return when the last byte has left the port. QEMU has then written it to the host's socket, where it survives the
//! end of QEMU.

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
    /// Collects lines from `stream` until it ends, so that the guest never waits for the host.
    pub(super) fn collect(stream: UnixStream) -> Self {
        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line)? > 0 {
                // An incomplete line at the end was interrupted by the power cut, and does not count as reported.
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

    /// The next line; `None` after `timeout`, and when the guest has ended.
    pub(super) fn next(&self, timeout: Duration) -> Option<String> {
        self.lines.recv_timeout(timeout).ok()
    }

    /// The remaining complete lines, after QEMU has ended.
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
