//! Persistent memory as a block device: one [`Engine`], two transports.
#![deny(unsafe_code)]

pub mod disk;
pub mod engine;
pub mod nbd;
pub mod ublk;

pub use disk::{Disk, DiskError, DiskInfo, DiskOptions};
pub use engine::{BlockError, BlockOp, Engine, Geometry, GeometryError, SectorSize, WriteCache};
pub use nbd::{NbdCounts, NbdError, NbdOptions, NbdServer, NbdStats};
