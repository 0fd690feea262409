//! Clusters of real processes, and clients of them, for the programs that test `pm store serve`.

#![allow(dead_code, unused_imports, reason = "each program uses some")]

mod client;
mod nodes;

pub(crate) use client::{Client, Reply};
pub(crate) use nodes::{Cluster, PATIENCE, free_ports, pm, wait_for};
