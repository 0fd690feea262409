//! The command that repeats a failure.

use super::origin::Origin;
use crate::explore::REPLAY_VARIABLE;

/// One line for a shell: runs the test, and in it only the crash of that name.
pub(super) fn replay_command(origin: &Origin, id: &str) -> String {
    let mut command = format!("{REPLAY_VARIABLE}='{id}' cargo test");
    if let Some(package) = &origin.package {
        command.push_str(&format!(" -p {package}"));
    }
    if let Some(test) = &origin.test {
        command.push_str(&format!(" {test}"));
    }
    // An exploration that is not the one says so, which the test harness hides from a test that passes.
    command.push_str(" -- --nocapture");
    command
}
