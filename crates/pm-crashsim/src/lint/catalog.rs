//! The lints by name, with their explanations and levels.

use crate::SourceLocation;
use crate::setters::setters;
use core::fmt;

/// The consequence of a finding of a [`Lint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// It is not looked for.
    Allow,
    /// It is reported.
    Warn,
    /// It is reported, and the exploration fails.
    Deny,
}

/// A misuse of persistent memory that shows in the record of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lint {
    /// `unflushed-store`: a store was not flushed before its operation was acknowledged.
    UnflushedStore,
    /// `unfenced-flush`: a flush was not fenced before the operation was acknowledged.
    UnfencedFlush,
    /// `unfenced-store`: a store that needs no flush, only a fence, did not get one.
    UnfencedStore,
    /// `early-flush`: a flush stands before the store that it was meant for.
    EarlyFlush,
    /// `store-in-flight`: a store to a line between its flush and the fence, not flushed again.
    StoreInFlight,
    /// `unpersisted-read`: something durable was made of another thread's store that was not.
    UnpersistedRead,
    /// `redundant-flush`: a flush with nothing to write back.
    RedundantFlush,
    /// `redundant-fence`: a fence with nothing to wait for.
    RedundantFence,
}

impl Lint {
    /// Every lint.
    pub const ALL: [Self; 8] = [
        Self::UnflushedStore,
        Self::UnfencedFlush,
        Self::UnfencedStore,
        Self::EarlyFlush,
        Self::StoreInFlight,
        Self::UnpersistedRead,
        Self::RedundantFlush,
        Self::RedundantFence,
    ];

    /// Its stable name, in kebab case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnflushedStore => "unflushed-store",
            Self::UnfencedFlush => "unfenced-flush",
            Self::UnfencedStore => "unfenced-store",
            Self::EarlyFlush => "early-flush",
            Self::StoreInFlight => "store-in-flight",
            Self::UnpersistedRead => "unpersisted-read",
            Self::RedundantFlush => "redundant-flush",
            Self::RedundantFence => "redundant-fence",
        }
    }

    /// The lint with that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lint| lint.name() == name)
    }

    /// Its level in [`Lints::default`](Lints): each lint is silent on a program that is correct and wastes nothing, and none proves that
    /// a crash does harm, which is the exploration's part.
    #[must_use]
    pub const fn default_level(self) -> Level {
        Level::Warn
    }

    /// What it finds, why that matters, and what to do, in a paragraph.
    #[must_use]
    pub const fn explain(self) -> &'static str {
        match self {
            Self::UnflushedStore => {
                "Bytes were stored through the cache, and no flush of their line followed before the thread \
                 acknowledged its operation, or before the run ended. The cache writes the line back at any \
                 time, or never: after a crash, the completed operation is missing, or \
                 half of it. Flush every line of the range after its last store, then fence, then acknowledge. \
                 Where the bytes need not survive, as with a lock that recovery resets, allow the lint for that \
                 file, or keep them in ordinary memory."
            }
            Self::UnfencedFlush => {
                "A line was flushed, and the operation was acknowledged, or the run ended, with no fence of the \
                 flushing thread in between. A flush only starts the write-back; a crash before its fence may \
                 still lose the line. Fence once, after the last flush and before the acknowledgement. Only the \
                 thread that flushed can do so: a fence does not wait for the flushes of other threads."
            }
            Self::UnfencedStore => {
                "A store that needs no flush was not fenced before the operation was acknowledged, or before the \
                 run ended. A non-temporal store waits in a write-combining buffer, and where caches survive a \
                 crash, any store may still wait in the store buffer; both are lost. Fence before acknowledging."
            }
            Self::EarlyFlush => {
                "A line was flushed while nothing was stored to it, then stored to, and not flushed again before \
                 the operation was acknowledged. A flush writes back the contents of the line at that moment, not \
                 later stores. Move the flush after the store, and the fence after the flush."
            }
            Self::StoreInFlight => {
                "A thread flushed a line, stored to it again, and fenced without another flush. The fence waits \
                 for the line as it was flushed; the later store may be included or not, and tests on real \
                 hardware rarely show which. Flush after the last store to the line; if the store belongs to the \
                 next step, make it after the fence."
            }
            Self::UnpersistedRead => {
                "A thread read bytes that another thread had stored and not yet made durable, and then made \
                 something durable itself, or acknowledged its operation, before they were. A crash right then \
                 keeps the effect and loses its cause: a key without its node, an answer without its data. \
                 Let the writer persist before it publishes; or let the reader flush and fence what it read \
                 before it relies on it, as lock-free structures do."
            }
            Self::RedundantFlush => {
                "No byte of any flushed line was waiting to be flushed: no line was stored to since \
                 this thread's last flush of it. It costs about as much as a useful flush, and on some processors \
                 also drops the line from the cache. Remove it; or flush a range once, after its last store."
            }
            Self::RedundantFence => {
                "The thread had nothing in flight: no flush that had something to write back, no non-temporal \
                 store, since its last fence. A fence stalls until everything before it has drained. Remove it; \
                 or let one fence serve several flushes, where no order among them is needed."
            }
        }
    }
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The levels of all lints.
///
/// ```
/// use pm_crashsim::{Level, Lint, Lints};
/// let lints = Lints::default().deny(Lint::UnflushedStore).allow(Lint::RedundantFence);
/// assert_eq!(lints.level(Lint::UnflushedStore), Level::Deny);
/// assert_eq!(lints.level(Lint::StoreInFlight), Level::Warn);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lints {
    levels: [Level; Lint::ALL.len()],
    allowed_in: Vec<(Lint, String)>,
    pub(super) exchange_fences: bool,
}

