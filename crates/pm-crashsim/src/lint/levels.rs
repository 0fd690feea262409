//! Which lints are looked for, and how serious each is.

use super::{Level, Lint};
use crate::SourceLocation;

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
    /// Nothing is looked for.
    #[must_use]
    pub fn all_allowed() -> Self {
        Self { levels: [Level::Allow; Lint::ALL.len()], ..Self::default() }
    }

    /// Everything is, and is an error.
    #[must_use]
    pub fn all_denied() -> Self {
        Self { levels: [Level::Deny; Lint::ALL.len()], ..Self::default() }
    }

    /// Does not look for it.
    #[must_use]
    pub const fn allow(self, lint: Lint) -> Self {
        self.set(lint, Level::Allow)
    }

    /// Reports it.
    #[must_use]
    pub const fn warn(self, lint: Lint) -> Self {
        self.set(lint, Level::Warn)
    }

    /// Reports it as an error.
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

    /// Does not report it in files whose names end so: for words that need not survive, like locks.
    #[must_use]
    pub fn allow_in(mut self, lint: Lint, file_suffix: impl Into<String>) -> Self {
        self.allowed_in.push((lint, file_suffix.into()));
        self
    }

    /// Whether a successful compare-exchange also fences, as on x86; on unless told. An
    /// [`Explorer`](crate::Explorer) sets it to its own.
    #[must_use]
    pub const fn exchange_fences(mut self, fences: bool) -> Self {
        self.exchange_fences = fences;
        self
    }

    /// The level of one lint.
    #[must_use]
    pub const fn level(&self, lint: Lint) -> Level {
        self.levels[lint as usize]
    }

    /// Whether anything is looked for.
    #[must_use]
    pub fn is_any_on(&self) -> bool {
        self.levels.iter().any(|level| *level > Level::Allow)
    }

    /// Whether loads must have been recorded for what is looked for.
    #[must_use]
    pub const fn needs_loads(&self) -> bool {
        !matches!(self.level(Lint::UnpersistedRead), Level::Allow)
    }

    /// The same for recoveries, which flush what they find because they cannot know whether that is durable: a flush in
    /// vain is no mistake there, nor a sign of one.
    pub(crate) fn in_recovery(&self) -> Self {
        let in_vain = [Lint::EarlyFlush, Lint::RedundantFlush, Lint::RedundantFence];
        in_vain.into_iter().fold(self.clone(), Self::allow)
    }

    /// Whether `specific` may be told instead of `general`, which is not to be told less loudly than it was meant to be.
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
