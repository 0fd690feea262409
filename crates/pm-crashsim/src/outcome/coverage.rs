//! The coverage of an exploration: always "k of N".

use crate::lint::merge;
use crate::{Finding, Site};
use core::fmt;
use std::collections::BTreeSet;

/// The coverage of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// First the crashes of the operation, then those of the recoveries from them, and so on.
    pub levels: Vec<LevelCoverage>,
    /// The [kills](crate::Explorer::kills).
    pub kills: KillCoverage,
    /// The first crashes of the processes that ran after a kill. Those of recoveries from them are in [`levels`](Self::levels).
    pub after_kill: LevelCoverage,
    /// The crashes of [`Sequences`](crate::Sequences) after a recovery returned.
    pub after_recovery: LevelCoverage,
    /// The number of states passed to [`Crash::is_new_state`](crate::Crash::is_new_state); the same state after other acknowledgements counts again.
    pub states: usize,
    /// The media faults.
    pub faults: FaultCoverage,
    /// Whether the [time](crate::Explorer::time) was up before everything was tried.
    pub is_out_of_time: bool,
    /// Every place that flushed or fenced, in the operation and in the recoveries.
    pub sites: BTreeSet<Site>,
    /// The findings of the [lints](crate::Explorer::lints).
    pub findings: Vec<Finding>,
}

/// The coverage of one depth of crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelCoverage {
    /// Points at which a crash was tried.
    pub points: u64,
    /// The legal choices of survivors, over all points; `u128::MAX` when there are more than that.
    pub legal: u128,
    /// How many of these were tried, or are equivalent to one whose recovery ran: it read the same from them.
    pub tried: u128,
    /// The number of recoveries.
    pub recoveries: u64,
    /// Whether every legal choice was tried.
    pub is_exhaustive: bool,
}

/// The coverage of [kills](crate::Explorer::kills).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillCoverage {
    /// The kills that leave something different.
    pub legal: u64,
    /// How many of these were tried, or differ from a tried one only where no process read.
    pub tried: u64,
    /// The number of processes that ran after a kill.
    pub processes: u64,
}

/// The coverage of [media faults](crate::Explorer::faults).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCoverage {
    /// The number of images with injected faults: of images that recovery reads alike, one.
    pub images: u64,
    /// The legal sets of faults, over all these images; `u128::MAX` when there are more than that.
    pub legal: u128,
    /// How many of these were tried, or lie only where recovery does not read.
    pub tried: u128,
    /// The number of recoveries.
    pub recoveries: u64,
}

impl KillCoverage {
    /// Whether each was tried.
    #[must_use]
    pub const fn is_exhaustive(&self) -> bool {
        self.tried == self.legal
    }

    const fn add(&mut self, other: &Self) {
        self.legal += other.legal;
        self.tried += other.tried;
        self.processes += other.processes;
    }
}

impl fmt::Display for KillCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { legal, tried, processes } = self;
        write!(f, "tried {tried} of {legal} that differ, {processes} second processes")
    }
}

impl Default for LevelCoverage {
    fn default() -> Self {
        Self { points: 0, legal: 0, tried: 0, recoveries: 0, is_exhaustive: true }
    }
}

impl LevelCoverage {
    const fn add(&mut self, other: &Self) {
        self.points += other.points;
        self.legal = self.legal.saturating_add(other.legal);
        self.tried = self.tried.saturating_add(other.tried);
        self.recoveries += other.recoveries;
        self.is_exhaustive &= other.is_exhaustive;
    }
}

impl Coverage {
    /// Whether every legal choice was tried, at every depth and after recovery, and every set of faults. False if nothing was explored.
    ///
    /// With `PM_CRASHSIM_REPLAY`, which repeats one crash and skips everything else, it is true, so that a test that asserts it
    /// reaches the exploration to repeat.
    #[must_use]
    pub fn is_exhaustive(&self) -> bool {
        let mut levels = self.levels.iter().chain([&self.after_kill, &self.after_recovery]);
        let is_all = levels.all(|level| level.is_exhaustive) && self.kills.is_exhaustive();
        !self.levels.is_empty() && is_all && self.faults.is_exhaustive()
    }

