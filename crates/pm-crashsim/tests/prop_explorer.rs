//! The explorer against a second description of the same hardware, as naive as can be: after every single event
//! any pending chunk may reach the medium at any time, and every state is kept.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::Pmem;
use pm_crashsim::{Crash, Explorer, Image, Model, Run, SimPmem};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Two lines of one sector, and one of another sector: enough for every rule, few enough bytes to enumerate.
const LEN: usize = 1024;
const PLACES: [u64; 7] = [0, 3, 4, 8, 64, 72, 512];
/// Stores around the cache go that far behind: `prop_litmus` has words that are stored to in both ways.
const AROUND: u64 = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Store { place: u64, len: usize },
    StoreNt { place: u64, len: usize },
    StoreU128 { place: u64 },
    Exchange { place: u64 },
    Flush { place: u64 },
    Clflush { place: u64 },
    Fence,
}

fn op() -> impl Strategy<Value = Op> {
    let place = || proptest::sample::select(PLACES.to_vec());
    // Of one piece to four: all the orders of many are too many for the naive machine.
    let len = || proptest::sample::select(vec![1_usize, 2, 4, 4, 6, 8, 8, 12]);
    prop_oneof![
        4 => (place(), len()).prop_map(|(place, len)| Op::Store { place, len }),
        2 => (place(), len()).prop_map(|(place, len)| Op::StoreNt { place: place + AROUND, len }),
        2 => place().prop_map(|place| Op::StoreU128 { place: place / 16 * 16 }),
        1 => place().prop_map(|place| Op::Exchange { place: place / 8 * 8 }),
        3 => place().prop_map(|place| Op::Flush { place }),
        1 => place().prop_map(|place| Op::Clflush { place }),
        2 => Just(Op::Fence),
    ]
}

/// The bytes that event number `at` stores: the same everywhere, and different from every other event's.
fn bytes_of(at: usize, len: usize) -> Vec<u8> {
    vec![u8::try_from(at + 1).expect("few events"); len]
}

/// One thread's program, as the simulator runs it.
fn run(pmem: &SimPmem, program: &[Op]) {
    program.iter().enumerate().for_each(|(at, op)| run_one(pmem, at, *op));
}

