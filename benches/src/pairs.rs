//! Alternating rounds, and the medians of their ratios.

use miette::{IntoDiagnostic as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Duration;

/// The side that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This project.
    Ours,
    /// The rival.
    Theirs,
}

/// The throughput of both sides in one round, in the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// This project's throughput.
    pub ours: f64,
    /// The rival's throughput.
    pub theirs: f64,
}

impl Pair {
    /// Our throughput divided by theirs.
    #[must_use]
    pub fn ratio(self) -> f64 {
        self.ours / self.theirs
    }
}

/// Measures `K` throughputs of each side `count` times, in the order ours, theirs, theirs, ours, ours and so on. The result has the pairs of
/// each throughput.
pub fn rounds<const K: usize>(
    count: usize,
    mut measure: impl FnMut(Side) -> Result<[f64; K]>,
) -> Result<[Vec<Pair>; K]> {
    let rounds = rounds_of(count, |index| measure(if index == 0 { Side::Ours } else { Side::Theirs }))?;
    let pair = |k: usize, &[ours, theirs]: &[[f64; K]; 2]| Pair { ours: ours[k], theirs: theirs[k] };
    Ok(std::array::from_fn(|k| rounds.iter().map(|round| pair(k, round)).collect()))
}

/// Measures each of `N` candidates `count` times: forwards, backwards, forwards and so on, so that no candidate always profits from the state
/// in which another left the machine. Each round is an array in the order of the candidates' indices.
///
/// # Panics
/// Never: each candidate is measured.
pub fn rounds_of<T: Copy, const N: usize>(
    count: usize,
    mut measure: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<[T; N]>> {
    let mut round_of = |round: usize| {
        let mut measured = [None; N];
        for turn in 0..N {
            let index = if round.is_multiple_of(2) { turn } else { N - 1 - turn };
            measured[index] = Some(measure(index)?);
        }
        Ok(measured.map(|value| value.expect("each candidate was measured")))
    };
    (0..count).map(&mut round_of).collect()
}

/// The processor time of the calling thread. The measured code waits for memory only, so on an idle machine this equals elapsed time; on
/// a busy one it excludes the time of other programs.
///
/// # Panics
/// Never: the time counts up from zero.
#[must_use]
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("processor time counts up from zero")
}

/// The processors on which the calling thread may run.
pub fn processors() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).into_diagnostic()?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Restricts the calling thread, and the programs and threads that it starts, to these processors: a thread that moves loses its caches.
pub fn run_on(processors: &[usize]) -> Result<()> {
    let mut allowed = CpuSet::new();
    processors.iter().for_each(|cpu| allowed.set(*cpu));
    sched_setaffinity(None, &allowed).into_diagnostic()
}

/// The median of `values`.
///
/// # Panics
/// If there are no values.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = sorted(values);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

/// The lower and the upper quartile of `values`.
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
    use miette::bail;

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
        use Side::{Ours, Theirs};
        let mut order = Vec::new();
        let pairs = rounds(3, |side| {
            order.push(side);
            Ok(if side == Ours { [3.0, 5.0] } else { [2.0, 4.0] })
        });
        assert_eq!(order, [Ours, Theirs, Theirs, Ours, Ours, Theirs]);
        let expected = [Pair { ours: 3.0, theirs: 2.0 }, Pair { ours: 5.0, theirs: 4.0 }];
        assert_eq!(pairs.unwrap(), expected.map(|pair| vec![pair; 3]));
    }

    #[test]
    fn each_candidate_has_its_column() {
        let mut order = Vec::new();
        let rounds = rounds_of(2, |index| {
            order.push(index);
            Ok(index)
        });
        assert_eq!(rounds.unwrap(), [[0, 1, 2]; 2]);
        assert_eq!(order, [0, 1, 2, 2, 1, 0]);
    }

    #[test]
    fn error_ends_rounds() {
        let mut calls = 0;
        let outcome = rounds(9, |_| {
            calls += 1;
            if calls == 2 { bail!("gone") } else { Ok([1.0]) }
        });
        assert_eq!((outcome.unwrap_err().to_string().as_str(), calls), ("gone", 2));
    }
}
