//! `pmbd` on a real kernel: file systems on it, load, killed servers, power cuts.
//!
//! One program, so that one guest runs at a time.

mod lab;
mod media;
mod power_cut;
mod ublk;
