//! The program that is replicated: a map of bytes to bytes.

use pm_openraft::{Changes, Program, SnapshotData, StorageError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

openraft::declare_raft_types!(
    /// The types of the cluster.
    pub(crate) Map: D = Vec<Command>, R = Vec<Answer>, SnapshotData = SnapshotData
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
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
        condition: Condition,
    },
    SetAll(Vec<(Vec<u8>, Vec<u8>)>),
    Remove(Vec<Vec<u8>>),
    Add {
        key: Vec<u8>,
        number: i64,
    },
    Swap {
        key: Vec<u8>,
        expected: Vec<u8>,
        new: Vec<u8>,
    },
    /// Gives the number of a node to a file, for good; to none, if its file is not known.
    Register {
        id: u64,
        file: Option<[u8; 16]>,
    },
}

/// The files of the nodes that were ever added or removed. It is a part of the state, under a key that clients cannot use.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Registry(BTreeMap<u64, Option<[u8; 16]>>);

impl Registry {
    /// The key of the registry, and of nothing else.
    pub(crate) const KEY: &[u8] = b"\0pm.nodes";

    pub(crate) fn decode(bytes: Option<&[u8]>) -> Result<Self, StorageError> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        postcard::from_bytes(bytes).map_err(|error| StorageError::Decode { what: "registry", error })
    }

    fn encode(&self) -> Result<Vec<u8>, StorageError> {
        postcard::to_stdvec(self).map_err(|error| StorageError::Encode { what: "registry", error })
    }

    /// Whether the number of a node was given to a file, or to none.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.0.contains_key(&id)
    }

    /// Whether the number of a node was given to this file.
    pub(crate) fn is_of(&self, id: u64, file: [u8; 16]) -> bool {
        self.0.get(&id) == Some(&Some(file))
    }
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
    fn apply(commands: Vec<Command>, state: &mut Changes<'_>) -> Result<Vec<Answer>, StorageError> {
        commands.into_iter().map(|command| command.apply(state)).collect()
    }

    fn nothing() -> Vec<Answer> {
        Vec::new()
    }
}

impl Command {
    /// The length of its strings, about.
    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Set { key, value, .. } => key.len() + value.len(),
            Self::SetAll(pairs) => pairs.iter().map(|(key, value)| key.len() + value.len() + 64).sum(),
            Self::Remove(keys) => keys.iter().map(|key| key.len() + 64).sum(),
            Self::Add { key, .. } => key.len(),
            Self::Swap { key, expected, new } => key.len() + expected.len() + new.len(),
            Self::Register { .. } => 0,
        }
    }

    /// The length of its encoding, at most a few bytes more.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        let number = |number: u64| u64::from(number.max(1).ilog2() / 7 + 1);
        let string = |string: &Vec<u8>| number(string.len() as u64) + string.len() as u64;
        1 + match self {
            Self::Set { key, value, .. } => string(key) + string(value) + 1,
            Self::SetAll(pairs) => {
                let strings = pairs.iter().map(|(key, value)| string(key) + string(value));
                number(pairs.len() as u64) + strings.sum::<u64>()
            }
            Self::Remove(keys) => number(keys.len() as u64) + keys.iter().map(string).sum::<u64>(),
            Self::Add { key, .. } => string(key) + number(u64::MAX),
            Self::Swap { key, expected, new } => string(key) + string(expected) + string(new),
            Self::Register { .. } => number(u64::MAX) + 17,
        }
    }

    /// The lengths of the keys and values that it may set, but for the registry: of a sum, the shortest and the longest one.
    pub(crate) fn values(&self) -> impl Iterator<Item = (u64, u64)> {
        let (pairs, others) = match self {
            Self::SetAll(pairs) => (pairs.as_slice(), [None, None]),
            Self::Set { key, value, .. } => (&[][..], [Some((key, value.len())), None]),
            Self::Swap { key, new, .. } => (&[][..], [Some((key, new.len())), None]),
            Self::Add { key, .. } => (&[][..], [Some((key, 1)), Some((key, INTEGER_BYTES))]),
            Self::Remove(_) | Self::Register { .. } => (&[][..], [None, None]),
        };
        let pairs = pairs.iter().map(|(key, value)| (key, value.len()));
        pairs.chain(others.into_iter().flatten()).map(|(key, value)| (key.len() as u64, value as u64))
    }

    /// Makes its changes.
    fn apply(self, state: &mut Changes<'_>) -> Result<Answer, StorageError> {
        Ok(match self {
            Self::Set { key, value, condition } => {
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
            Self::SetAll(pairs) => {
                pairs.into_iter().for_each(|(key, value)| state.insert(key, value));
                Answer::Done
            }
            Self::Remove(keys) => {
                let mut count = 0;
                for key in keys {
                    count += i64::from(state.remove(&key)?);
                }
                Answer::Number(count)
            }
            Self::Add { key, number } => {
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
            Self::Swap { key, expected, new } => {
                if state.get(&key)?.as_ref() != Some(&expected) {
                    return Ok(Answer::Number(0));
                }
                state.insert(key, new);
                Answer::Number(1)
            }
            Self::Register { id, file } => {
                let mut registry = Registry::decode(state.get(Registry::KEY)?.as_deref())?;
                if *registry.0.entry(id).or_insert(file) != file {
                    return Ok(Answer::Unchanged);
                }
                state.insert(Registry::KEY.to_vec(), registry.encode()?);
                Answer::Done
            }
        })
    }
}

/// The length of the longest decimal number.
const INTEGER_BYTES: usize = 20;

/// A decimal number as Redis writes it: no sign but a minus, no leading zero.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_an_encoding_is_known() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 200_000] {
            let string = || vec![b'x'; len];
            let commands = [
                (0, Command::Set { key: string(), value: string(), condition: Condition::Always }),
                (0, Command::SetAll(vec![(string(), string()), (string(), vec![])])),
                (0, Command::Remove((0..len % 1000).map(|_| vec![b'x'; len / 100]).collect())),
                (9, Command::Add { key: string(), number: -5 }),
                (0, Command::Add { key: string(), number: i64::MIN }),
                (0, Command::Swap { key: string(), expected: vec![], new: string() }),
                (26, Command::Register { id: 3, file: None }),
                (0, Command::Register { id: u64::MAX, file: Some([7; 16]) }),
            ];
            for (more, command) in commands {
                let encoded = postcard::to_stdvec(&command).unwrap().len() as u64;
                let told = command.encoded_bytes();
                assert!((encoded..=encoded + more).contains(&told), "{told} of {encoded} for {len}");
            }
        }
    }

    #[test]
    fn registry_tells_no_file_from_a_file_of_zeros() {
        let registry = Registry(BTreeMap::from([(1, None), (2, Some([0; 16]))]));
        let registry = Registry::decode(Some(&registry.encode().unwrap())).unwrap();
        assert!(registry.has(1) && !registry.is_of(1, [0; 16]));
        assert!(registry.has(2) && registry.is_of(2, [0; 16]) && !registry.is_of(2, [1; 16]));
        assert!(!registry.has(3) && !registry.is_of(3, [0; 16]));
    }
}
