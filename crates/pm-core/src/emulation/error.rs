//! The error of an emulation.

use std::time::Duration;

/// The error of an emulation that is not possible.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmulationError {
    /// This machine's memory is slower than the emulated one.
    #[error(
        "a {access} of {lines} x 64 bytes would take {asked:?}, and on this machine it takes {own:?}: a faster memory can be \
         emulated in simulated time only"
    )]
    TooFast {
        /// `read` or `write`.
        access: &'static str,
        /// The number of lines of the access.
        lines: u64,
        /// The time that the access would take.
        asked: Duration,
        /// The least time that it takes on this machine.
        own: Duration,
    },
    /// A value that no memory can have.
    #[error("{0}")]
    Impossible(&'static str),
    /// The time stamp counter and the system's clock disagree.
    #[error(
        "this machine's time stamp counter does not count at a constant rate, so delays cannot be measured with it"
    )]
    UnsteadyClock,
    /// The memory in which this machine's speed is measured could not be allocated.
    #[error("no memory to measure this machine's speed in: {0}")]
    Memory(String),
}
