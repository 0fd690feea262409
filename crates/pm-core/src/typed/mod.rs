//! Typed access: links branded by their pool, and durability as a type.

mod link;
mod scope;
mod state;

pub use link::{Field, Link};
pub use scope::Scope;
pub use state::{Dirty, Durable, Fenceable, InFlight, Place};
