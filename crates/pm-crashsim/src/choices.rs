//! The legal choices at one crash point: chains of pending chunks, of which each keeps a prefix.

use crate::chunk::Chunk;
use crate::machine::Machine;
use crate::model::Model;
use crate::splitmix::Random;
use crate::step::{all_but, append_part, lanes, only, parts};
use crate::trace::{EventKind, Trace};
use pm_core::line::piece_bytes;

/// Pending chunks that become durable in order, step by step.
///
/// The chunks of one step, of one store as a rule, are unordered among themselves; `step` says what of it can be there
/// without the rest. A legal choice is a number of whole steps, and any part of the next.
pub(crate) struct Chain {
    steps: Vec<Vec<Chunk>>,
    /// In how many ways it can be kept; `u128::MAX` when there are more than that.
    count: u128,
    /// The only line that it touches, if it is only one.
    line: Option<u64>,
}

/// Everything that a crash at one point may keep: one choice per chain, independently.
pub(crate) struct Choices {
    chains: Vec<Chain>,
    pending: usize,
}

/// One pending chunk, by its place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    chain: usize,
    step: usize,
    chunk: usize,
}

impl Choices {
    /// What is open in this state of the machine.
    pub(crate) fn of(machine: &Machine<'_>) -> Self {
        let mut chains = Vec::new();
        let by_store = |pending: &[Chunk]| Chain::by_store(pending, machine.trace());
        for pending in machine.write_back() {
            match machine.rules().model {
                Model::Eadr | Model::Px86Line | Model::Page => chains.push(by_store(pending)),
                Model::Px86Loc => {
                    for of_pair in by_word(pending).chunk_by(|a, b| a[0].pair() == b[0].pair()) {
                        // What stores both words in one piece orders what precedes and follows it in either.
                        match of_pair.iter().flatten().any(|chunk| chunk.in_pair) {
                            true => chains.push(Chain::of_pair(of_pair.concat())),
                            false => chains.extend(of_pair.iter().map(|of_word| by_store(of_word))),
                        }
                    }
                }
                Model::Chunk8 => {
                    for of_word in &by_word(pending) {
                        // Of stores to the same bytes only the last that survives is seen: as if in order.
                        match of_word.iter().all(|chunk| chunk.mask == of_word[0].mask) {
                            true => chains.push(by_store(of_word)),
                            false => chains.extend(of_word.chunks(1).map(by_store)),
                        }
                    }
                }
            }
        }
        chains.extend(machine.non_temporal().map(by_store));
        let pending = chains.iter().flat_map(|chain| &chain.steps).map(Vec::len).sum();
        Self { chains, pending }
    }

    /// What each chain consists of.
    pub(crate) fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// How many choices there are; `u128::MAX` when there are more than that.
    pub(crate) fn count(&self) -> u128 {
        self.chains.iter().fold(1, |product: u128, chain| product.saturating_mul(chain.count))
    }

    /// How many chunks are pending.
    pub(crate) const fn pending(&self) -> usize {
        self.pending
    }

    /// Every pending chunk.
    pub(crate) fn all(&self) -> Vec<Chunk> {
        self.chains.iter().flat_map(|chain| &chain.steps).flatten().copied().collect()
    }

    /// Appends the chunks of the choice with that number, below [`count`](Self::count). Number 0 keeps nothing.
    pub(crate) fn keep_numbered(&self, mut number: u64, kept: &mut Vec<Chunk>) {
        for chain in &self.chains {
            if number == 0 {
                return;
            }
            let Ok(count) = u64::try_from(chain.count) else {
                return chain.keep_numbered(number, kept);
            };
            chain.keep_numbered(number % count, kept);
            number /= count;
        }
    }

    /// All of the chains with these numbers.
    pub(crate) fn chains_where(&self, is_kept: impl Fn(usize) -> bool) -> Vec<Chunk> {
        let chains = self.chains.iter().enumerate().filter(|(number, _)| is_kept(*number));
        chains.flat_map(|(_, chain)| chain.steps.iter().flatten()).copied().collect()
    }

    /// The pending chunk with that number, what must precede it, and nothing else.
    pub(crate) fn only(&self, number: usize) -> Vec<Chunk> {
        let place = self.place(number);
        let chain = &self.chains[place.chain];
        let mut kept: Vec<Chunk> = chain.steps[..place.step].iter().flatten().copied().collect();
        kept.extend(only(&chain.steps[place.step], place.chunk));
        kept
    }

    /// Everything except the pending chunk with that number, and what must follow it.
    pub(crate) fn all_but(&self, number: usize) -> Vec<Chunk> {
        let place = self.place(number);
        let mut kept = Vec::with_capacity(self.pending);
        for (index, chain) in self.chains.iter().enumerate() {
            if index != place.chain {
                kept.extend(chain.steps.iter().flatten());
                continue;
            }
            kept.extend(chain.steps[..place.step].iter().flatten());
            kept.extend(all_but(&chain.steps[place.step], place.chunk));
        }
        kept
    }

