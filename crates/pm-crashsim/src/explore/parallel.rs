//! The same exploration on several cores: each takes runs of neighbouring points, which have much in common.

use super::Coverage;
use super::failure::Failure;
use super::kill::Share;
use super::memory::Memory;
use super::session::{Session, Subject, count_points};
use crate::image::Image;
use crate::trace::Trace;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// How many pieces a core gets, so that none waits long for the last.
const PIECES_PER_JOB: usize = 4;

/// Explores with that many threads. Of several failures, the one that comes first along the run is returned.
pub(super) fn explore<A: Sync>(
    subject: &Subject<'_, A>,
    memory: &Memory,
    start: &Image,
    trace: &Trace,
    jobs: usize,
) -> Result<Coverage, Box<Failure>> {
    let points = count_points(subject.explorer, start, trace);
    let piece = points.div_ceil(jobs * PIECES_PER_JOB).max(1);
    let pieces = points.div_ceil(piece).max(1);
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let work = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= pieces {
            return;
        }
        let range = number * piece..(number + 1) * piece;
        let outcome = Session::new(subject, &mut Memory::sharing_states(memory)).explore(
            start,
            trace,
            range,
            Share { number, of: pieces },
        );
        if outcome.is_err() {
            // Later pieces can only fail later.
            next.fetch_max(pieces, Ordering::Relaxed);
        }
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((number, outcome));
    };
    thread::scope(|scope| {
        for _ in 1..jobs {
            scope.spawn(work);
        }
        work();
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(number, _)| *number);
    let mut coverage = Coverage::default();
    for (_, outcome) in outcomes {
        coverage.add(outcome?);
    }
    Ok(coverage)
}
