//! Sequences of operations, crashed everywhere: one sequence, or all up to a length.

use super::case::Case;
use super::subject::{Durability, Oracle, Subject};
use crate::line::random;
use crate::outcome::Explored;
use crate::setters::setters;
use crate::time_budget::TIME_VARIABLE;
use crate::{Coverage, Explorer, Failure, Image, SimPmem, Site};
use core::fmt;
#[cfg(feature = "proptest")]
use proptest::test_runner::TestCaseError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The default number of further operations on a recovered structure.
const FURTHER_OPS: usize = 8;

/// Runs sequences of operations on a [`Subject`], crashes each everywhere, and compares the state that recovery finds with the [`Oracle`]'s.
///
/// After each crash, inside recovery too, the structure must open and be in a state that its [`Durability`] allows. Then it must reopen in the same
/// state, and the first operations of the sequence must have the same effects on it as on any other. Nor may one more crash, when recovery has
/// returned, revert the state that it found, or tear the [first operation](Self::crash_onward) that follows. The explorer bounds that crash by
/// [`nested_choices_per_point`](Explorer::nested_choices_per_point), and [`Coverage::after_recovery`](crate::Coverage::after_recovery) counts it; its
/// own recoveries are not crashed again.
///
/// If the explorer [kills](Explorer::kills), each sequence is also killed everywhere; a second process opens the structure, must find
/// an allowed state, and applies the operations that would follow a recovery; it is crashed everywhere, and must not
/// lose the state that it found, nor its completed operations.
///
/// ```
/// use pm_core::{FenceError, Pmem};
/// use pm_crashsim::{Oracle, Sequences, SimPmem, Subject};
/// use std::sync::Arc;
///
/// /// Eight words, of which each can be set. A set is durable when it returns.
/// struct Words;
///
/// impl Subject for Words {
///     type Op = (u64, u64);
///     type State = [u64; 8];
///     type Store = Arc<SimPmem>;
///     type Error = FenceError;
///
///     fn open(&self, pmem: Arc<SimPmem>) -> Result<Arc<SimPmem>, FenceError> {
///         Ok(pmem)
///     }
///     fn apply(&self, words: &mut Arc<SimPmem>, &(index, value): &(u64, u64)) -> Result<(), FenceError> {
///         words.store_u64(8 * index, value);
///         words.persist(8 * index, 8)
///     }
///     fn observe(&self, words: &Arc<SimPmem>) -> Result<[u64; 8], FenceError> {
///         Ok(core::array::from_fn(|index| words.load_u64(8 * index as u64)))
///     }
/// }
///
/// impl Oracle for Words {
///     fn initial(&self) -> [u64; 8] {
///         [0; 8]
///     }
///     fn expect(&self, words: &mut [u64; 8], &(index, value): &(u64, u64)) {
///         words[index as usize] = value;
///     }
/// }
///
/// // Every sequence of one, two and three of these operations.
/// let coverage = Sequences::new(Words, 64)?.check_all(&[(0, 1), (0, 2), (5, 1)], 3);
/// assert_eq!(coverage.sequences, 3 + 9 + 27);
/// assert!(coverage.is_exhaustive);
/// # Ok::<(), FenceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sequences<S: Subject> {
    subject: S,
    explorer: Explorer,
    durability: Durability,
    crashed_onward: usize,
    /// The alphabet of further operations on a recovered structure, and their number.
    further: Option<(Vec<S::Op>, usize)>,
    /// The structure right after its creation.
    image: Image,
}

/// The coverage of [`Sequences::explore_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequencesCoverage {
    /// The number of sequences.
    pub sequences: u64,
    /// The number of recoveries.
    pub recoveries: u64,
    /// The maximal number of operations on each recovered structure that were crashed.
    pub crashed_onward: usize,
    /// Whether every legal crash of each sequence was tried, of its recoveries, and after these. False without any sequence.
    pub is_exhaustive: bool,
}