    /// Some choice. A quarter of the chains keeps nothing and a quarter everything: evenly drawn choices would
    /// all look alike when there are many chains.
    pub(crate) fn random(&self, random: &mut Random) -> Vec<Chunk> {
        let mut kept = Vec::new();
        for chain in &self.chains {
            let whole_steps = match random.below(4) {
                0 => 0,
                1 => chain.steps.len(),
                _ => random.below(chain.steps.len() + 1),
            };
            kept.extend(chain.steps[..whole_steps].iter().flatten());
            let torn = chain.steps.get(whole_steps).filter(|step| step.len() > 1);
            if let Some(torn) = torn.filter(|_| random.below(2) == 0) {
                for lane in lanes(torn) {
                    let all = lane.parts();
                    kept.extend(lane.part(all - random.below(all + 1)).map(|at| torn[at]));
                }
            }
        }
        kept
    }

    fn place(&self, number: usize) -> Place {
        let mut left = number;
        for (chain, steps) in self.chains.iter().map(|chain| &chain.steps).enumerate() {
            for (step, chunks) in steps.iter().enumerate() {
                if left < chunks.len() {
                    return Place { chain, step, chunk: left };
                }
                left -= chunks.len();
            }
        }
        panic!("chunk {number} of {} was asked for", self.pending)
    }
}

impl Chain {
    /// One step per store, or for stores at the same time; `pending` is in order.
    fn by_store(pending: &[Chunk], trace: &Trace) -> Self {
        let mut steps: Vec<Vec<Chunk>> = Vec::new();
        for of_store in pending.chunk_by(|a, b| a.event == b.event) {
            match steps.last_mut() {
                Some(last) if are_at_once(last, of_store[0].event, trace) => {
                    last.extend(of_store);
                    last.sort_by_key(|chunk| (chunk.word, chunk.event));
                }
                _ => steps.push(of_store.to_vec()),
            }
        }
        Self::new(steps)
    }

    /// The stores to one pair of words, some of which stored it in one piece: these in order, and what lies between two
    /// of them in order of each word.
    fn of_pair(mut pending: Vec<Chunk>) -> Self {
        pending.sort_by_key(|chunk| (chunk.event, chunk.word));
        let is_one_step = |a: &Chunk, b: &Chunk| match (a.in_pair, b.in_pair) {
            (true, true) => a.event == b.event,
            (a, b) => a == b,
        };
        let mut steps: Vec<Vec<Chunk>> = pending.chunk_by(is_one_step).map(<[Chunk]>::to_vec).collect();
        steps.iter_mut().for_each(|step| step.sort_by_key(|chunk| (chunk.word, chunk.event)));
        Self::new(steps)
    }

    fn new(steps: Vec<Vec<Chunk>>) -> Self {
        // Nothing, or any part but the empty one of any step after the whole steps before it.
        let count = steps.iter().fold(1, |sum: u128, step| sum.saturating_add(parts(step)));
        let mut lines = steps.iter().flatten().map(Chunk::line);
        let line = lines.next().filter(|&line| lines.all(|other| other == line));
        Self { steps, count, line }
    }

    /// What becomes durable in order, step by step.
    pub(crate) fn steps(&self) -> &[Vec<Chunk>] {
        &self.steps
    }

    /// Whether the chain touches one line only.
    pub(crate) const fn is_within_one_line(&self) -> bool {
        self.line.is_some()
    }

    /// Whether the chain touches no other line.
    pub(crate) fn is_within(&self, line: u64) -> bool {
        self.line == Some(line)
    }

    fn keep_numbered(&self, number: u64, kept: &mut Vec<Chunk>) {
        let mut left = number;
        for step in &self.steps {
            if left == 0 {
                return;
            }
            // More than 64 bits only if no number reaches them.
            let parts = u64::try_from(parts(step)).unwrap_or(u64::MAX);
            if left <= parts {
                // The whole step is its last part, and the next step's parts come after it.
                return append_part(step, left, kept);
            }
            kept.extend(step);
            left -= parts;
        }
    }
}

/// Whether none of the stores of a step had ended when a later store began: each is in pieces, of another thread, which had not
/// gone on. In another schedule their order is another, but in none does one of them end before the others begin.
fn are_at_once(step: &[Chunk], later: usize, trace: &Trace) -> bool {
    let events = trace.events();
    let is_in_pieces = |kind: &EventKind| match (kind, kind.extent()) {
        (EventKind::Store { .. } | EventKind::StoreNt { .. }, Some((offset, len_bytes))) => {
            piece_bytes(offset, len_bytes) < len_bytes
        }
        _ => false,
    };
    let thread = |event: usize| events[event].thread;
    let has_ended = |event: usize| {
        let mut since = events[event + 1..later].iter();
        since.any(|other| other.thread == thread(event) && !other.kind.is_load())
    };
    is_in_pieces(&events[later].kind)
        && step.iter().map(|chunk| chunk.event).all(|event| {
            thread(event) != thread(later) && is_in_pieces(&events[event].kind) && !has_ended(event)
        })
}

/// The chunks of each word, in order.
fn by_word(pending: &[Chunk]) -> Vec<Vec<Chunk>> {
    let mut sorted = pending.to_vec();
    sorted.sort_by_key(|chunk| (chunk.word, chunk.event));
    sorted.chunk_by(|a, b| a.word == b.word).map(<[Chunk]>::to_vec).collect()
}