    /// The bounds to raise for an exhaustive exploration; `None` if it is exhaustive, or if bounds are not the obstacle.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        if self.is_out_of_time {
            return Some("allow more by Explorer::time, or by PM_CRASHSIM_SECONDS (0 for no limit)");
        }
        let first = self.levels.first()?.is_exhaustive && self.after_kill.is_exhaustive;
        let nested = self.levels[1..].iter().chain([&self.after_recovery]);
        match (first, nested.copied().all(|level| level.is_exhaustive)) {
            (false, true) => Some("raise choices_per_point to try more"),
            (true, false) => Some("raise nested_choices_per_point to try more"),
            (false, false) => Some("raise choices_per_point and nested_choices_per_point to try more"),
            (true, true) => None,
        }
    }

    /// The number of recoveries over all depths, after kills and after recovery, without faults.
    #[must_use]
    pub fn recoveries(&self) -> u64 {
        self.levels.iter().chain([&self.after_kill, &self.after_recovery]).map(|level| level.recoveries).sum()
    }

    /// The same, for an exploration that was skipped on purpose.
    pub(crate) fn skipped(mut self) -> Self {
        self.level(0);
        self
    }

    /// Adds the coverage of the same run with another second process.
    pub(crate) fn with_restarted(mut self, restarted: Self) -> Self {
        self.kills.add(&restarted.kills);
        self.after_kill.add(&restarted.after_kill);
        self.sites.extend(restarted.sites);
        self
    }

    /// Adds the coverage of crashes after a recovery.
    pub(crate) fn add_after_recovery(&mut self, within: &Self) {
        within.levels.iter().for_each(|level| self.after_recovery.add(level));
        self.sites.extend(within.sites.iter().cloned());
    }

    /// Starts another pass over the same points; recoveries keep counting.
    pub(crate) fn begin_again(&mut self) {
        for level in &mut self.levels {
            *level = LevelCoverage { recoveries: level.recoveries, ..LevelCoverage::default() };
        }
    }

    /// Adds the coverage of another part of the same run.
    pub(crate) fn add(&mut self, other: Self) {
        for (number, theirs) in other.levels.iter().enumerate() {
            self.level(number).add(theirs);
        }
        self.kills.add(&other.kills);
        self.after_kill.add(&other.after_kill);
        self.after_recovery.add(&other.after_recovery);
        self.states = self.states.max(other.states);
        self.is_out_of_time |= other.is_out_of_time;
        self.faults.add(&other.faults);
        self.sites.extend(other.sites);
        merge(&mut self.findings, other.findings);
    }

    /// The level with that number, which may be new.
    pub(crate) fn level(&mut self, number: usize) -> &mut LevelCoverage {
        if self.levels.len() <= number {
            self.levels.resize(number + 1, LevelCoverage::default());
        }
        &mut self.levels[number]
    }

    /// Writes a saturating number of choices.
    pub(crate) fn write_legal(f: &mut fmt::Formatter<'_>, legal: u128) -> fmt::Result {
        match legal {
            u128::MAX => f.write_str("more than 2^128"),
            legal => write!(f, "{legal}"),
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, level) in self.levels.iter().enumerate() {
            let crashed = if number == 0 { "the operation" } else { "recovery" };
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}crashes of {crashed}: {level}")?;
        }
        if self.kills.legal > 0 {
            write!(f, "; kills: {}; crashes after a kill: {}", self.kills, self.after_kill)?;
        }
        if self.after_recovery.points > 0 {
            write!(f, "; crashes after recovery: {}", self.after_recovery)?;
        }
        if self.faults.images > 0 {
            write!(f, "; media faults: {}", self.faults)?;
        }
        match self.states {
            0 => (),
            states => write!(f, "; {states} states")?,
        }
        if self.is_out_of_time { f.write_str("; out of time") } else { Ok(()) }
    }
}

impl fmt::Display for LevelCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { points, tried, recoveries, .. } = self;
        write!(f, "tried {tried} of ")?;
        Coverage::write_legal(f, self.legal)?;
        write!(f, " legal choices at {points} points, {recoveries} recoveries")
    }
}

impl FaultCoverage {
    /// Whether every legal set was tried.
    #[must_use]
    pub const fn is_exhaustive(&self) -> bool {
        self.tried == self.legal
    }

    /// Adds the coverage of another part of the same run.
    pub(crate) const fn add(&mut self, other: &Self) {
        self.images += other.images;
        self.legal = self.legal.saturating_add(other.legal);
        self.tried = self.tried.saturating_add(other.tried);
        self.recoveries += other.recoveries;
    }
}

impl fmt::Display for FaultCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { images, tried, recoveries, .. } = self;
        write!(f, "tried {tried} of ")?;
        Coverage::write_legal(f, self.legal)?;
        write!(f, " sets on {images} images, {recoveries} recoveries")
    }
}
