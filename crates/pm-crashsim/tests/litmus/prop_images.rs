//! The explorer against a second description of the same hardware, as naive as can be: after every single event
//! any pending chunk may reach the medium at any time, and every state is kept.

use crate::common::*;
use crate::prop_litmus::{Op, Step, carry_out};
use proptest::prelude::*;

/// Two lines of one sector, and one of another sector: enough for every rule, few enough bytes to enumerate.
const LEN: usize = 1024;
const PLACES: [u64; 7] = [0, 3, 4, 8, 64, 72, 512];
/// Stores around the cache go this many bytes further on: `prop_litmus` has words that are stored to in both ways.
const AROUND: u64 = 24;

fn op() -> impl Strategy<Value = Op> {
    let place = || proptest::sample::select(PLACES.to_vec());
    // Of one piece to four: all the orders of many are too many for the naive machine.
    let len = || proptest::sample::select(vec![1, 2, 4, 4, 6, 8, 8, 12]);
    prop_oneof![
        4 => (place(), len()).prop_map(|(at, len)| Op::Store { at, len }),
        2 => (place(), len()).prop_map(|(at, len)| Op::Nt { at: at + AROUND, len }),
        2 => place().prop_map(|at| Op::Pair { at: at / 16 * 16 }),
        1 => place().prop_map(|at| Op::Cas { at: at / 8 * 8, before: 0 }),
        3 => place().prop_map(|at| Op::Clwb { at }),
        1 => place().prop_map(|at| Op::Clflush { at }),
        2 => Just(Op::Fence),
    ]
}

/// One thread's program, as the simulator runs it.
fn run(pmem: &SimPmem, program: &[Op]) {
    program.iter().enumerate().for_each(|(number, op)| run_one(pmem, number, *op));
}

/// The bytes that an event stores are all the same, and different from every other event's.
fn run_one(pmem: &SimPmem, number: usize, op: Op) {
    let value = u8::try_from(number + 1).expect("few events");
    if let Op::Cas { at, .. } = op {
        let (found, new) = (pmem.load_u64(at), u64::from_le_bytes([value; 8]));
        assert_eq!(pmem.compare_exchange_u64(at, found, new), Ok(found));
    } else {
        carry_out(pmem, Step { thread: 0, value, op });
    }
}

/// A pending part of a store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    event: usize,
    /// First byte, and one past the last; aligned to their number.
    start: usize,
    end: usize,
    non_temporal: bool,
    /// Reaches the medium together with the other part of its store.
    in_pair: bool,
    /// Covered by a flush that waits for a fence.
    flushed: bool,
    /// Covered by an ordered flush that waits for the next store.
    ordered: bool,
}

/// What is durable: for each byte the event that stored it, counted from 1. And what may become so.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    durable: Vec<usize>,
    pending: Vec<Part>,
}

impl State {
    /// The state after that part, and what goes with it, has reached the medium. A byte is never replaced by an older one.
    fn with_durable(&self, index: usize) -> Self {
        let mut next = self.clone();
        let (event, in_pair) = (self.pending[index].event, self.pending[index].in_pair);
        let mut at = 0;
        next.pending.retain(|part| {
            let goes = at == index || in_pair && part.event == event;
            at += 1;
            if goes {
                for byte in &mut next.durable[part.start..part.end] {
                    *byte = (*byte).max(part.event + 1);
                }
            }
            !goes
        });
        next
    }

    /// The state after all parts for which `is_due` holds have reached it.
    fn with_all_durable(&self, is_due: impl Fn(&Part) -> bool) -> Self {
        let mut next = self.clone();
        while let Some(index) = next.pending.iter().position(&is_due) {
            next = next.with_durable(index);
        }
        next
    }

