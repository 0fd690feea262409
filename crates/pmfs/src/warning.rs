//! Warnings of a server.

use std::fmt;
use std::io::Write as _;

/// Prints a warning. The server goes on if that fails.
pub(crate) fn warn(message: impl fmt::Display) {
    // One write, so that it is one message of the system's log.
    drop(std::io::stderr().write_all(format!("{message}\n").as_bytes()));
}
