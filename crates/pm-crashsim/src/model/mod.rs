//! The model of the hardware: what is durable and what is pending after each event of a record, and what a crash may keep of it.

mod choices;
mod chunk;
mod machine;
mod points;
mod rules;

pub use choices::IllegalCrash;
pub(crate) use choices::{Chain, Choices, Lane, lanes, legal_part};
pub use chunk::Survivor;
pub(crate) use chunk::{Chunk, NEVER, pieces_of};
pub(crate) use machine::{Machine, Promise};
pub use points::CrashPoint;
pub(crate) use points::Points;
pub use rules::Model;
pub(crate) use rules::Rules;