    /// Whether no part must reach the medium before this one and what goes with it.
    fn may_go_next(&self, model: Model, index: usize) -> bool {
        let first = &self.pending[index];
        let is_ordered = |earlier: &Part, part: &Part| {
            let unit_bytes = match (model, part.non_temporal) {
                (Model::Px86Loc, _) | (_, true) => 8,
                (Model::Px86Line, _) => 64,
                (Model::Page, _) => 512,
                (Model::Eadr, _) => LEN,
                _ => 0,
            };
            earlier.event < part.event
                && earlier.non_temporal == part.non_temporal
                && unit_bytes != 0
                && earlier.start / unit_bytes == part.start / unit_bytes
        };
        let goes = |part: &&Part| *part == first || first.in_pair && part.event == first.event;
        !self.pending.iter().filter(goes).any(|part| self.pending.iter().any(|other| is_ordered(other, part)))
    }
}

struct Naive {
    model: Model,
    states: BTreeSet<State>,
    images: BTreeSet<Vec<usize>>,
}

impl Naive {
    /// Every image that a crash at any time can leave.
    fn images(model: Model, program: &[Op]) -> BTreeSet<Vec<usize>> {
        let nothing = State { durable: vec![0; LEN], pending: Vec::new() };
        let mut naive = Self { model, states: BTreeSet::from([nothing]), images: BTreeSet::new() };
        naive.let_things_happen();
        for (at, op) in program.iter().enumerate() {
            naive.step(at, *op);
            naive.let_things_happen();
        }
        naive.images
    }

    /// Lets pending parts reach the medium, in every legal order, any number of them.
    fn let_things_happen(&mut self) {
        let mut new: Vec<State> = self.states.iter().cloned().collect();
        while let Some(state) = new.pop() {
            for index in 0..state.pending.len() {
                if state.may_go_next(self.model, index) {
                    let next = state.with_durable(index);
                    if self.states.insert(next.clone()) {
                        new.push(next);
                    }
                }
            }
        }
        self.images.extend(self.states.iter().map(|state| state.durable.clone()));
    }

    fn change_each(&mut self, change: impl Fn(&State) -> State) {
        self.states = self.states.iter().map(change).collect();
    }

    fn step(&mut self, number: usize, op: Op) {
        match op {
            Op::Store { at, len } => self.store(number, at, len, false, false),
            Op::Pair { at } => self.store(number, at, 16, false, self.model != Model::Chunk8),
            Op::Nt { at, len } if self.model == Model::Page => {
                self.store(number, at, len, false, false);
                self.flush(at, len);
            }
            Op::Nt { at, len } => self.store(number, at, len, true, false),
            Op::Cas { at, .. } => {
                if self.model != Model::Page {
                    self.fence();
                }
                self.store(number, at, 8, false, false);
                if self.model == Model::Eadr {
                    // It has left the store buffer when it is done.
                    self.change_each(|state| state.with_all_durable(|part| !part.non_temporal));
                }
            }
            Op::Clwb { at } => self.flush(at, 8),
            Op::Clflush { at } => {
                self.settle_ordered();
                if !matches!(self.model, Model::Page | Model::Eadr) {
                    self.mark(at, 8, |part| part.ordered = true);
                }
            }
            Op::Fence => self.fence(),
            other => panic!("{other:?} is in no program"),
        }
    }

    fn settle_ordered(&mut self) {
        self.change_each(|state| state.with_all_durable(|part| part.ordered));
    }

    fn fence(&mut self) {
        let caches_are_kept = self.model == Model::Eadr;
        self.change_each(|state| {
            state
                .with_all_durable(|part| part.ordered || part.flushed || part.non_temporal || caches_are_kept)
        });
    }

    fn store(&mut self, event: usize, at: u64, len: u64, non_temporal: bool, in_pair: bool) {
        self.settle_ordered();
        let [from, to] = [at, at + len].map(|at| usize::try_from(at).expect("small"));
        self.change_each(|state| {
            let mut next = state.clone();
            let mut start = from;
            while start < to {
                let is_piece = |len: &usize| start.is_multiple_of(*len) && start + len <= to;
                let end = start + [8, 4, 2].into_iter().find(is_piece).unwrap_or(1);
                let (flushed, ordered) = (false, false);
                next.pending.push(Part { event, start, end, non_temporal, in_pair, flushed, ordered });
                start = end;
            }
            next
        });
    }

