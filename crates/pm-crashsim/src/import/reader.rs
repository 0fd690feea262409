//! The records of a log.
//!
//! Valgrind writes records and its own messages through one buffer, and puts a prefix with the process number at the start of each
//! line. Records do not contain line breaks. So a message begins right after the previous output, also inside a record; its further lines
//! begin with the prefix; and the line after it begins with the prefix and continues the record.

use super::ImportError;
use super::record::without_message;
use std::io::{self, BufRead};

/// The start of the first line with records.
const START: &str = "START";

/// The last record.
pub(super) const STOP: &str = "STOP";

/// The marks around a process number: messages to the user, to the developer (at more verbosity), and of the program itself.
const MARKS: [&str; 4] = ["==", "--", "++", "**"];

/// The start of a fatal message, in place of the prefix.
const FATAL: &str = "valgrind: ";

/// A record as it stands in the log, without Valgrind's messages.
pub(super) struct Written {
    /// The line where it begins.
    pub(super) line: u64,
    pub(super) text: String,
    /// Whether a delimiter follows it.
    pub(super) is_ended: bool,
}

/// The records of a log after its START.
pub(super) struct Records<'m, R> {
    log: R,
    /// The line that is being read, from 1.
    pub(super) line: u64,
    is_line_start: bool,
    /// The process that wrote the line, if the line names it.
    writer: Option<u64>,
    /// The process that wrote START.
    process: Option<u64>,
    /// A marker without the form of markers.
    marker: Option<&'m str>,
}

/// The end of a piece of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Bar,
    Line,
    Log,
}

impl<'m, R: BufRead> Records<'m, R> {
    /// Reads up to START. `marker` is a further marker, without the form of markers.
    pub(super) fn of(log: R, marker: Option<&'m str>) -> Result<Self, ImportError> {
        let mut records = Self { log, line: 1, is_line_start: false, writer: None, process: None, marker };
        loop {
            let (piece, end) = records.piece()?;
            let (process, content) = split_prefix(&piece);
            let message = content.strip_prefix(START);
            if message.is_some_and(|message| message.is_empty() || end == End::Line) {
                records.process = process;
                records.writer = process;
                records.is_line_start = end == End::Line;
                return Ok(records);
            }
            match end {
                End::Bar => records.skip_line()?,
                End::Line => {}
                End::Log => return Err(ImportError::NoStart),
            }
        }
    }

    /// The next record that is not empty; `None` at the end of the log.
    pub(super) fn next(&mut self) -> Result<Option<Written>, ImportError> {
        let (mut text, mut line) = (String::new(), self.line);
        loop {
            let at = self.line;
            let is_line_start = core::mem::take(&mut self.is_line_start);
            let (piece, end) = self.piece()?;
            let (content, is_cut) = self.without_messages(&piece, is_line_start, at)?;
            if text.is_empty() {
                line = at;
            }
            text.push_str(content);
            let end = match end {
                End::Bar if is_cut => {
                    self.skip_line()?;
                    End::Line
                }
                end => end,
            };
            match end {
                End::Line => {
                    self.is_line_start = true;
                    text.truncate(without_message(&text, self.marker).len());
                    let is_child = self.process.is_some_and(|own| self.writer.is_some_and(|pid| pid != own));
                    match text.as_str() {
                        // The end of a child of the process, which wrote to the same log.
                        STOP if is_child => text.clear(),
                        STOP => return Ok(Some(Written { line, text, is_ended: true })),
                        _ => {}
                    }
                }
                End::Log if text.trim().is_empty() => return Ok(None),
                End::Bar | End::Log => {
                    let text = text.trim().to_owned();
                    if !text.is_empty() {
                        return Ok(Some(Written { line, text, is_ended: end == End::Bar }));
                    }
                }
            }
        }
    }

    /// The record part of a piece of a line, and whether the rest of the line is a message.
    fn without_messages<'p>(
        &mut self,
        piece: &'p str,
        is_line_start: bool,
        line: u64,
    ) -> Result<(&'p str, bool), ImportError> {
        let mut content = piece;
        if is_line_start {
            let (writer, rest) = split_prefix(piece);
            self.writer = writer;
            content = rest;
            match writer {
                Some(_) if rest == START => return Err(ImportError::SeveralStarts { line }),
                Some(_) if !rest.is_empty() && !rest.starts_with(';') => return Ok(("", true)),
                None if rest.starts_with(FATAL) => return Ok(("", true)),
                _ => {}
            }
        }
        // After a message, the prefix stands inside the line.
        Ok(match MARKS.iter().filter_map(|mark| find_prefix(content, mark)).min() {
            Some(message) => (&content[..message], true),
            None => (content, false),
        })
    }

    /// Up to the next bar or the end of the line, without either.
    fn piece(&mut self) -> io::Result<(String, End)> {
        let mut bytes = Vec::new();
        let end = loop {
            let read = self.log.fill_buf()?;
            if read.is_empty() {
                break End::Log;
            }
            let found = read.iter().position(|&byte| byte == b'|' || byte == b'\n');
            let len = found.unwrap_or(read.len());
            bytes.extend_from_slice(&read[..len]);
            let end = found.map(|at| if read[at] == b'|' { End::Bar } else { End::Line });
            self.log.consume(len + usize::from(end.is_some()));
            if let Some(end) = end {
                self.line += u64::from(end == End::Line);
                break end;
            }
        };
        // Names of files need not be UTF-8.
        let text = String::from_utf8_lossy(&bytes);
        Ok((text.trim_end_matches('\r').to_owned(), end))
    }

    /// Up to the next line.
    fn skip_line(&mut self) -> io::Result<()> {
        while self.piece()?.1 == End::Bar {}
        Ok(())
    }
}