/// The fewest failing operations found, and their failure.
///
/// `Debug` prints the same as `Display`, so that `unwrap` in a test prints the report.
#[derive(Clone)]
#[non_exhaustive]
pub struct SequenceFailure<Op> {
    /// The operations, as few as [`Sequences::explore`] found.
    pub ops: Vec<Op>,
    /// The crash, and the message: the operations that had returned, the state found, the allowed states.
    pub failure: Box<Failure>,
}

impl<S: Subject> Sequences<S> {
    /// Creates the structure on a region of that many bytes: strictly durable, explored by the default [`Explorer`].
    ///
    /// # Errors
    /// Those of [`Subject::create`].
    ///
    /// # Panics
    /// If the length is zero or not a multiple of 64.
    pub fn new(subject: S, len_bytes: u64) -> Result<Self, S::Error> {
        let pmem = Arc::new(SimPmem::new(len_bytes));
        subject.create(Arc::clone(&pmem))?;
        let image = pmem.to_image();
        let (explorer, durability) = (Explorer::default(), Durability::default());
        Ok(Self { subject, explorer, durability, crashed_onward: 1, further: None, image })
    }

    /// The explorer.
    #[must_use]
    pub fn explorer(mut self, explorer: Explorer) -> Self {
        self.explorer = explorer;
        self
    }

    setters! {
        /// The promise of the structure.
        durability(durability: Durability) => durability;

        /// The number of the sequence's first operations that are applied to each recovered structure and crashed; 1 by default. It
        /// shows wrong state in memory after a recovery, for example a generation that makes the next operation overwrite live data.
        /// Without a crash, up to 8 are applied anyway. Each costs about as much as one more operation in the sequence, once
        /// for each image: use 0 for structures that take too long.
        crash_onward(ops: usize) => crashed_onward;
    }

    /// Applies `count` further operations to each recovered structure, after the sequence's own, and compares each with the
    /// reference: a wrong recovery may show only in later operations, as a tree whose root was split wrongly shows
    /// two insertions later. They are drawn from `ops`, the same ones for the same [seed](Explorer::seed).
    ///
    /// By default, [`explore_all`](Self::explore_all) draws 8 from its alphabet, and a single sequence has none.
    #[must_use]
    pub fn further(mut self, ops: &[S::Op], count: usize) -> Self {
        self.further = Some((ops.to_vec(), count));
        self
    }

    /// The further operations; from `alphabet` by default.
    fn drawn(&self, alphabet: &[S::Op]) -> Vec<S::Op> {
        let chosen = self.further.as_ref().map(|(ops, count)| (ops.as_slice(), *count));
        let (ops, count) = chosen.unwrap_or((alphabet, FURTHER_OPS));
        let mut random = random(self.explorer.first_seed(), 0);
        let count = if ops.is_empty() { 0 } else { count };
        (0..count).map(|_| ops[random.usize(..ops.len())].clone()).collect()
    }

    /// The explorer of a search that begins now.
    pub(super) fn begun(&self) -> Explorer {
        self.explorer.begun()
    }

    /// Explores one case without shortening it. If it also fails without operations after recovery, returns that failure.
    pub(super) fn explore_case<'c>(
        &'c self,
        explorer: &Explorer,
        case: impl Fn(&'c S, Durability) -> Case<'c, S>,
    ) -> Explored<Coverage> {
        self.explore_case_onward(explorer, &case, self.crashed_onward).map_err(|failure| {
            // A replay names one crash.
            let plain = (!explorer.is_replay()).then(|| self.explore_case_onward(explorer, &case, 0).err());
            plain.flatten().unwrap_or(failure)
        })
    }

    fn explore_case_onward<'c>(
        &'c self,
        explorer: &Explorer,
        case: impl Fn(&'c S, Durability) -> Case<'c, S>,
        crashed_onward: usize,
    ) -> Explored<Coverage> {
        let case = case(&self.subject, self.durability).crash_onward(crashed_onward);
        case.explore(explorer, &self.image)
    }
}

