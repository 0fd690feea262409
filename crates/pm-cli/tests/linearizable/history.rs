//! Histories: what clients have asked for and when, and the answers.

use serde::{Deserialize, Serialize};

/// What an operation does with its key. Values are numbers; absent keys have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Action {
    /// GET, MGET.
    Get,
    /// SET, MSET.
    Set { value: i64 },
    /// SET NX.
    Create { value: i64 },
    /// DEL.
    Delete,
    /// INCRBY.
    Add { value: i64 },
    /// PM.CAS.
    Swap { expected: i64, value: i64 },
}

/// An operation of a client on a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) client: u64,
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) action: Action,
    /// When the client has sent the request, in nanoseconds.
    pub(crate) call: u64,
    /// When the client had the answer. An operation whose outcome is unknown is open for ever.
    #[serde(rename = "return")]
    pub(crate) end: Option<u64>,
    /// The value that was read, the sum, or 1 for a change that was made and 0 for one that was not.
    pub(crate) result: Option<i64>,
}

impl Action {
    /// The value of the key afterwards, and the result.
    pub(crate) fn apply(self, present: Option<i64>) -> (Option<i64>, Option<i64>) {
        match self {
            Self::Get => (present, present),
            Self::Set { value } => (Some(value), None),
            Self::Create { value } => (present.or(Some(value)), Some(i64::from(present.is_none()))),
            Self::Delete => (None, Some(i64::from(present.is_some()))),
            Self::Add { value } => {
                let sum = present.unwrap_or(0) + value;
                (Some(sum), Some(sum))
            }
            Self::Swap { expected, value } if present == Some(expected) => (Some(value), Some(1)),
            Self::Swap { .. } => (present, Some(0)),
        }
    }
}

impl Operation {
    /// The value of the key after this operation, if the operation can have had its result at this point of the order.
    pub(crate) fn step(&self, present: Option<i64>) -> Option<Option<i64>> {
        let (after, result) = self.action.apply(present);
        (self.end.is_none() || result == self.result).then_some(after)
    }

    pub(crate) fn is_write(&self) -> bool {
        self.action != Action::Get
    }
}
