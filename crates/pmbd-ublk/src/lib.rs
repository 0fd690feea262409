//! Persistent memory as a block device: one [`Engine`], two transports.
#![forbid(unsafe_code)]

pub mod engine;

pub use engine::{BlockError, BlockOp, Engine, Geometry, GeometryError, SectorSize, WriteCache};
