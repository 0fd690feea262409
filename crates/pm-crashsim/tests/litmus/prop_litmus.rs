//! Random litmus programs, of one thread, of two processes and of two threads: the explorer's outcomes are exactly those of a naive
//! model of the hardware, written independently from `docs/persistence-model.md`.
//!
//! The naive model cuts long stores into pieces, tries every order of these and of the other thread's operations, and every subset of
//! the stored pieces. `PM_CRASHSIM_LITMUS=N` runs N programs of one thread, N that are killed once or twice, and N/10 of two threads,
//! in place of 500, 500 and 50.

use crate::common::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The words that programs store to: on one line, on other lines, in another sector.
const WORDS: [u64; 13] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 512];
const REGION_BYTES: u64 = 1024;

/// After `Kill`, another process goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Store { at: u64, len: u64 },
    Nt { at: u64, len: u64 },
    Pair { at: u64 },
    Cas { at: u64, before: u8 },
    FailedCas { at: u64 },
    Load { at: u64 },
    Clwb { at: u64 },
    Clflush { at: u64 },
    Fence,
    Mfence,
    Ack,
    Kill,
}

/// One operation of a program, or an atomic piece of one: its thread, and the byte that it stores, which no other one does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) thread: usize,
    pub(crate) value: u8,
    pub(crate) op: Op,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    model: Model,
    strict_ack: bool,
    exchange_fences: bool,
}

/// The threads that acknowledged, in order, and the words that are left.
type Outcome = (Vec<usize>, Vec<u64>);

// The naive model.

/// How the bytes at `at` are cut where no longer piece is atomic.
fn cut(mut at: u64, len: u64) -> Vec<(u64, u64)> {
    let end = at + len;
    let mut pieces = Vec::new();
    while at < end {
        let piece =
            [8, 4, 2, 1].into_iter().find(|&piece| at.is_multiple_of(piece) && at + piece <= end).unwrap();
        pieces.push((at, piece));
        at += piece;
    }
    pieces
}

/// Every order of the pieces of the operations of one thread.
fn orders(steps: &[Step]) -> Vec<Vec<Step>> {
    let mut all = vec![Vec::new()];
    for step in steps {
        let Step { thread, value, op } = *step;
        let pieces: Vec<Op> = match op {
            Op::Store { at, len } => {
                cut(at, len).into_iter().map(|(at, len)| Op::Store { at, len }).collect()
            }
            Op::Nt { at, len } => cut(at, len).into_iter().map(|(at, len)| Op::Nt { at, len }).collect(),
            other => vec![other],
        };
        let happen = |pieces: Vec<Op>| -> Vec<Step> {
            pieces.into_iter().map(|op| Step { thread, value, op }).collect()
        };
        let ways: Vec<Vec<Step>> = permutations(&pieces).into_iter().map(happen).collect();
        all = all
            .iter()
            .flat_map(|so_far| ways.iter().map(|way| [so_far.clone(), way.clone()].concat()))
            .collect();
    }
    all
}

fn permutations(items: &[Op]) -> Vec<Vec<Op>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (number, &first) in items.iter().enumerate() {
        let rest = [&items[..number], &items[number + 1..]].concat();
        all.extend(permutations(&rest).into_iter().map(|rest| [vec![first], rest].concat()));
    }
    all
}

fn interleavings<T: Clone>(one: &[T], other: &[T]) -> Vec<Vec<T>> {
    match (one, other) {
        ([], rest) | (rest, []) => vec![rest.to_vec()],
        ([a, one_rest @ ..], [b, other_rest @ ..]) => {
            let with = |first: &T, rest: Vec<Vec<T>>| -> Vec<Vec<T>> {
                rest.into_iter().map(|rest| [vec![first.clone()], rest].concat()).collect()
            };
            [with(a, interleavings(one_rest, other)), with(b, interleavings(one, other_rest))].concat()
        }
    }
}

/// What one piece stored, and when.
#[derive(Clone, Copy, Debug)]
struct Piece {
    time: usize,
    at: u64,
    len: u64,
    value: u8,
    is_nt: bool,
    is_pair: bool,
    thread: usize,
}

impl Piece {
    fn words(&self) -> Vec<u64> {
        if self.is_pair { vec![self.at, self.at + 8] } else { vec![self.at / 8 * 8] }
    }

