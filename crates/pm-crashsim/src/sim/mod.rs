//! The simulated region: what the program sees at once, and a record of what it did.

mod region;
mod seam;
mod state;

pub use region::SimPmem;
pub(crate) use state::{Recording, TOO_LONG};
