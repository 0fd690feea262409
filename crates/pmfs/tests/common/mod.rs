//! The command under test.

use std::process::Command;

pub(crate) fn pmfs() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pmfs"))
}

/// Runs a command that must succeed, and returns its standard output.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