    fn shares_a_word(&self, other: &Self) -> bool {
        self.words().iter().any(|word| other.words().contains(word))
    }

    fn covers(&self, byte: u64) -> bool {
        (self.at..self.at + self.len).contains(&byte)
    }
}

fn unit_bytes(model: Model) -> u64 {
    match model {
        Model::Page => 512,
        _ => 64,
    }
}

/// What was stored by the happenings until `now`, in order.
fn stored(run: &[Step], now: usize, model: Model) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (time, happening) in run[..now].iter().enumerate() {
        let Step { thread, value, op, .. } = *happening;
        let piece = Piece { time, at: 0, len: 8, value, is_nt: false, is_pair: false, thread };
        match op {
            Op::Store { at, len } => pieces.push(Piece { at, len, ..piece }),
            Op::Nt { at, len } => pieces.push(Piece { at, len, is_nt: model != Model::Page, ..piece }),
            Op::Pair { at } if model == Model::Chunk8 => {
                pieces.push(Piece { at, ..piece });
                pieces.push(Piece { at: at + 8, ..piece });
            }
            Op::Pair { at } => pieces.push(Piece { at, len: 16, is_pair: true, ..piece }),
            Op::Cas { at, .. } => pieces.push(Piece { at, ..piece }),
            _ => {}
        }
    }
    pieces
}

/// Which of the pieces stored until `now` are durable, because something waited for them or is ordered after them.
fn durable(run: &[Step], now: usize, drained: usize, pieces: &[Piece], rules: Rules) -> Vec<bool> {
    let Rules { model, strict_ack, exchange_fences } = rules;
    let is_page = model == Model::Page;
    let mut durable = vec![false; pieces.len()];
    // By thread: pieces that its flushes wrote back, and pieces that come before its next store.
    let mut flushed = [const { BTreeSet::new() }; 2];
    let mut ordered = [const { BTreeSet::new() }; 2];
    // When a process was last killed, and what a file's next fence then waits for.
    let (mut killed, mut reopened) = (0, BTreeSet::new());
    for (time, happening) in run[..now].iter().enumerate() {
        let thread = happening.thread;
        let older = |wanted: &dyn Fn(&Piece) -> bool| -> BTreeSet<usize> {
            (0..pieces.len()).filter(|&p| pieces[p].time < time && wanted(&pieces[p])).collect()
        };
        let unit = unit_bytes(model);
        let is_orphan = |p: &Piece| p.is_nt && p.time < killed;
        let line = |at: u64| older(&|p: &Piece| (!p.is_nt || is_orphan(p)) && p.at / unit == at / unit);
        let mut streamed = older(&|p: &Piece| p.is_nt && p.thread == thread && !is_orphan(p));
        if model == Model::Eadr {
            // No flush does anything here, and so the fence is enough.
            streamed.extend(older(&is_orphan));
        }
        let mut make_durable = |these: &BTreeSet<usize>| these.iter().for_each(|&p| durable[p] = true);
        match happening.op {
            Op::Clwb { at } if model != Model::Eadr => flushed[thread].extend(line(at)),
            Op::Clflush { at } if model != Model::Eadr && !is_page => ordered[thread].extend(line(at)),
            Op::Fence if strict_ack && !is_page => {
                let these = core::mem::take(&mut flushed[thread]);
                ordered[thread].extend(these);
                ordered[thread].extend(streamed);
                if model == Model::Eadr {
                    // Stores in the caches need no flush to be ordered.
                    ordered[thread].extend(older(&|p: &Piece| !p.is_nt));
                }
            }
            op if op == Op::Fence
                || !is_page && (op == Op::Mfence || exchange_fences && matches!(op, Op::Cas { .. })) =>
            {
                if op == Op::Fence {
                    make_durable(&core::mem::take(&mut reopened));
                }
                make_durable(&core::mem::take(&mut flushed[thread]));
                make_durable(&core::mem::take(&mut ordered[thread]));
                make_durable(&streamed);
            }
            Op::Store { .. } | Op::Nt { .. } | Op::Pair { .. } | Op::Cas { .. } => {
                make_durable(&core::mem::take(&mut ordered[thread]));
            }
            Op::Kill => {
                (flushed, ordered) = Default::default();
                reopened = if is_page { older(&|_| true) } else { BTreeSet::new() };
                killed = time;
            }
            _ => {}
        }
        if is_page && let Op::Nt { at, .. } = happening.op {
            let is_flushed = |&p: &usize| pieces[p].time <= time && pieces[p].at / unit == at / unit;
            flushed[thread].extend((0..pieces.len()).filter(is_flushed));
        }
    }
    if model == Model::Eadr {
        // What has left the store buffer for sure is in the caches at least.
        let cached = pieces.iter().zip(&mut durable).filter(|(p, _)| !p.is_nt && p.time < drained);
        cached.for_each(|(_, durable)| *durable = true);
    }
    durable
}