impl<S: Oracle> Sequences<S> {
    /// Crashes one sequence everywhere.
    ///
    /// # Errors
    /// The first failure found, if possible one without operations [after recovery](Self::crash_onward), and with as few operations as can be found:
    /// each single one is tried, each pair in order, then the sequence with more and more of them left out. To repeat it, pass its
    /// [replay](Explorer::replay) to the [explorer](Self::explorer), and the failure's operations to this method.
    pub fn explore(&self, ops: &[S::Op]) -> Result<Coverage, SequenceFailure<S::Op>> {
        let explorer = &self.begun();
        self.explore_once(explorer, ops, &[]).map_err(|failure| {
            // The name of a crash is meaningful in this sequence only.
            if self.explorer.is_replay() {
                return SequenceFailure { ops: ops.to_vec(), failure };
            }
            let explorer = &explorer.clone().for_failure();
            let (crashed_onward, failure) = match self.explore_onward(explorer, ops, &[], 0) {
                Err(plain) => (0, plain),
                Ok(_) => (self.crashed_onward, failure),
            };
            let fails = |part: &[S::Op]| self.explore_onward(explorer, part, &[], crashed_onward).err();
            let (ops, failure) = shrink(ops, failure, fails);
            SequenceFailure { ops, failure }
        })
    }

    /// Crashes every sequence of one to `max_len` operations of `alphabet` everywhere, shorter ones first. A few
    /// operations suffice to show most crash-consistency bugs.
    ///
    /// # Errors
    /// A failure of the shortest failing sequence, preferably one without operations [after recovery](Self::crash_onward), which is simpler.
    pub fn explore_all(
        &self,
        alphabet: &[S::Op],
        max_len: usize,
    ) -> Result<SequencesCoverage, SequenceFailure<S::Op>> {
        let crashed_onward = self.crashed_onward;
        let mut all = SequencesCoverage { sequences: 0, recoveries: 0, crashed_onward, is_exhaustive: true };
        let explorer = &self.begun();
        self.explore_each(explorer, alphabet, max_len, |coverage| {
            all.sequences += 1;
            all.recoveries += coverage.recoveries();
            all.is_exhaustive &= coverage.is_exhaustive();
        })
        .map_err(|onward| {
            let sequences = (1..=max_len).flat_map(|len| words(alphabet, len));
            let sequences = sequences.filter(|_| !explorer.is_replay());
            let explorer = &explorer.clone().for_failure();
            let plain = sequences
                .filter_map(|ops| Some((self.explore_onward(explorer, &ops, alphabet, 0).err()?, ops)))
                .next();
            plain.map_or(onward, |(failure, ops)| SequenceFailure { ops, failure })
        })?;
        all.is_exhaustive &= all.sequences > 0;
        Ok(all)
    }

