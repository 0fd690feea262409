//! `pmbd`: serves persistent memory as a block device. `pmbd --help` says how.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
