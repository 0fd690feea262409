//! The library of the project's tasks, also used by tests and benchmarks: [`apt`] installs programs that a task runs, [`cargo`] builds, [`tidy`] checks
//! the house rules, [`teeth`] removes flushes and fences and expects tests to fail, [`vm`] boots a real kernel with persistent memory, [`pmbd`] serves
//! disks in it, [`powercut`] checks the data that must survive a power cut.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_errors_doc,
    reason = "errors are reports for a person, and say themselves what has failed"
)]

pub mod apt;
pub mod cargo;
pub mod pmbd;
pub mod powercut;
pub mod process;
pub mod teeth;
pub mod tidy;
pub mod vm;
