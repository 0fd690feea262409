//! What a program says of its commands.

use crate::changes::Changes;
use crate::error::StorageError;
use crate::snapshot::SnapshotData;
use openraft::{BasicNode, Entry, RaftTypeConfig};

/// A program that is replicated: openraft's types with those of this crate, and what a command does.
///
/// openraft's macro declares the types:
///
/// ```
/// use pm_openraft::{Changes, Program, SnapshotData, StorageError};
///
/// openraft::declare_raft_types!(
///     /// Counters, to which commands add.
///     pub Counters: D = (String, u64), R = u64, SnapshotData = SnapshotData
/// );
///
/// impl Program for Counters {
///     fn apply((name, count): (String, u64), state: &mut Changes<'_>) -> Result<u64, StorageError> {
///         let bytes = state.get(name.as_bytes())?.and_then(|bytes| bytes.try_into().ok());
///         let sum = bytes.map_or(0, u64::from_be_bytes).wrapping_add(count);
///         state.insert(name.into_bytes(), sum.to_be_bytes().into());
///         Ok(sum)
///     }
///     fn nothing() -> u64 {
///         0
///     }
/// }
/// ```
pub trait Program:
    RaftTypeConfig<NodeId = u64, Node = BasicNode, Entry = Entry<Self>, SnapshotData = SnapshotData>
{
    /// Makes the changes of a command, and returns its answer. The same commands on the same state must make the same changes on all nodes: so the result
    /// depends on nothing but the command and the state.
    ///
    /// # Errors
    /// When the state cannot be read. The node stops then: a command that a program refuses is an answer.
    fn apply(command: Self::D, state: &mut Changes<'_>) -> Result<Self::R, StorageError>;

    /// The answer to an entry without a command, which no client sees.
    fn nothing() -> Self::R;
}
