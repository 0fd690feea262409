//! What is said to people, lines and bars on a terminal, and what they are asked.

use indicatif::{ProgressBar, ProgressStyle};
use miette::{IntoDiagnostic as _, miette};
use pm_cli_common::Size;
use std::fmt::Display;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

/// A line of the answer. A reader that has gone away is no reason to stop: a repair goes on.
pub(crate) fn say(line: impl Display) {
    writeln!(std::io::stdout(), "{line}").unwrap_or_default();
}

/// One line of an answer for people.
pub(crate) fn field(name: &str, value: impl Display) {
    say(format_args!("  {name:<9} {value}"));
}

/// A number of bytes, rounded for people.
pub(crate) fn bytes(bytes: u64) -> String {
    format!("{:.1}", Size(bytes))
}

/// How many of something there are.
pub(crate) fn count(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// A bar on the terminal, if there is one, for so many bytes to look at.
pub(crate) fn progress(most: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {elapsed}");
    let bar = ProgressBar::new(most).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}

/// Asks whether something is to be done.
pub(crate) struct Asker {
    yes: bool,
}

impl Asker {
    /// Everything is done if `yes`; otherwise there must be a terminal to ask on.
    pub(crate) fn new(yes: bool) -> miette::Result<Self> {
        if yes || std::io::stdin().is_terminal() {
            return Ok(Self { yes });
        }
        Err(miette!(
            help = "--yes repairs without asking; what `check` tells is what would be repaired",
            "there is corruption, and no terminal on which to ask whether to repair it"
        ))
    }

    /// Whether the answer is yes. Anything else, or the end of the input, is no.
    pub(crate) fn ask(&self, question: &str) -> miette::Result<bool> {
        if self.yes {
            return Ok(true);
        }
        // On the other stream than the answers, which a program may be reading.
        let mut stderr = std::io::stderr();
        write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).into_diagnostic()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).into_diagnostic()?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}
