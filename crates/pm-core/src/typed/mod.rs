//! Typed access: which types may persist, links branded by their pool, and durability as a type.

mod link;
mod persist;
mod scope;
mod state;

pub use link::{Field, Link};
pub(crate) use persist::from_bytes;
pub use persist::{FieldLayout, InPool, Persist, bytes_of};
pub use scope::{PlaceError, Scope};
pub use state::{Dirty, Durable, Fenceable, InFlight, Place};
