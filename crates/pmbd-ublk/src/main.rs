//! `pmbd`: serves persistent memory as a block device. `pmbd --help` says how.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, reason = "an answer that cannot be written is an error")]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
