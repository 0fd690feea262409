//! What the project's tasks are made of.
//!
//! The binary `xtask` is a thin command line over this library, so that tests and other tasks can use the
//! same pieces: [`apt`] makes sure that the programs a task runs are there, [`cargo`] builds, [`tidy`] checks the house rules,
//! [`teeth`] takes flushes and fences away and expects tests to fail, [`vm`] boots a real kernel with persistent
//! memory, [`pmbd`] serves disks in it, [`powercut`] knows what must survive when its power is cut.

#![forbid(unsafe_code)]

pub mod apt;
pub mod cargo;
pub mod pmbd;
pub mod powercut;
pub mod teeth;
pub mod tidy;
pub mod vm;