    /// As [`explore`](Self::explore), for tests: panics with the report of a failure.
    ///
    /// # Panics
    /// On the first failure found.
    #[track_caller]
    pub fn check(&self, ops: &[S::Op]) -> Coverage {
        match self.explore(ops) {
            Ok(coverage) => coverage,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// As [`explore_all`](Self::explore_all), for tests: prints the coverage, or panics with the report of a failure.
    ///
    /// # Panics
    /// On the first failure found.
    #[track_caller]
    pub fn check_all(&self, alphabet: &[S::Op], max_len: usize) -> SequencesCoverage {
        match self.explore_all(alphabet, max_len) {
            Ok(coverage) => {
                println!("{}: {coverage}", self.explorer.model());
                coverage
            }
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Explores every sequence of one to `max_len` operations of `alphabet`, then again without each flush and fence that was exercised; returns
    /// those whose loss did not show. If the result is empty, each is needed, and these sequences show it. The time is shared as for
    /// [`Explorer::redundant_sites`].
    ///
    /// # Errors
    /// The failure found with every flush and fence in place.
    pub fn redundant_sites(
        &self,
        alphabet: &[S::Op],
        max_len: usize,
    ) -> Result<Vec<Site>, SequenceFailure<S::Op>> {
        let begun = self.begun();
        let mut sites = BTreeSet::new();
        let first = begun.clone().with_part_of_time(2);
        self.explore_each(&first, alphabet, max_len, |coverage| sites.extend(coverage.sites))?;
        let mut left = sites.len();
        sites.retain(|site| {
            let explorer = begun.clone().with_part_of_time(left).suppress(site);
            left -= 1;
            let mut is_out_of_time = false;
            let explored = self.explore_each(&explorer, alphabet, max_len, |coverage| is_out_of_time |= coverage.is_out_of_time);
            if explored.is_ok() && is_out_of_time {
                eprintln!("pm-crashsim: out of time before the loss of {site} could show; {TIME_VARIABLE} allows more");
            }
            explored.is_ok()
        });
        Ok(sites.into_iter().collect())
    }

    /// Crashes one sequence everywhere, inside `proptest!`, which generates the sequence and on a failure shortens it
    /// and its arguments. Needs the feature `proptest`.
    ///
    /// Its body is one line, for a strategy that makes a `Vec` of operations: `Sequences::new(Log, 4096)?.property(&ops)?`.
    ///
    /// # Errors
    /// The first failure found.
    #[cfg(feature = "proptest")]
    pub fn property(&self, ops: &[S::Op]) -> Result<(), TestCaseError> {
        let explored = self.explore_once(&self.explorer, ops, &[]);
        explored.map(|_| ()).map_err(|mut failure| {
            // On the next run, proptest begins with the sequence before shortening, in which this crash has another name.
            failure.origin.test = None;
            TestCaseError::fail(failure.to_string())
        })
    }

    /// Explores all sequences; calls `explored` after each.
    fn explore_each(
        &self,
        explorer: &Explorer,
        alphabet: &[S::Op],
        max_len: usize,
        mut explored: impl FnMut(Coverage),
    ) -> Result<(), SequenceFailure<S::Op>> {
        for ops in (1..=max_len).flat_map(|len| words(alphabet, len)) {
            match self.explore_once(explorer, &ops, alphabet) {
                Ok(coverage) => explored(coverage),
                Err(failure) => return Err(SequenceFailure { ops, failure }),
            }
        }
        Ok(())
    }

    /// Further operations come from the alphabet by default.
    fn explore_once(&self, explorer: &Explorer, ops: &[S::Op], alphabet: &[S::Op]) -> Explored<Coverage> {
        let further = self.drawn(alphabet);
        self.explore_case(explorer, |subject, durability| Case::of(subject, durability, ops, &further))
    }

    fn explore_onward(
        &self,
        explorer: &Explorer,
        ops: &[S::Op],
        alphabet: &[S::Op],
        crashed_onward: usize,
    ) -> Explored<Coverage> {
        let further = self.drawn(alphabet);
        let case = |subject, durability| Case::of(subject, durability, ops, &further);
        self.explore_case_onward(explorer, case, crashed_onward)
    }
}

impl fmt::Display for SequencesCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequences, recoveries, crashed_onward, is_exhaustive } = self;
        let all = match (*is_exhaustive, *sequences) {
            (true, _) => "every legal crash tried",
            (false, 0) => "nothing tried",
            (false, _) => "not every legal crash tried (raise choices_per_point or nested_choices_per_point)",
        };
        write!(f, "{sequences} sequences, {recoveries} recoveries, {all}, ")?;
        match crashed_onward {
            0 => f.write_str("none of operations after recovery"),
            1 => f.write_str("also of 1 operation after recovery"),
            ops => write!(f, "also of {ops} operations after recovery"),
        }
    }
}

impl<Op: fmt::Debug> fmt::Display for SequenceFailure<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ops.len() {
            1 => f.write_str("1 operation fails")?,
            count => write!(f, "{count} operations fail")?,
        }
        write!(f, ", {:?}: {}", self.ops, self.failure)
    }
}

