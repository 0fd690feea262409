//! The block engine: requests in, stores to persistent memory out.

mod error;
mod execute;
mod geometry;
mod mark;
mod policy;
mod writes;

pub use error::{BlockError, GeometryError, WriteBackError};
pub use execute::{BlockOp, Engine, WriteCache};
pub use geometry::{Geometry, SectorSize};
pub use mark::WriteBackMark;
pub use policy::{WritePolicy, WriteScheme, WriteSetup};
