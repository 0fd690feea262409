//! What the commands `pm`, `pmbd` and `pmcrash` have in common: sizes on the command line, completions, manual pages.

#![forbid(unsafe_code)]

mod docs;
mod size;

pub use docs::Docs;
pub use size::Size;
