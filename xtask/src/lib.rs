//! The library of the project's tasks, also used by tests and benchmarks: [`apt`] installs programs that a task runs, [`cargo`] builds, [`programs`] and [`suite`] run tests, [`tidy`] checks
//! the house rules, [`teeth`] removes flushes and fences and expects tests to fail, [`vm`] boots a real kernel with persistent memory, [`pmbd`] serves
//! disks in it. It depends on no other crate of the repository, so that a task starts soon in a fresh clone.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_errors_doc,
    reason = "errors are reports for a person, and say themselves what has failed"
)]

pub mod apt;
pub mod cargo;
pub mod pmbd;
pub mod process;
pub mod programs;
pub mod suite;
pub mod teeth;
pub mod tidy;
pub mod vm;
