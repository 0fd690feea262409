//! Persistent memory as a block device: one [`Engine`], two transports.
#![deny(unsafe_code)]

pub mod engine;
pub mod ublk;

pub use engine::{BlockError, BlockOp, Engine, Geometry, GeometryError, SectorSize, WriteCache};
