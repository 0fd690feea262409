//! The simulated region: what the program sees at once, and a record of what it did.

mod reads;
mod region;
mod scheduler;
mod state;

pub(crate) use reads::{SharedTouched, Touched, lock};
pub use region::SimPmem;
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) use scheduler::Scheduler;
pub(crate) use state::Recording;
