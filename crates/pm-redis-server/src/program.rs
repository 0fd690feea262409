//! The program that is replicated: a map of bytes to bytes.

use pm_openraft::{Changes, Program, SnapshotData, StorageError};
use serde::{Deserialize, Serialize};

openraft::declare_raft_types!(
    /// The types of the cluster.
    pub(crate) Map: D = Command, R = Answer, SnapshotData = SnapshotData
);

/// When a value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Condition {
    Always,
    IfAbsent,
    IfPresent,
}

/// A change of the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    Set { key: Vec<u8>, value: Vec<u8>, condition: Condition },
    SetAll(Vec<(Vec<u8>, Vec<u8>)>),
    Remove(Vec<Vec<u8>>),
    Add { key: Vec<u8>, number: i64 },
    Swap { key: Vec<u8>, expected: Vec<u8>, new: Vec<u8> },
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// The condition does not hold.
    Unchanged,
    Number(i64),
    NoNumber,
    Overflow,
}

impl Program for Map {
    fn apply(command: Command, state: &mut Changes<'_>) -> Result<Answer, StorageError> {
        Ok(match command {
            Command::Set { key, value, condition } => {
                let is_changed = match condition {
                    Condition::Always => true,
                    Condition::IfAbsent => state.get(&key)?.is_none(),
                    Condition::IfPresent => state.get(&key)?.is_some(),
                };
                if !is_changed {
                    return Ok(Answer::Unchanged);
                }
                state.insert(key, value);
                Answer::Done
            }
            Command::SetAll(pairs) => {
                pairs.into_iter().for_each(|(key, value)| state.insert(key, value));
                Answer::Done
            }
            Command::Remove(keys) => {
                let mut count = 0;
                for key in keys {
                    count += i64::from(state.remove(&key)?);
                }
                Answer::Number(count)
            }
            Command::Add { key, number } => {
                let present = match state.get(&key)? {
                    None => 0,
                    Some(value) => match parse_integer(&value) {
                        Some(number) => number,
                        None => return Ok(Answer::NoNumber),
                    },
                };
                let Some(sum) = present.checked_add(number) else { return Ok(Answer::Overflow) };
                state.insert(key, sum.to_string().into_bytes());
                Answer::Number(sum)
            }
            Command::Swap { key, expected, new } => {
                if state.get(&key)?.as_ref() != Some(&expected) {
                    return Ok(Answer::Number(0));
                }
                state.insert(key, new);
                Answer::Number(1)
            }
        })
    }

    fn nothing() -> Answer {
        Answer::Done
    }
}

/// A decimal number as Redis writes it: no sign but a minus, no leading zero.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}
