//! Recovering from media that also fail.

use super::examined::Examined;
use super::failure::Failure;
use super::session::{Point, Session};
use super::{Crash, Explorer};
use crate::faults::{Fault, Faults, apply};
use crate::image::Image;
use crate::line::LineSet;
use crate::sim::Recording;
use crate::{Coverage, SimPmem};
use core::fmt;
use std::sync::Arc;

/// What was tried of the [media faults](Explorer::faults): always "k of N".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCoverage {
    /// How many images that a crash left were given faults: of those that recovery reads alike, one.
    pub images: u64,
    /// The legal sets of faults, over all these images; `u128::MAX` when there are more than that.
    pub legal: u128,
    /// How many of these were tried, or lie only where recovery does not look.
    pub tried: u128,
    /// How many recoveries were run.
    pub recoveries: u64,
}

impl Explorer {
    /// Lets the medium fail, too: whenever a recovery from a crash went well, the check also runs on the same image with each
    /// set of `faults`. [`Crash::faults`] tells it which; then an error that says so is well, and wrong contents are not.
    ///
    /// Faults come after the crash of the operation, orderly ends included. Recoveries from them are neither crashed nor linted.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }
}

impl<A> Session<'_, A> {
    /// Runs the check on the image with faults, after it ran without and read these lines. Adds what it reads then: two
    /// images that are alike without faults may not be with them.
    pub(super) fn recover_from_faults(
        &mut self,
        image: &Image,
        point: &Point<'_>,
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        let explorer = self.subject.explorer;
        let history = self.subject.history.numbers[point.acked];
        let is_wanted = point.level == 0 && explorer.faults.are_any();
        if !is_wanted || !self.faulted.insert((image.fingerprint(), history)) {
            return Ok(());
        }
        let plan = explorer.faults.plan(image.len_bytes(), explorer.seed);
        let covered = &mut self.coverage.faults;
        covered.images += 1;
        covered.legal = covered.legal.saturating_add(plan.legal());
        covered.tried = covered.tried.saturating_add(plan.len() as u128);
        let read: LineSet = examined.lines().iter().copied().collect();
        let is_read = |fault: &Fault| read.contains(&fault.line());
        for faults in plan.sets().filter(|faults| !explorer.reduce || faults.iter().any(is_read)) {
            self.recover_from(image, point, &faults, examined)?;
        }
        Ok(())
    }

    fn recover_from(
        &mut self,
        image: &Image,
        point: &Point<'_>,
        faults: &[Fault],
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        let subject = self.subject;
        let explorer = subject.explorer;
        self.coverage.faults.recoveries += 1;
        subject.meter.count_recovery();
        let (model, edits) = (explorer.rules.model, &explorer.edits);
        let pmem = SimPmem::recorded(&apply(image, faults), model, Recording::Nothing, edits);
        pmem.watch(self.memo(point.level).watched());
        pmem.limit(explorer.accesses_per_check, explorer.time_per_check);
        let pmem = Arc::new(pmem);
        let crash = Crash::new(Arc::clone(&pmem), &subject.history.acked[..point.acked], point.level + 1);
        let failed = (subject.check)(&crash.with_faults(faults));
        examined.extend(pmem.take_reads());
        failed.map_or(Ok(()), |mut complaint| {
            let told: Vec<String> = faults.iter().map(Fault::to_string).collect();
            complaint.message = format!("with {}: {}", told.join(", "), complaint.message);
            let mut failure = Box::new(Failure::new(complaint, self.coverage.clone()));
            failure.faults = faults.to_vec();
            Err(failure)
        })
    }
}

impl FaultCoverage {
    /// Whether every legal set was tried.
    #[must_use]
    pub const fn is_exhaustive(&self) -> bool {
        self.tried == self.legal
    }

    /// Adds what was tried elsewhere along the same run.
    pub(super) const fn add(&mut self, other: &Self) {
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