/// Whether a crash can keep exactly these pieces, as far as it is about their order.
fn is_in_order(pieces: &[Piece], kept: &[bool], model: Model) -> bool {
    let is_kept = |p: usize| kept[p];
    (0..pieces.len()).filter(|&q| is_kept(q)).all(|q| {
        (0..q).filter(|&p| !is_kept(p)).all(|p| {
            let (older, newer) = (&pieces[p], &pieces[q]);
            let is_ordered = match (older.is_nt, newer.is_nt) {
                (false, false) => match model {
                    Model::Px86Loc => older.shares_a_word(newer),
                    Model::Px86Line | Model::Page => {
                        older.at / unit_bytes(model) == newer.at / unit_bytes(model)
                    }
                    Model::Eadr => true,
                    _ => false,
                },
                (true, true) => older.shares_a_word(newer),
                _ => model != Model::Chunk8 && older.shares_a_word(newer),
            };
            // The loss of what non-temporal stores have replaced is not seen.
            let is_replaced = |byte| {
                let later = (p + 1..pieces.len()).filter(|&r| is_kept(r) && pieces[r].is_nt);
                later.into_iter().any(|r| pieces[r].covers(byte))
            };
            let words = newer.words();
            let mut bytes = (older.at..older.at + older.len).filter(|byte| words.contains(&(byte / 8 * 8)));
            !is_ordered || (newer.is_nt && !older.is_nt && bytes.all(is_replaced))
        })
    })
}

/// What a crash can leave of what happened until `now`.
fn images(run: &[Step], now: usize, drained: usize, rules: Rules) -> BTreeSet<Vec<u64>> {
    let pieces = stored(run, now, rules.model);
    let durable = durable(run, now, drained, &pieces, rules);
    let mut images = BTreeSet::new();
    for subset in 0..1_u32 << pieces.len() {
        let kept: Vec<bool> = (0..pieces.len()).map(|p| subset >> p & 1 == 1).collect();
        let has_durable = durable.iter().zip(&kept).all(|(durable, kept)| *kept || !durable);
        if has_durable && is_in_order(&pieces, &kept, rules.model) {
            let mut bytes = vec![0; usize::try_from(REGION_BYTES).unwrap()];
            for (piece, _) in pieces.iter().zip(&kept).filter(|(_, kept)| **kept) {
                (piece.at..piece.at + piece.len)
                    .for_each(|at| bytes[usize::try_from(at).unwrap()] = piece.value);
            }
            let word = |at: &u64| bytes[usize::try_from(*at).unwrap()..][..8].try_into().unwrap();
            images.insert(WORDS.iter().map(|at| u64::from_le_bytes(word(at))).collect());
        }
    }
    images
}

/// How much must have happened of what was done until `now`: the rest may still be in store buffers.
fn drained(run: &[Step], now: usize, rules: Rules) -> usize {
    let mut drained = 0;
    for (time, happening) in run[..now].iter().enumerate() {
        let waits = match happening.op {
            Op::Fence => !rules.strict_ack || rules.model == Model::Page,
            Op::Mfence => rules.model != Model::Page,
            Op::Cas { .. } => rules.exchange_fences && rules.model != Model::Page,
            // A store buffer runs empty before another process runs.
            Op::Kill => true,
            _ => false,
        };
        if waits {
            drained = time + 1;
        }
        if let Op::Load { at } | Op::FailedCas { at } = happening.op {
            let pieces = stored(run, time, rules.model);
            for byte in at..at + 8 {
                let last = pieces.iter().rfind(|piece| piece.covers(byte));
                let seen = last.filter(|piece| piece.thread != happening.thread && !piece.is_nt);
                drained = drained.max(seen.map_or(0, |piece| piece.time + 1));
            }
        }
    }
    drained
}

