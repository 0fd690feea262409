//! A stray access, and what is to happen after it.

use super::windows::Access;
use core::fmt;

/// The most frames that are recorded.
pub(super) const FRAMES_MAX: usize = 16;

/// An access to a protected region outside all windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The address.
    pub address: usize,
    /// The offset in the region.
    pub offset: u64,
    /// A load or a store; `None` where the CPU does not tell (aarch64).
    pub access: Option<Access>,
    /// The kernel's number of the thread, as gettid(2) returns it.
    pub thread: i32,
    /// The address at which the program is loaded; an address of an instruction minus this one is what `addr2line` takes.
    pub program: usize,
    pub(super) frames: [usize; FRAMES_MAX],
    pub(super) frame_count: usize,
}

impl Stray {
    /// The addresses of the instruction, and of the return addresses above it, innermost first. Complete only in programs compiled with frame pointers
    /// (`-C force-frame-pointers`); the first is always there.
    #[must_use]
    pub fn frames(&self) -> &[usize] {
        &self.frames[..self.frame_count]
    }
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.access {
            Some(Access::Read) => "load",
            Some(Access::Write) => "store",
            None => "access",
        };
        write!(
            f,
            "stray {what} at offset {:#x}, address {:#x}, by thread {}; ",
            self.offset, self.address, self.thread
        )?;
        write!(f, "program at {:#x}, instructions", self.program)?;
        self.frames().iter().try_for_each(|frame| write!(f, " {frame:#x}"))
    }
}

/// What happens after a stray access was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The access stays forbidden: the signal goes to the handler that was installed before, and by default ends the process.
    Abort,
    /// The access is made, unless it is a jump into the region, or a store to a read-only one, which abort. Its page stays open until it is next
    /// written through the region, so further strays there are not reported until then.
    LetThrough,
}

/// What happens at a stray access. Each is first written to standard error, as one line.
#[derive(Clone, Copy, Debug, Default)]
pub enum StrayPolicy {
    /// [`Verdict::Abort`].
    #[default]
    Abort,
    /// [`Verdict::LetThrough`].
    LetThrough,
    /// The function decides. It runs in a signal handler and must be async-signal-safe: it must not allocate, lock, or access the region. Nothing is
    /// written to standard error.
    Ask(fn(&Stray) -> Verdict),
}
