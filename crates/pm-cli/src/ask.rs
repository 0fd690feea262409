//! Questions to whoever sits at the terminal.

use miette::{IntoDiagnostic as _, miette};
use std::io::{BufRead as _, IsTerminal as _, Write as _};

/// Who says whether something is done.
pub(crate) struct Asker {
    yes: bool,
}

impl Asker {
    /// Everything is done if `yes`; else there must be somebody to ask.
    pub(crate) fn new(yes: bool) -> miette::Result<Self> {
        if yes || std::io::stdin().is_terminal() {
            return Ok(Self { yes });
        }
        Err(miette!(
            help = "--yes repairs without asking; what `check` tells is what would be repaired",
            "there is damage, and no terminal on which to ask whether to repair it"
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
