//! How much was tried: always "k of N".

use super::FaultCoverage;
use crate::lint::merge;
use crate::{Finding, Site};
use core::fmt;
use std::collections::BTreeSet;

/// What an exploration tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// First the crashes of the operation, then those of the recoveries from them, and so on.
    pub levels: Vec<LevelCoverage>,
    /// How many states [`Crash::is_new_state`](crate::Crash::is_new_state) was asked about; the same after other
    /// acknowledgements counts again.
    pub states: usize,
    /// The media faults, if there are to be any.
    pub faults: FaultCoverage,
    /// Every place that flushed or fenced, in the operation and in the recoveries.
    pub sites: BTreeSet<Site>,
    /// What the [lints](crate::Explorer::lints) found.
    pub findings: Vec<Finding>,
}

/// What was tried at one depth of crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelCoverage {
    /// Points at which a crash was tried.
    pub points: u64,
    /// The legal choices of what survives, over all points; `u128::MAX` when there are more than that.
    pub legal: u128,
    /// How many of these were tried, or are alike to a recovery that was: it read the same from them.
    pub tried: u128,
    /// How many recoveries were run.
    pub recoveries: u64,
    /// Whether every legal choice was tried.
    pub is_exhaustive: bool,
}

impl Default for LevelCoverage {
    fn default() -> Self {
        Self { points: 0, legal: 0, tried: 0, recoveries: 0, is_exhaustive: true }
    }
}

impl Coverage {
    /// Whether every legal choice was tried, at every depth, and every set of faults.
    #[must_use]
    pub fn is_exhaustive(&self) -> bool {
        self.levels.iter().all(|level| level.is_exhaustive) && self.faults.is_exhaustive()
    }

    /// How many recoveries were run, over all depths, without faults.
    #[must_use]
    pub fn recoveries(&self) -> u64 {
        self.levels.iter().map(|level| level.recoveries).sum()
    }

    /// Another pass tries the same points again; recoveries that were run are still recoveries that were run.
    pub(super) fn begin_again(&mut self) {
        for level in &mut self.levels {
            *level = LevelCoverage { recoveries: level.recoveries, ..LevelCoverage::default() };
        }
    }

    /// Adds what was tried elsewhere along the same run.
    pub(crate) fn add(&mut self, other: Self) {
        for (number, theirs) in other.levels.iter().enumerate() {
            let ours = self.level(number);
            ours.points += theirs.points;
            ours.legal = ours.legal.saturating_add(theirs.legal);
            ours.tried = ours.tried.saturating_add(theirs.tried);
            ours.recoveries += theirs.recoveries;
            ours.is_exhaustive &= theirs.is_exhaustive;
        }
        self.states = self.states.max(other.states);
        self.faults.add(&other.faults);
        self.sites.extend(other.sites);
        merge(&mut self.findings, other.findings);
    }

    /// The level with that number, which may be a new one.
    pub(super) fn level(&mut self, number: usize) -> &mut LevelCoverage {
        if self.levels.len() <= number {
            self.levels.resize(number + 1, LevelCoverage::default());
        }
        &mut self.levels[number]
    }

    /// A number of choices, which stops growing at its end.
    pub(super) fn write_legal(f: &mut fmt::Formatter<'_>, legal: u128) -> fmt::Result {
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
        if self.faults.images > 0 {
            write!(f, "; media faults: {}", self.faults)?;
        }
        match self.states {
            0 => Ok(()),
            states => write!(f, "; {states} states"),
        }
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
