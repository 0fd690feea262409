//! The block engine: requests in, stores to persistent memory out.

mod error;
mod execute;
mod geometry;

pub use error::{BlockError, GeometryError};
pub use execute::{BlockOp, Engine, WriteCache};
pub use geometry::{Geometry, SectorSize};
