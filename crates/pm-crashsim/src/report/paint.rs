//! Colours, for terminals that want them.

use core::fmt::{self, Display};
use std::env;
use std::io::{IsTerminal, stderr};

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// As it is.
    Plain,
    /// With the escape sequences of terminals.
    Coloured,
}

/// What text stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Lost,
    Kept,
    Durable,
    Heading,
    Aside,
}

/// Text in its colour.
pub(super) struct Painted<T>(Paint, Role, T);

impl Paint {
    /// Colours if errors go to a terminal, and `NO_COLOR` does not forbid them.
    pub(crate) fn for_stderr() -> Self {
        let is_forbidden = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if stderr().is_terminal() && !is_forbidden { Self::Coloured } else { Self::Plain }
    }

    pub(super) const fn paint<T>(self, role: Role, text: T) -> Painted<T> {
        Painted(self, role, text)
    }
}

impl<T: Display> Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(paint, role, text) = self;
        let code = match role {
            _ if *paint == Paint::Plain => return text.fmt(f),
            Role::Lost => "31",
            Role::Kept => "33",
            Role::Durable => "32",
            Role::Heading => "1",
            Role::Aside => "2",
        };
        write!(f, "\x1b[{code}m")?;
        text.fmt(f)?;
        f.write_str("\x1b[0m")
    }
}
