//! Kernels of the NAS Parallel Benchmarks, serial, which verify their results by the benchmarks' own values.
//!
//! # Source
//! Bailey et al., "The NAS Parallel Benchmarks", NASA RNR-94-007, 1994; the problem classes and the values of version 3.3.

pub mod cg;
pub mod is;
mod kernel;
mod random;

pub use kernel::{Kernel, Wrong};
