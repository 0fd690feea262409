//! pm-openraft through its public items, as one program that builds what its tests share once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crash;
mod failures;
mod lengths;
mod program;
mod reopened;
mod snapshots;
mod suite;
