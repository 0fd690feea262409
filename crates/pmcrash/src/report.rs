//! Answers.

use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::io::Write as _;

/// A line of the answer. False when nobody reads it any more: `head` has seen enough.
pub(crate) fn say(line: impl Display) -> bool {
    writeln!(std::io::stdout(), "{line}").is_ok()
}

/// A number of choices, as far as it was counted.
pub(crate) fn count(count: u128) -> String {
    if count == u128::MAX { "more than 2^128".to_owned() } else { count.to_string() }
}

/// A bar on the terminal, if there is one, for so many images at most.
pub(crate) fn progress(most: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos} of at most {len} images, {elapsed}");
    let bar = ProgressBar::new(most).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}
