//! What the tests of sequences share.

pub(crate) use crate::common::*;
pub(crate) use pm_crashsim::{Oracle, SequenceFailure, Sequences, Subject};

/// The first line of what was wrong with a sequence.
pub(crate) fn problem<Op>(failure: &SequenceFailure<Op>) -> &str {
    failure.failure.message.lines().next().unwrap_or_default()
}

/// The oracle of a subject: the initial state, and the change of the state by one operation.
macro_rules! oracle {
    ($subject:ty: $state:ty = $initial:expr, |$now:ident, $op:pat_param| $change:expr) => {
        impl Oracle for $subject {
            fn initial(&self) -> $state {
                $initial
            }

            fn expect(&self, $now: &mut $state, $op: &<Self as Subject>::Op) {
                $change;
            }
        }
    };
}
pub(crate) use oracle;