fn run_one(pmem: &SimPmem, at: usize, op: Op) {
    match op {
        Op::Store { place, len } => pmem.store(place, &bytes_of(at, len)),
        Op::StoreNt { place, len } => pmem.store_nt(place, &bytes_of(at, len)),
        Op::StoreU128 { place } => pmem.store_u128(place, u128::from_le_bytes([bytes_of(at, 1)[0]; 16])),
        Op::Exchange { place } => {
            let value = u64::from_le_bytes([bytes_of(at, 1)[0]; 8]);
            let found = pmem.load_u64(place);
            assert_eq!(pmem.compare_exchange_u64(place, found, value), Ok(found));
        }
        Op::Flush { place } => pmem.flush(place, 8),
        Op::Clflush { place } => pmem.clflush(place, 8),
        Op::Fence => pmem.fence().expect("the simulated fence never fails"),
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

    fn step(&mut self, at: usize, op: Op) {
        match op {
            Op::Store { place, len } => self.store(at, place, len, false, false),
            Op::StoreU128 { place } => self.store(at, place, 16, false, self.model != Model::Chunk8),
            Op::StoreNt { place, len } if self.model == Model::Page => {
                self.store(at, place, len, false, false);
                self.flush(place, len);
            }
            Op::StoreNt { place, len } => self.store(at, place, len, true, false),
            Op::Exchange { place } => {
                if self.model != Model::Page {
                    self.fence();
                }
                self.store(at, place, 8, false, false);
                if self.model == Model::Eadr {
                    // It has left the store buffer when it is done.
                    self.change_each(|state| state.with_all_durable(|part| !part.non_temporal));
                }
            }
            Op::Flush { place } => self.flush(place, 8),
            Op::Clflush { place } => {
                self.settle_ordered();
                if !matches!(self.model, Model::Page | Model::Eadr) {
                    self.mark(place, 8, |part| part.ordered = true);
                }
            }
            Op::Fence => self.fence(),
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

    fn store(&mut self, at: usize, place: u64, count: usize, non_temporal: bool, in_pair: bool) {
        self.settle_ordered();
        let start = usize::try_from(place).expect("small");
        self.change_each(|state| {
            let mut next = state.clone();
            let mut from = start;
            while from < start + count {
                let is_piece = |len: &usize| from.is_multiple_of(*len) && from + len <= start + count;
                let to = from + [8, 4, 2].into_iter().find(is_piece).unwrap_or(1);
                let part = Part {
                    event: at,
                    start: from,
                    end: to,
                    non_temporal,
                    in_pair,
                    flushed: false,
                    ordered: false,
                };
                next.pending.push(part);
                from = to;
            }
            next
        });
    }

    fn flush(&mut self, place: u64, len: usize) {
        if self.model != Model::Eadr {
            self.mark(place, len, |part| part.flushed = true);
        }
    }

    /// Marks all pending cached parts in the lines (or sectors) of the range.
    fn mark(&mut self, place: u64, len: usize, change: impl Fn(&mut Part)) {
        let unit = if self.model == Model::Page { 512 } else { 64 };
        let start = usize::try_from(place).expect("small");
        let units = start / unit..=(start + len - 1) / unit;
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
        let found = Mutex::new(BTreeSet::new());
        let check = |crash: &Crash<'_, ()>| {
            let bytes = crash.pmem().to_image().to_bytes();
            found.lock().unwrap().insert(bytes.into_iter().map(usize::from).collect::<Vec<_>>());
        };
        let operation = |under_test: &Run<()>| run(under_test.pmem(), &program);
        let explorer = Explorer::new(model).choices_per_point(1 << 20);
        let coverage = explorer.explore(&Image::zeroed(LEN as u64), operation, check);
        prop_assert!(coverage.expect("the check never fails").is_exhaustive());
        let expected = Naive::images(model, &program);
        let found = found.into_inner().unwrap();
        let show = |image: &Vec<usize>| PLACES.map(|place| image[usize::try_from(place).expect("small")]);
        let missed: Vec<_> = expected.difference(&found).map(show).collect();
        let invented: Vec<_> = found.difference(&expected).map(show).collect();
        prop_assert!(missed.is_empty() && invented.is_empty(), "missed {missed:?}, invented {invented:?}");
    }

    /// A recovery that looks at some lines only, by what it finds, and writes: directing the search by what it reads
    /// loses no outcome, of crashes inside recovery neither.
    #[test]
    fn reduction_by_reads_loses_no_outcome(
        program in proptest::collection::vec(op(), 0..10),
        model in proptest::sample::select(Model::ALL.to_vec()),
        script in proptest::collection::vec((0..PLACES.len(), 0..PLACES.len(), op()), 1..5),
    ) {
        let outcomes = |reduce: bool| {
            let found = Mutex::new(BTreeSet::new());
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
                found.lock().unwrap().insert(seen);
            };
            let operation = |under_test: &Run<()>| run(under_test.pmem(), &program);
            let explorer = Explorer::new(model).choices_per_point(1 << 20).nested_choices_per_point(1 << 20);
            let coverage = explorer.reduce(reduce).explore(&Image::zeroed(LEN as u64), operation, check);
            (coverage.expect("the check never fails"), found.into_inner().unwrap())
        };
        let (every, reduced) = (outcomes(false), outcomes(true));
        prop_assert_eq!(&reduced.1, &every.1);
        prop_assert!(reduced.0.is_exhaustive() && every.0.is_exhaustive());
        prop_assert_eq!(reduced.0.levels[0].tried, every.0.levels[0].tried);
    }
}
