//! What was copied: counted, and shown on a terminal while it goes on.

use indicatif::{ProgressBar, ProgressStyle};
use pm_cli_common::Size;
use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Shorter copies show no progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts of what was copied.
pub(super) struct Tally {
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) links: u64,
    /// Of data, without holes.
    pub(super) bytes: u64,
    /// Files that are not copied.
    pub(super) refused: u64,
    begin: Instant,
    bar: Option<ProgressBar>,
}

impl Tally {
    pub(super) fn new() -> Self {
        let (files, directories, links, bytes, refused) = (0, 0, 0, 0, 0);
        Self { files, directories, links, bytes, refused, begin: Instant::now(), bar: None }
    }

    /// Counts a file that is not copied, and says why.
    pub(super) fn refuse(&mut self, path: impl Display, why: impl Display) {
        self.refused += 1;
        let say = || writeln!(std::io::stderr(), "{path} is {why}: not copied").unwrap_or_default();
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    /// Shows the counts if standard error is a terminal. Called after each file, and each part of a long one.
    pub(super) fn show(&mut self) {
        if self.bar.is_none() && self.begin.elapsed() >= PATIENCE && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
            self.bar = Some(ProgressBar::new_spinner().with_style(style));
        }
        if let Some(bar) = &self.bar {
            bar.set_message(self.text());
            bar.tick();
        }
    }

    /// Ends the progress.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Prints the counts. Without a reader the copy is complete all the same.
    pub(super) fn print(&self, file: &Path, is_json: bool) {
        let Self { files, directories, links, bytes, refused, .. } = self;
        let line = if is_json {
            let counts = serde_json::json!({
                "file": file, "files": files, "directories": directories, "links": links, "bytes": bytes, "refused": refused,
            });
            counts.to_string()
        } else {
            format!("{}: copied {}", file.display(), self.text())
        };
        writeln!(std::io::stdout(), "{line}").unwrap_or_default();
    }

    fn text(&self) -> String {
        let mut parts = vec![count(self.files, "file", "files")];
        let others = [(self.directories, "directory", "directories"), (self.links, "link", "links")];
        let others = others.into_iter().filter(|(number, ..)| *number > 0);
        parts.extend(others.map(|(number, one, many)| count(number, one, many)));
        parts.push(format!("{:.1}", Size(self.bytes)));
        if self.refused > 0 {
            parts.push(format!("{} not copied", self.refused));
        }
        parts.join(", ")
    }
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_none_are_left_out() {
        let mut tally = Tally { files: 1, bytes: 1536, ..Tally::new() };
        assert_eq!(tally.text(), "1 file, 1.5 KiB");
        (tally.directories, tally.links, tally.refused) = (2, 1, 3);
        assert_eq!(tally.text(), "1 file, 2 directories, 1 link, 1.5 KiB, 3 not copied");
    }
}
