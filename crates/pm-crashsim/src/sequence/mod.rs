//! Sequences of operations against a reference, with durable linearizability as the oracle.

mod case;
mod failure;
#[cfg(feature = "proptest")]
mod property;
mod restart;
mod runner;
mod shrink;
#[cfg(feature = "proptest-state-machine")]
mod state_machine;
mod subject;
mod teeth;

pub use failure::SequenceFailure;
pub use runner::{Sequences, SequencesCoverage};
#[cfg(feature = "proptest-state-machine")]
pub use state_machine::{CrashTest, StateMachineSubject, Transitions};
pub use subject::{Durability, Oracle, Subject};