/// Every outcome that the naive model allows.
fn allowed(threads: &[Vec<Step>; 2], rules: Rules) -> BTreeSet<Outcome> {
    let mut outcomes = BTreeSet::new();
    for one in orders(&threads[0]) {
        for other in orders(&threads[1]) {
            for run in interleavings(&one, &other) {
                let mut known = BTreeMap::new();
                for now in 0..=run.len() {
                    let acks = run[..now].iter().filter(|happening| happening.op == Op::Ack);
                    let acks: Vec<usize> = acks.map(|happening| happening.thread).collect();
                    let drained = drained(&run, now, rules);
                    for happened in drained..=now {
                        let images = known
                            .entry((happened, drained))
                            .or_insert_with(|| images(&run, happened, drained, rules));
                        outcomes.extend(images.iter().map(|image| (acks.clone(), image.clone())));
                    }
                }
            }
        }
    }
    outcomes
}

// What the explorer finds.

pub(crate) fn carry_out(pmem: &SimPmem, step: Step) {
    let bytes = [step.value; 16];
    let word = |byte: u8| u64::from_le_bytes([byte; 8]);
    match step.op {
        Op::Store { at, len } => pmem.store(at, &bytes[..usize::try_from(len).unwrap()]),
        Op::Nt { at, len } => pmem.store_nt(at, &bytes[..usize::try_from(len).unwrap()]),
        Op::Pair { at } => pmem.store_u128(at, u128::from_le_bytes(bytes)),
        Op::Cas { at, before } => {
            pmem.compare_exchange_u64(at, word(before), word(step.value)).unwrap();
        }
        Op::FailedCas { at } => {
            pmem.compare_exchange_u64(at, u64::MAX, 0).unwrap_err();
        }
        Op::Load { at } => {
            pmem.load_u64(at);
        }
        Op::Clwb { at } => pmem.flush(at, 8),
        Op::Clflush { at } => pmem.clflush(at, 8),
        Op::Fence => pmem.fence().unwrap(),
        Op::Mfence => pmem.mfence(),
        Op::Ack => pmem.ack(),
        Op::Kill => pmem.kill(),
    }
}

/// A run of the program for each order of its operations, with the threads that acknowledge in it.
fn runs(threads: &[Vec<Step>; 2], workers: &[ThreadPool; 2]) -> Vec<(TraceFile, Vec<usize>)> {
    let run = |steps: Vec<Step>| {
        // Under this model loads are recorded, as far as they matter under any.
        let pmem = SimPmem::recording(&Image::zeroed(REGION_BYTES), Model::Eadr);
        steps.iter().for_each(|step| workers[step.thread].install(|| carry_out(&pmem, *step)));
        let acks = steps.iter().filter(|step| step.op == Op::Ack).map(|step| step.thread);
        (pmem.to_trace_file(), acks.collect())
    };
    interleavings(&threads[0], &threads[1]).into_iter().map(run).collect()
}

fn found(runs: &[(TraceFile, Vec<usize>)], rules: Rules) -> BTreeSet<Outcome> {
    let found = Seen::new();
    for (file, acks) in runs {
        let file = file.clone().under(rules.model);
        let explorer = Explorer::of(&file).crashes(1);
        let explorer = explorer.strict_ack(rules.strict_ack).exchange_fences(rules.exchange_fences);
        let check = |crash: &Crash<'_, ()>| {
            let words = WORDS.iter().map(|&at| crash.pmem().load_u64(at)).collect();
            found.add((acks[..crash.acked().len()].to_vec(), words));
        };
        let coverage = explorer.explore_trace(&file, check).unwrap();
        assert!(coverage.is_exhaustive(), "{coverage}");
    }
    found.take()
}

// Random programs.

