//! The outcome of a traced run.

use core::fmt;

use crate::calls;

/// The outcome of a traced run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The number of counted calls, up to and including the one that was hit.
    pub call_count: usize,
    /// The call that was hit; `None` if fewer calls than that were counted.
    pub hit: Option<Hit>,
    /// How the program itself ended.
    pub end: End,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hit {
            Some(hit) => write!(f, "{hit} was hit, {}", self.end),
            None => write!(f, "none of {} calls was hit, {}", self.call_count, self.end),
        }
    }
}

/// A call that was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The call's number, as `libc::SYS_openat`.
    pub number: libc::c_long,
    /// Whether a child process made it, and not the program itself.
    pub is_in_child: bool,
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match calls::name(self.number) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "system call {}", self.number)?,
        }
        f.write_str(if self.is_in_child { " in a child" } else { "" })
    }
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit code.
    Exit(i32),
    /// By this signal, as SIGKILL by [`Fault::Kill`](crate::Fault::Kill).
    Signal(i32),
    /// It or a child was still running after [`PATIENCE`](crate::PATIENCE), and all were killed.
    Hang,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "ended by signal {signal}"),
            Self::Hang => f.write_str("hung"),
        }
    }
}
