//! Alternating rounds and their medians.

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Duration;

/// The side that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This project.
    Ours,
    /// What it is compared with.
    Theirs,
}

/// What one round measured: throughput of both sides, in the same unit, more is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// This project's throughput.
    pub ours: f64,
    /// The other's.
    pub theirs: f64,
}

impl Pair {
    /// How many times as fast ours is.
    #[must_use]
    pub fn ratio(self) -> f64 {
        self.ours / self.theirs
    }
}

/// Measures both sides `count` times by `measure`, in the order ours, theirs, theirs, ours, ours and so on.
///
/// # Errors
/// The first error of `measure`.
pub fn rounds<E>(count: usize, mut measure: impl FnMut(Side) -> Result<f64, E>) -> Result<Vec<Pair>, E> {
    let rounds = rounds_of(count, |index| measure(if index == 0 { Side::Ours } else { Side::Theirs }))?;
    Ok(rounds.into_iter().map(|[ours, theirs]| Pair { ours, theirs }).collect())
}

/// Measures each of `N` rivals `count` times by `measure`, which takes its index: forwards, backwards,
/// forwards and so on, so that none always profits from what another left behind. One array a round, in the
/// order of the indices.
///
/// # Errors
/// The first error of `measure`.
pub fn rounds_of<const N: usize, E>(
    count: usize,
    mut measure: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Vec<[f64; N]>, E> {
    let mut rounds = Vec::with_capacity(count);
    for round in 0..count {
        let mut measured = [0.0; N];
        for turn in 0..N {
            let index = if round % 2 == 0 { turn } else { N - 1 - turn };
            measured[index] = measure(index)?;
        }
        rounds.push(measured);
    }
    Ok(rounds)
}

/// The processor time that this thread has had. What a side waits for is memory alone, so this is the time that passes on an idle machine;
/// on a busy one the share of other programs is not in it.
///
/// # Panics
/// Never: the time counts up from zero.
#[must_use]
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("processor time counts up from zero")
}

/// The middle of `values`, or the mean of the two in the middle.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = sorted(values);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

/// The values that a quarter of `values` lie below, and above: how far to trust the median.
pub(crate) fn quartiles(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let values = sorted(values);
    let last = values.len() - 1;
    (values[last / 4], values[last - last / 4])
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quartiles() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([7.0]), 7.0);
        assert_eq!(quartiles([5.0, 1.0, 2.0, 3.0, 4.0]), (2.0, 4.0));
        assert_eq!(quartiles([7.0]), (7.0, 7.0));
    }

    #[test]
    fn sides_alternate() {
        let mut order = Vec::new();
        let pairs = rounds(3, |side| {
            order.push(side);
            Ok::<_, ()>(if side == Side::Ours { 3.0 } else { 2.0 })
        });
        use Side::{Ours, Theirs};
        assert_eq!(order, [Ours, Theirs, Theirs, Ours, Ours, Theirs]);
        assert_eq!(pairs, Ok(vec![Pair { ours: 3.0, theirs: 2.0 }; 3]));
    }

    #[test]
    fn each_rival_has_its_column() {
        let mut order = Vec::new();
        let rounds = rounds_of(2, |index| {
            order.push(index);
            Ok::<_, ()>(index as f64)
        });
        assert_eq!(rounds, Ok(vec![[0.0, 1.0, 2.0]; 2]));
        assert_eq!(order, [0, 1, 2, 2, 1, 0]);
    }

    #[test]
    fn error_ends_rounds() {
        let mut calls = 0;
        let outcome = rounds(9, |_| {
            calls += 1;
            if calls == 2 { Err("gone") } else { Ok(1.0) }
        });
        assert_eq!((outcome, calls), (Err("gone"), 2));
    }
}
