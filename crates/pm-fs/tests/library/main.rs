//! pm-fs through its public items, as one program that builds what its tests share once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corrupted;
mod crash;
mod directories;
mod edits;
mod format_golden;
mod huge;
mod kill;
mod loads;
mod map;
mod model;
mod prices;
mod protected;
mod read_only;
mod repair;
mod room;
mod saved;
mod threads;
