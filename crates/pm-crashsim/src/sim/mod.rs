//! The simulated region: its visible contents, and the record of its run.

mod reads;
mod region;
mod scheduler;
mod state;

pub(crate) use reads::{SharedTouched, Touched, lock};
pub use region::SimPmem;
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) use scheduler::Scheduler;
pub(crate) use state::Recording;
