//! What the tests of the repository as a whole share with the programs that they run in a guest: [`powercut`] is the data that must survive a power cut.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_errors_doc,
    reason = "errors are reports for a person, and say themselves what has failed"
)]

pub mod powercut;