impl<Op: fmt::Debug> fmt::Debug for SequenceFailure<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<Op: fmt::Debug> core::error::Error for SequenceFailure<Op> {}

/// Every word of that length over the alphabet, in the alphabet's order.
fn words<Op: Clone>(alphabet: &[Op], len: usize) -> impl Iterator<Item = Vec<Op>> {
    let exponent = u32::try_from(len).expect("a length that can be exhausted");
    let count = alphabet.len().checked_pow(exponent).expect("a number of sequences that can be exhausted");
    (0..count).map(move |number| {
        let places = (0..exponent).rev().map(|place| alphabet.len().pow(place));
        places.map(|weight| alphabet[number / weight % alphabet.len()].clone()).collect()
    })
}

/// The shortest failing part of `ops` found, and its failure, which is `failure` for all of `ops`.
///
/// Every single operation is tried, and every pair in order; if all these pass, operations are left out one by one for as long as the rest fails.
fn shrink<Op: Clone, F>(ops: &[Op], failure: F, fails: impl Fn(&[Op]) -> Option<F>) -> (Vec<Op>, F) {
    let shorter = |part: &[Op]| {
        let fails = if part.len() < ops.len() { fails(part) } else { None };
        fails.map(|failure| (part.to_vec(), failure))
    };
    let mut singles = ops.chunks(1);
    let pairs = || (1..ops.len()).flat_map(move |second| (0..second).map(move |first| (first, second)));
    let smallest = singles
        .find_map(shorter)
        .or_else(|| pairs().find_map(|(a, b)| shorter(&[ops[a].clone(), ops[b].clone()])));
    smallest.unwrap_or_else(|| leave_out(ops, failure, fails))
}

fn leave_out<Op: Clone, F>(ops: &[Op], failure: F, fails: impl Fn(&[Op]) -> Option<F>) -> (Vec<Op>, F) {
    let (mut ops, mut failure) = (ops.to_vec(), failure);
    // From the end: later operations are least needed. Two do not suffice, as is known by now.
    let mut at = ops.len();
    while at > 0 && ops.len() > 3 {
        at -= 1;
        let mut rest = ops.clone();
        rest.remove(at);
        if let Some(found) = fails(&rest) {
            (ops, failure) = (rest, found);
            at = ops.len();
        }
    }
    (ops, failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_once_and_in_order() {
        assert_eq!(
            words(&["a", "b"], 2).map(|word| word.concat()).collect::<Vec<_>>(),
            ["aa", "ab", "ba", "bb"]
        );
        assert_eq!(words(&["a"], 3).count(), 1);
        assert_eq!(words::<u8>(&[], 2).count(), 0);
    }

    /// Shrinks 0 to 9, which fail where they include `wanted` in order.
    fn shrunk(wanted: &[u32]) -> Vec<u32> {
        let fails = |ops: &[u32]| {
            let mut ops = ops.iter();
            wanted.iter().all(|number| ops.any(|op| op == number)).then_some(())
        };
        let all: Vec<u32> = (0..10).collect();
        shrink(&all, (), fails).0
    }

    #[test]
    fn only_needed_operations_are_left() {
        for wanted in [&[0][..], &[9], &[2, 7], &[0, 1], &[1, 4, 8], &[0, 3, 5, 6, 9]] {
            assert_eq!(shrunk(wanted), wanted);
        }
    }

    #[test]
    fn irreducible_sequences_stay() {
        assert_eq!(shrink(&[1], "first", |_| Some("again")), (vec![1], "first"));
        assert_eq!(shrink(&[1, 2, 3, 4], "first", |_| None), (vec![1, 2, 3, 4], "first"));
    }
}
