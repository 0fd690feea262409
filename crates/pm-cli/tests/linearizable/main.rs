//! The outside check of `pm store serve`: clients of three nodes, with kills, stops and cut links, find only answers that one store could have given, in an
//! order that agrees with time. `PM_REPLICATED_OPERATIONS` sets the number of operations, `PM_REPLICATED_SEED` the seed of the faults.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checker;
mod clients;
#[path = "../cluster/mod.rs"]
mod cluster;
mod history;
mod nemesis;
mod network;
mod planted;
mod porcupine;
mod run;

use run::{Run, number};

/// The main check.
#[test]
fn histories_with_faults_are_linearizable() {
    let operations = number("PM_REPLICATED_OPERATIONS").unwrap_or(50_000);
    let seed = number("PM_REPLICATED_SEED").unwrap_or_else(|| fastrand::u64(..));
    Run { name: "checked", seed, operations, reads_are_local: false }.checked();
}
