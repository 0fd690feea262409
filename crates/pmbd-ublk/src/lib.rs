//! Persistent memory as a block device: one [`Engine`], two transports.
#![forbid(unsafe_code)]

pub mod disk;
pub mod engine;

pub use disk::{Disk, DiskError, DiskInfo, DiskOptions};
pub use engine::{BlockError, BlockOp, Engine, Geometry, GeometryError, SectorSize, WriteCache};