    fn flush(&mut self, at: u64, len: u64) {
        if self.model != Model::Eadr {
            self.mark(at, len, |part| part.flushed = true);
        }
    }

    /// Marks all pending cached parts in the lines (or sectors) of the range.
    fn mark(&mut self, at: u64, len: u64, change: impl Fn(&mut Part)) {
        let unit = if self.model == Model::Page { 512 } else { 64 };
        let [first, last] = [at, at + len - 1].map(|at| usize::try_from(at).expect("small") / unit);
        let units = first..=last;
        self.change_each(|state| {
            let mut next = state.clone();
            let cached = next.pending.iter_mut().filter(|part| !part.non_temporal);
            cached.filter(|part| units.contains(&(part.start / unit))).for_each(&change);
            next
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn images_are_exactly_those_of_the_naive_machine(
        program in proptest::collection::vec(op(), 0..8),
        model in proptest::sample::select(Model::ALL.to_vec()),
    ) {
        let found = Seen::new();
        let check = |crash: &Crash<'_, ()>| {
            found.add(crash.pmem().to_image().to_bytes().into_iter().map(usize::from).collect::<Vec<_>>());
        };
        let operation = |under_test: &Run<()>| run(under_test.pmem(), &program);
        let explorer = Explorer::new(model).choices_per_point(1 << 20);
        let coverage = explorer.explore(&Image::zeroed(LEN as u64), operation, check);
        prop_assert!(coverage.expect("the check never fails").is_exhaustive());
        let expected = Naive::images(model, &program);
        let found = found.take();
        let show = |image: &Vec<usize>| PLACES.map(|place| image[usize::try_from(place).expect("small")]);
        let missed: Vec<_> = expected.difference(&found).map(show).collect();
        let invented: Vec<_> = found.difference(&expected).map(show).collect();
        prop_assert!(missed.is_empty() && invented.is_empty(), "missed {missed:?}, invented {invented:?}");
    }

    /// A recovery that looks at some lines only, by what it finds, and writes: directing the search by what it reads
    /// loses no outcome, not even of crashes inside recovery.
    #[test]
    fn reduction_by_reads_loses_no_outcome(
        program in proptest::collection::vec(op(), 0..10),
        model in proptest::sample::select(Model::ALL.to_vec()),
        script in proptest::collection::vec((0..PLACES.len(), 0..PLACES.len(), op()), 1..5),
    ) {
        let outcomes = |reduce: bool| {
            let found = Seen::new();
            let check = |crash: &Crash<'_, ()>| {
                let pmem = crash.pmem();
                let read = |place: usize| pmem.load_u64(PLACES[place] / 8 * 8);
                let mut seen = Vec::new();
                for (at, (first, second, op)) in script.iter().enumerate() {
                    seen.push(read(*first));
                    if seen.iter().fold(0, |parity, value| parity ^ value) & 1 == 1 {
                        seen.push(read(*second));
                        run_one(pmem, 100 + at, *op);
                    }
                }
                // After how many crashes does not matter: what one can leave is not tried again after two.
                found.add(seen);
            };
            let operation = |under_test: &Run<()>| run(under_test.pmem(), &program);
            let explorer = Explorer::new(model).choices_per_point(1 << 20).nested_choices_per_point(1 << 20);
            let coverage = explorer.reduce(reduce).explore(&Image::zeroed(LEN as u64), operation, check);
            (coverage.expect("the check never fails"), found.take())
        };
        let (every, reduced) = (outcomes(false), outcomes(true));
        prop_assert_eq!(&reduced.1, &every.1);
        prop_assert!(reduced.0.is_exhaustive() && every.0.is_exhaustive());
        prop_assert_eq!(reduced.0.levels[0].tried, every.0.levels[0].tried);
    }
}
