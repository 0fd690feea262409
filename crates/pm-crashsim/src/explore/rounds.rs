//! The order of the search: all points with a few telling choices, before more are tried anywhere.

use super::Explorer;
use super::failure::Failure;
use super::kill::Share;
use super::session::Session;
use crate::image::Image;
use crate::trace::Trace;
use core::ops::Range;

/// How many choices are tried at each point in the first rounds, where there are more.
const FEW_CHOICES: [u64; 3] = [2, 16, 256];

/// Of how many points one is visited in the rounds before these, if recoveries are bounded: they may not suffice for all points.
const STRIDES: [u64; 2] = [64, 8];

impl<A> Session<'_, A> {
    /// Tries everything: first what no crash has touched, then crashes, then kills.
    pub(super) fn explore_all(
        &mut self,
        start: &Image,
        trace: &Trace,
        points: Range<usize>,
        share: Share,
    ) -> Result<(), Box<Failure>> {
        let rejected = if share.number == 0 { self.rejects_untouched(start, trace) } else { None };
        let explored = self
            .crash_in_rounds(start, trace, points)
            .and_then(|()| self.kill_everywhere(start, trace, 0, self.subject.explorer.kills, share));
        match (explored, rejected) {
            (Err(mut failure), Some(rejected)) => {
                failure.untouched = rejected.untouched;
                Err(failure)
            }
            (Ok(()), Some(rejected)) => Err(rejected),
            (explored, None) => explored,
        }
    }

    /// Goes round all points with a few telling choices before it tries more anywhere, and crashes once everywhere before it
    /// crashes again inside, so that a failure is reached soon, and by as few crashes as can be. What one round learns, the
    /// next ones do not try again. If recoveries are bounded, it first visits points at even distances, so that what it leaves out is
    /// not the end of the run.
    fn crash_in_rounds(
        &mut self,
        start: &Image,
        trace: &Trace,
        points: Range<usize>,
    ) -> Result<(), Box<Failure>> {
        let Explorer { reduce, crashes, choices_per_point, .. } = *self.subject.explorer;
        let mut rounds: Vec<(usize, Option<u64>, u64)> = Vec::new();
        let few = FEW_CHOICES.into_iter().filter(|&few| few < choices_per_point && (reduce || crashes == 1));
        let strides = STRIDES.into_iter().filter(|_| self.most_recoveries < u64::MAX);
        rounds.extend(
            few.clone().take(1).flat_map(|few| strides.clone().map(move |every| (1, Some(few), every))),
        );
        rounds.extend(few.map(|few| (1, Some(few), 1)));
        if crashes > 1 {
            let inside = [(crashes, Some(FEW_CHOICES[0]), 1), (1, None, 1)];
            rounds.extend(inside.into_iter().filter(|_| reduce));
        }
        rounds.push((crashes, None, 1));
        for (crashes, few, every) in rounds {
            (self.crashes, self.few, self.every) = (crashes, few, every);
            self.coverage.begin_again();
            self.crash_points(start, trace, points.clone())?;
            if self.is_spent() {
                break;
            }
        }
        (self.few, self.every) = (None, 1);
        Ok(())
    }
}
