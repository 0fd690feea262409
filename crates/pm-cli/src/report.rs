//! Output, progress bars and questions on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use miette::{IntoDiagnostic as _, miette};
use pm_cli_common::{Size, tell};
use std::fmt::Display;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

/// Prints a line. An error is that of the command, at its end: a repair continues without a reader.
pub(crate) fn say(line: impl Display) {
    tell(line);
}

/// Prints a line with a name and a value.
pub(crate) fn field(name: &str, value: impl Display) {
    say(format_args!("  {name:<10} {value}"));
}

/// A number of bytes, rounded.
pub(crate) fn bytes(bytes: u64) -> String {
    format!("{:.1}", Size(bytes))
}

/// A count with its noun.
pub(crate) fn count(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// A progress bar on the terminal, if there is one, for so many bytes.
pub(crate) fn progress(most: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {elapsed}");
    let bar = ProgressBar::new(most).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}

/// Asks for agreement.
pub(crate) struct Asker {
    yes: bool,
}

impl Asker {
    /// Agrees to everything if `yes`; otherwise requires a terminal.
    pub(crate) fn new(yes: bool) -> miette::Result<Self> {
        if yes || std::io::stdin().is_terminal() {
            return Ok(Self { yes });
        }
        Err(miette!(
            help = "--yes repairs without asking; `check` shows what would be repaired",
            "there is corruption, and no terminal on which to ask whether to repair it"
        ))
    }

    /// Whether the answer is yes. Anything else, or the end of the input, means no.
    pub(crate) fn ask(&self, question: &str) -> miette::Result<bool> {
        if self.yes {
            return Ok(true);
        }
        // Not on the stream of the results, which a program may be reading.
        let mut stderr = std::io::stderr();
        write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).into_diagnostic()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).into_diagnostic()?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}