/// `is_alone`: half of a long store of one thread would be visible to the other thread.
fn random_op(random: &mut fastrand::Rng, thread: u64, is_alone: bool) -> Op {
    let word = random.choice([0, 8, 64, 512]).unwrap();
    let half = word + 4 * random.u64(..2);
    let (at, len) = match is_alone {
        true => random.choice([(0, 16), (32, 16), (1, 3), (56, 16), (4, 8)]).unwrap(),
        false => random.choice([(32 + 16 * thread, 16), (74 + 8 * thread, 4)]).unwrap(),
    };
    let flushed = random.choice([0, 8, 32, 64, 512]).unwrap();
    match random.u8(..24) {
        0..=4 => Op::Store { at: word, len: 8 },
        5 => Op::Store { at: half, len: 4 },
        6 | 7 => Op::Store { at, len },
        8 => Op::Nt { at: word, len: 8 },
        9 => Op::Nt { at: half, len: 4 },
        10 => Op::Nt { at, len },
        11 => Op::Pair { at: 0 },
        12 => Op::Cas { at: 16 + 8 * thread, before: 0 },
        13 => Op::FailedCas { at: word },
        14 => Op::Load { at: word },
        15 | 16 => Op::Clwb { at: flushed },
        17 | 18 => Op::Clflush { at: flushed },
        19 | 20 => Op::Fence,
        21 => Op::Mfence,
        _ => Op::Ack,
    }
}

fn random_thread(random: &mut fastrand::Rng, thread: usize, first: u8, len: u8, is_alone: bool) -> Vec<Step> {
    let mut before = 0;
    let step = |number: u8| {
        let value = first + number;
        let mut op = random_op(random, thread as u64, is_alone);
        if let Op::Cas { before: found, .. } = &mut op {
            *found = core::mem::replace(&mut before, value);
        }
        Step { thread, value, op }
    };
    (0..len).map(step).collect()
}

fn compare(threads: &[Vec<Step>; 2], workers: &[ThreadPool; 2]) -> usize {
    let runs = runs(threads, workers);
    let mut outcomes = 0;
    for model in Model::ALL {
        for (strict_ack, exchange_fences) in [(false, true), (true, true), (false, false)] {
            let rules = Rules { model, strict_ack, exchange_fences };
            let (found, allowed) = (found(&runs, rules), allowed(threads, rules));
            let missing: Vec<_> = allowed.difference(&found).take(4).collect();
            let excess: Vec<_> = found.difference(&allowed).take(4).collect();
            assert!(
                missing.is_empty() && excess.is_empty(),
                "{rules:?} of {threads:?}:\nmissed {missing:x?}\nnot allowed {excess:x?}"
            );
            outcomes += allowed.len();
        }
    }
    outcomes
}

/// Compares random programs: as many as are configured for one thread, divided by `divisor`.
fn compare_random(kind: &str, divisor: u64, program: impl Fn(&mut fastrand::Rng) -> [Vec<Step>; 2]) {
    let count = std::env::var("PM_CRASHSIM_LITMUS").map_or(500, |count| count.parse().unwrap()) / divisor;
    // Each operation runs on the thread of the system that stands for its thread.
    let workers = [0, 1].map(|_| ThreadPoolBuilder::new().num_threads(1).build().unwrap());
    let programs = (0..count).map(|seed| program(&mut fastrand::Rng::with_seed(seed)));
    let outcomes: usize = programs.map(|threads| compare(&threads, &workers)).sum();
    println!("{count} programs of {kind}, {outcomes} outcomes");
}

#[test]
fn programs_of_one_thread_have_the_outcomes_of_the_naive_model() {
    compare_random("one thread", 1, |random| {
        let len = random.u8(2..7);
        [random_thread(random, 0, 1, len, true), Vec::new()]
    });
}

/// One process is killed, with its caches kept, and another one goes on.
#[test]
fn programs_of_two_processes_have_the_outcomes_of_the_naive_model() {
    compare_random("two processes", 1, |random| {
        let len = random.u8(2..6);
        let mut steps = random_thread(random, 0, 1, len, true);
        for _ in 0..random.u8(1..=2) {
            steps.insert(random.usize(..=usize::from(len)), Step { thread: 0, value: 0, op: Op::Kill });
        }
        [steps, Vec::new()]
    });
}

#[test]
fn programs_of_two_threads_have_the_outcomes_of_the_naive_model() {
    compare_random("two threads", 10, |random| {
        let (one, other) = (random.u8(1..4), random.u8(1..4));
        [random_thread(random, 0, 1, one, false), random_thread(random, 1, 101, other, false)]
    });
}
