//! Persistent memory for Rust: instructions, mappings, persistence domains, and one seam for all of it.

pub mod insn;
pub mod line;

pub mod pool;

mod counting;
mod domain;
mod pmem;
mod region;
mod typed;

// The derive names this crate by its full path, here too.
extern crate self as pm_core;

pub use counting::{Counting, Counts};
pub use domain::Domain;
pub use pm_core_derive::Persist;
pub use pmem::{FenceError, Pmem};
pub use pool::{HeaderDamage, HeaderState, Pool, PoolError, PoolOptions, Root, RootError, Uuid};
pub use region::{HugePages, Medium, OpenError, Region, RegionOptions};
pub use typed::{
    Dirty, Durable, Fenceable, Field, FieldLayout, InFlight, InPool, Link, Persist, Place, PlaceError, Scope,
    bytes_of,
};