/// The process in a line's prefix, and the rest of the line: `==4711== rest`, `--00:00:00:01.234 4711-- rest`.
fn split_prefix(line: &str) -> (Option<u64>, &str) {
    // One `>` for each Valgrind that runs inside another.
    let own = line.trim_start_matches('>');
    for mark in MARKS {
        let Some(rest) = own.strip_prefix(mark) else { continue };
        let is_time = |c: char| c.is_ascii_digit() || c == ':' || c == '.';
        let number = match rest.split_once(' ') {
            Some((time, number)) if time.contains(':') && time.chars().all(is_time) => number,
            _ => rest,
        };
        let Some((process, rest)) = number.split_once(mark) else { continue };
        if let Ok(process) = process.parse() {
            return (Some(process), rest.strip_prefix(' ').unwrap_or(rest));
        }
    }
    (None, line)
}

/// The position of a prefix with that mark inside a line.
fn find_prefix(line: &str, mark: &str) -> Option<usize> {
    let is_prefix = |at: &usize| {
        let number = &line[at + mark.len()..];
        let rest = number.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.len() < number.len() && rest.starts_with(mark)
    };
    line.match_indices(mark).map(|(at, _)| at).find(is_prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(log: &str) -> Vec<String> {
        let mut records = Records::of(log.as_bytes(), Some("half way")).unwrap_or_else(|e| panic!("{e}"));
        let next = || records.next().unwrap_or_else(|e| panic!("{e}"));
        std::iter::from_fn(next).map(|written| written.text).collect()
    }

    #[test]
    fn prefix_names_the_process() {
        for (line, process, rest) in [
            ("==4711== text", Some(4711), "text"),
            ("--1-- ", Some(1), ""),
            (">>**1** text", Some(1), "text"),
            ("==00:00:00:01.234 31== a b", Some(31), "a b"),
            ("==== text", None, "==== text"),
            ("==x== text", None, "==x== text"),
            ("text ==1== text", None, "text ==1== text"),
        ] {
            assert_eq!(split_prefix(line), (process, rest));
        }
    }

    #[test]
    fn message_behind_a_record_is_skipped() {
        for (message, is_last) in [
            (
                "brk segment overflow in thread #1: can't grow to 0x4861000\n==7== (see the manual)\n==7== ",
                false,
            ),
            ("Warning: set address range perms: large range [0x1, 0x2)\n==7== ", false),
            ("==7== Warning: unhandled\n", false),
            ("\n--7-- a message | with bars |STORE\nvalgrind: fatal\n==7== ", false),
            ("==7== another process\n==8== |STOP\n==8== ERROR SUMMARY: 0 errors\n", true),
        ] {
            for record in
                ["STORE;0x1000;0x1;0x8", "FLUSH;0x1000;0x40", "FENCE", "a.BEGIN", "FREORDER", "half way"]
            {
                if is_last && record == "a.BEGIN" {
                    continue;
                }
                let log =
                    format!("==7== header\n==7== START|COMMIT|{record}{message}|FENCE|STOP\n==7== all\n");
                assert_eq!(records(&log), ["COMMIT", record, "FENCE", "STOP"], "{log}");
            }
        }
    }

    #[test]
    fn message_in_front_of_a_frame_is_skipped() {
        let log =
            "START|STORE;0x1000;0x1;0x8WARNING: debug info\n--7-- of /lib/a.so\n==7== ;0x1: f (a.c:3)|STOP\n";
        assert_eq!(records(log), ["STORE;0x1000;0x1;0x8;0x1: f (a.c:3)", "STOP"]);
    }

    #[test]
    fn message_behind_start_is_skipped() {
        assert_eq!(records("==7== STARTWarning: text\n==7== |FENCE\n==7== |STOP\n"), ["FENCE", "STOP"]);
    }

    #[test]
    fn log_that_ends_in_a_blank_is_read_to_its_end() {
        assert_eq!(records("START|FENCE| "), ["FENCE"]);
        assert_eq!(records("START|FENCE|\n \n\t"), ["FENCE"]);
    }

    #[test]
    fn second_start_is_refused() {
        let log = "==7== START|FENCE==8== header\n==8== START|FENCE|STOP\n";
        let mut records = Records::of(log.as_bytes(), None).unwrap_or_else(|e| panic!("{e}"));
        assert!(matches!(records.next(), Err(ImportError::SeveralStarts { line: 2 })));
    }
}
