//! Sequences of operations against a reference, with durable linearizability as the oracle.

mod case;
mod sequences;
#[cfg(feature = "proptest-state-machine")]
mod state_machine;
mod subject;

pub use sequences::{SequenceFailure, Sequences, SequencesCoverage};
#[cfg(feature = "proptest-state-machine")]
pub use state_machine::{CrashTest, StateMachineSubject, Transitions};
pub use subject::{Durability, Oracle, Subject};
