//! Doubles of the seam and a harness for kills, for the tests of this repository.
//!
//! [`AnyPmem`] is one type for every implementation of the seam: generic code above the seam is compiled once for it, and not once for each double.
//! [`Hooked`] is a region with a [`Hook`] at its calls: failing fences, counted or watched stores, another thread at a chosen moment. [`SampledPmem`] is a
//! small simulator for long random programs of several threads, whose crashes are sampled; `pm-crashsim` is the one that explores them. [`Half`] makes two media of one simulated region. [`run_and_kill`] starts a
//! test of the same program as a child, kills it, and returns what it has acknowledged.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod any_pmem;
mod growing;
mod half;
mod hooked;
mod killed;
mod rng;
mod sampled;

pub use any_pmem::{AnyPmem, any};
pub use growing::Growing;
pub use half::Half;
pub use hooked::{Hook, Hooked};
pub use killed::run_and_kill;
pub use rng::{Rng, seeds};
pub use sampled::{SampledPmem, State};
