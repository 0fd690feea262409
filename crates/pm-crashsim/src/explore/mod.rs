//! The explorer: tries every crash of a run, and every crash of the recoveries from them.

mod branches;
mod explorer;
mod kill;
mod memory;
mod plan;
mod repair;
mod run;
mod search;
mod session;
mod settings;
mod shrink;
mod subject;

pub use explorer::{Explorer, model};
pub use run::{Crash, Run, Verdict};
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) use {
    memory::{History, Memory},
    run::catch,
};
