//! Typed access: which types may persist, links branded by their pool, and durability as a type.

mod link;
mod persist;
mod scope;
mod state;

pub use link::{Field, Link};
pub use persist::{FieldLayout, InPool, Persist, bytes_of, bytes_of_slice, from_bytes, from_bytes_unchecked};
pub use scope::{PlaceError, Scope};
pub use state::{Dirty, Durable, Fenceable, InFlight, Place};