impl Default for Lints {
    /// Each lint at its [`default_level`](Lint::default_level).
    fn default() -> Self {
        Self { levels: Lint::ALL.map(Lint::default_level), allowed_in: Vec::new(), exchange_fences: true }
    }
}

impl Lints {
    /// No lint is on.
    #[must_use]
    pub fn all_allowed() -> Self {
        Self { levels: [Level::Allow; Lint::ALL.len()], ..Self::default() }
    }

    /// Every lint is on, and its findings are errors.
    #[must_use]
    pub fn all_denied() -> Self {
        Self { levels: [Level::Deny; Lint::ALL.len()], ..Self::default() }
    }

    /// Turns the lint off.
    #[must_use]
    pub const fn allow(self, lint: Lint) -> Self {
        self.set(lint, Level::Allow)
    }

    /// Its findings are warnings.
    #[must_use]
    pub const fn warn(self, lint: Lint) -> Self {
        self.set(lint, Level::Warn)
    }

    /// Its findings are errors.
    #[must_use]
    pub const fn deny(self, lint: Lint) -> Self {
        self.set(lint, Level::Deny)
    }

    /// Sets the level of one lint.
    #[must_use]
    pub const fn set(mut self, lint: Lint, level: Level) -> Self {
        self.levels[lint as usize] = level;
        self
    }

    /// Turns the lint off in files whose names end with the suffix: for words that need not survive, like locks.
    #[must_use]
    pub fn allow_in(mut self, lint: Lint, file_suffix: impl Into<String>) -> Self {
        self.allowed_in.push((lint, file_suffix.into()));
        self
    }

    setters! {
        /// Whether a successful compare-exchange also fences, as on x86; on by default. An [`Explorer`](crate::Explorer) sets it to its own.
        exchange_fences(fences: bool) => exchange_fences;
    }

    /// The level of one lint.
    #[must_use]
    pub const fn level(&self, lint: Lint) -> Level {
        self.levels[lint as usize]
    }

    /// Whether any lint is on.
    #[must_use]
    pub fn is_any_on(&self) -> bool {
        self.levels.iter().any(|level| *level > Level::Allow)
    }

    /// Whether the lints that are on need recorded loads.
    #[must_use]
    pub const fn needs_loads(&self) -> bool {
        !matches!(self.level(Lint::UnpersistedRead), Level::Allow)
    }

    /// The lints for recoveries. A recovery cannot know whether its contents are durable, so a redundant flush is neither a mistake
    /// there nor a sign of one.
    pub(crate) fn in_recovery(&self) -> Self {
        let in_vain = [Lint::EarlyFlush, Lint::RedundantFlush, Lint::RedundantFence];
        in_vain.into_iter().fold(self.clone(), Self::allow)
    }

    /// Whether `specific` may be reported instead of `general`, which must not lower the level.
    pub(super) fn may_replace(&self, specific: Lint, general: Lint) -> bool {
        self.level(specific) > Level::Allow && self.level(specific) >= self.level(general)
    }

    /// The level of a lint at one place.
    pub(super) fn level_at(&self, lint: Lint, location: &SourceLocation) -> Level {
        let is_allowed =
            |(of, suffix): &(Lint, String)| *of == lint && location.file().ends_with(suffix.as_str());
        if self.allowed_in.iter().any(is_allowed) { Level::Allow } else { self.level(lint) }
    }
}
