//! The legal choices at one crash point: chains of pending chunks, of which each keeps a prefix.
//!
//! A chain becomes durable step by step. Inside a step there are independent lanes: a lane is a word, or both words of a pair that was stored in one
//! piece. Along a lane stores are ordered. A store has atoms there, of which any subset can be durable: the pieces that it wrote to the word, or the
//! pair, which is one atom. So a part of a lane is some whole stores, and some atoms of the next one.
//!
//! Parts are numbered: 0 is nothing, and the last one is everything.

use super::chunk::{Chunk, Survivor};
use super::machine::Machine;
use super::rules::Model;
use crate::line::index;
use crate::trace::{EventKind, Trace};
use pm_core::line::piece_bytes;
use std::collections::HashSet;

/// Pending chunks that become durable in order, step by step.
///
/// The chunks of one step, usually of one store, are unordered among themselves. A legal choice is a number of whole steps, and any part of the next.
pub(crate) struct Chain {
    steps: Vec<Vec<Chunk>>,
    /// The number of its legal choices; `u128::MAX` when there are more than that.
    count: u128,
    /// The only line that it touches, if it is only one.
    line: Option<u64>,
}

/// Everything that a crash at one point may keep: one choice for each chain, independently.
pub(crate) struct Choices {
    chains: Vec<Chain>,
    pending: usize,
}

/// Why no crash keeps exactly these survivors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IllegalCrash {
    /// It was durable for certain, or replaced for good, or never stored.
    #[error("the piece at {at:#x} of event {event} was not pending when the crash struck", at = .0.offset(), event = .0.event)]
    NotPending(Survivor),
    /// A store that precedes it under the model was lost.
    #[error("the piece at {at:#x} of event {event} survives, and what precedes it does not", at = .0.offset(), event = .0.event)]
    OutOfOrder(Survivor),
    /// It was stored in one piece with another word, which was lost.
    #[error("the word at {at:#x} of event {event} survives, and the word stored in one piece with it does not", at = .0.offset(), event = .0.event)]
    Halved(Survivor),
}

/// The position of a pending chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Position {
    chain: usize,
    step: usize,
    chunk: usize,
}

impl Choices {
    /// The choices in this state of the machine.
    pub(crate) fn of(machine: &Machine<'_>) -> Self {
        let mut chains = Vec::new();
        let by_store = |pending: &[Chunk]| Chain::by_store(pending, machine.trace());
        for pending in machine.write_back() {
            match machine.rules().model {
                Model::Eadr | Model::Px86Line | Model::Page => chains.push(by_store(pending)),
                Model::Px86Loc => {
                    for of_pair in by_word(pending).chunk_by(|a, b| a[0].pair() == b[0].pair()) {
                        // A store of both words in one piece orders the stores before and after it in either.
                        match of_pair.iter().flatten().any(|chunk| chunk.in_pair) {
                            true => chains.push(Chain::of_pair(of_pair.concat())),
                            false => chains.extend(of_pair.iter().map(|of_word| by_store(of_word))),
                        }
                    }
                }
                Model::Chunk8 => {
                    for of_word in &by_word(pending) {
                        // Of stores to the same bytes only the last survivor is visible: as if in order.
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

    pub(crate) fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// The number of choices; `u128::MAX` when there are more than that.
    pub(crate) fn count(&self) -> u128 {
        self.chains.iter().fold(1, |product: u128, chain| product.saturating_mul(chain.count))
    }

    /// The number of pending chunks.
    pub(crate) const fn pending(&self) -> usize {
        self.pending
    }

    /// Every pending chunk.
    pub(crate) fn all(&self) -> Vec<Chunk> {
        self.chains.iter().flat_map(|chain| &chain.steps).flatten().copied().collect()
    }

    /// Appends the chunks of the choice with that number, below [`count`](Self::count). Choice 0 keeps nothing.
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

    /// The pending chunk with that number, with those that must precede it.
    pub(crate) fn only(&self, number: usize) -> Vec<Chunk> {
        let position = self.position(number);
        let chain = &self.chains[position.chain];
        let mut kept: Vec<Chunk> = chain.steps[..position.step].iter().flatten().copied().collect();
        kept.extend(only(&chain.steps[position.step], position.chunk));
        kept
    }

    /// Everything except the pending chunk with that number, and except those that must follow it.
    pub(crate) fn all_but(&self, number: usize) -> Vec<Chunk> {
        let position = self.position(number);
        let mut kept = Vec::with_capacity(self.pending);
        for (index, chain) in self.chains.iter().enumerate() {
            if index != position.chain {
                kept.extend(chain.steps.iter().flatten());
                continue;
            }
            kept.extend(chain.steps[..position.step].iter().flatten());
            kept.extend(all_but(&chain.steps[position.step], position.chunk));
        }
        kept
    }

    /// A random choice. A quarter of the chains keeps nothing and a quarter everything: evenly drawn choices would
    /// all look alike when there are many chains.
    pub(crate) fn random(&self, random: &mut fastrand::Rng) -> Vec<Chunk> {
        let mut kept = Vec::new();
        for chain in &self.chains {
            let whole_steps = match random.u8(..4) {
                0 => 0,
                1 => chain.steps.len(),
                _ => random.usize(..=chain.steps.len()),
            };
            kept.extend(chain.steps[..whole_steps].iter().flatten());
            let torn = chain.steps.get(whole_steps).filter(|step| step.len() > 1);
            if let Some(torn) = torn.filter(|_| random.bool()) {
                for lane in lanes(torn) {
                    let all = lane.parts();
                    kept.extend(lane.part(random.usize(..=all)).map(|at| torn[at]));
                }
            }
        }
        kept
    }

    /// The wanted chunks of each chain, up to the first step that is not wanted whole: another start can leave stores pending that
    /// changed nothing before.
    pub(crate) fn legal(&self, is_wanted: impl Fn(&Chunk) -> bool + Copy) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        for chain in &self.chains {
            for step in &chain.steps {
                let before = chunks.len();
                chunks.extend(legal_part(step, is_wanted));
                if chunks.len() - before < step.len() {
                    break;
                }
            }
        }
        chunks
    }

    /// The chunks of exactly those survivors.
    pub(crate) fn exactly(&self, kept: &[Survivor]) -> Result<Vec<Chunk>, IllegalCrash> {
        let mut missing: HashSet<Survivor> = kept.iter().copied().collect();
        let mut survivors = Vec::with_capacity(missing.len());
        for chain in &self.chains {
            // A step survives, in whole or in part, only after whole ones.
            let mut is_torn = false;
            for step in &chain.steps {
                let lost_before = is_torn;
                for lane in lanes(step) {
                    let is_kept = |chunk: &Chunk| missing.contains(&chunk.as_survivor());
                    let number = if lost_before { 0 } else { lane.most(is_kept) };
                    for chunk in lane.part(number).map(|at| &step[at]) {
                        missing.remove(&chunk.as_survivor());
                        survivors.push(*chunk);
                    }
                    let is_left = |chunk: &&Chunk| missing.contains(&chunk.as_survivor());
                    if let Some(other) = lane.chunks.iter().find(is_left) {
                        let is_half = other.in_pair && !lost_before;
                        let illegal = if is_half { IllegalCrash::Halved } else { IllegalCrash::OutOfOrder };
                        return Err(illegal(other.as_survivor()));
                    }
                    is_torn |= number < lane.parts();
                }
            }
        }
        missing.into_iter().min().map_or(Ok(survivors), |left| Err(IllegalCrash::NotPending(left)))
    }

    fn position(&self, number: usize) -> Position {
        let mut left = number;
        for (chain, steps) in self.chains.iter().map(|chain| &chain.steps).enumerate() {
            for (step, chunks) in steps.iter().enumerate() {
                if left < chunks.len() {
                    return Position { chain, step, chunk: left };
                }
                left -= chunks.len();
            }
        }
        panic!("chunk {number} of {} was asked for", self.pending)
    }
}

impl Chain {
    /// One step for each store, or for simultaneous stores; `pending` is in order.
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

    /// The stores to one pair of words, some in one piece: these in order, and the stores between two of them in order of each word.
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

    /// The steps, in the order in which they become durable.
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
/// continued. Other schedules have other orders, but in none does one of them end before the others begin.
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

/// The ordered chunks of one word or pair within a step. It lies in one line.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'s> {
    /// The number of its first chunk, within the step.
    first: usize,
    pub(crate) chunks: &'s [Chunk],
}

/// The chunks of one store in a lane.
#[derive(Clone, Copy)]
struct Store<'s> {
    /// The number of its first chunk, within the step.
    first: usize,
    chunks: &'s [Chunk],
}

/// The lanes of a step, whose chunks of one word follow one another.
pub(crate) fn lanes(step: &[Chunk]) -> impl Iterator<Item = Lane<'_>> {
    let is_one_lane = |a: &Chunk, b: &Chunk| a.word == b.word || a.is_one_with(b);
    counted(0, step.chunk_by(is_one_lane)).map(|(first, chunks)| Lane { first, chunks })
}

/// The number of parts of the step, not counting nothing; `u128::MAX` when there are more than that.
fn parts(step: &[Chunk]) -> u128 {
    let all = lanes(step).try_fold(1, |all: u128, lane| all.checked_mul(lane.parts() as u128 + 1));
    all.map_or(u128::MAX, |all| all - 1)
}

/// Appends the part with that number, at most [`parts`].
fn append_part(step: &[Chunk], mut number: u64, kept: &mut Vec<Chunk>) {
    for lane in lanes(step) {
        let ways = lane.parts() as u64 + 1;
        kept.extend(lane.part(index(number % ways)).map(|at| step[at]));
        number /= ways;
    }
}

/// The largest legal part with only `wanted` chunks.
pub(crate) fn legal_part(step: &[Chunk], wanted: impl Fn(&Chunk) -> bool) -> impl Iterator<Item = &Chunk> {
    lanes(step).flat_map(move |lane| lane.part(lane.most(&wanted))).map(|at| &step[at])
}

/// The chunk with that number, and the chunks of the step that must be there with it.
fn only(step: &[Chunk], chunk: usize) -> impl Iterator<Item = &Chunk> {
    let this = &step[chunk];
    let is_before = |other: &Chunk| other.word == this.word && other.event < this.event;
    legal_part(step, move |other| other.is_one_with(this) || is_before(other))
}

/// The step without the chunk with that number, and without the chunks that require it.
fn all_but(step: &[Chunk], chunk: usize) -> impl Iterator<Item = &Chunk> {
    let this = &step[chunk];
    legal_part(step, |other| !other.is_one_with(this))
}

/// Neighbouring groups, each with the number of its first chunk, counted from `first`.
fn counted<'s>(
    first: usize,
    groups: impl Iterator<Item = &'s [Chunk]>,
) -> impl Iterator<Item = (usize, &'s [Chunk])> {
    groups.scan(first, |next, chunks| {
        let first = *next;
        *next += chunks.len();
        Some((first, chunks))
    })
}

impl<'s> Lane<'s> {
    /// The number of its parts, not counting nothing.
    pub(crate) fn parts(self) -> usize {
        self.stores().map(Store::parts).sum()
    }

    /// The part with that number, as numbers of chunks within the step.
    pub(crate) fn part(self, mut number: usize) -> impl Iterator<Item = usize> {
        self.stores().flat_map(move |store| {
            let of_store = number.min(store.parts());
            number -= of_store;
            store.part(of_store)
        })
    }

    /// The number of the largest part with only wanted chunks.
    pub(crate) fn most(self, wanted: impl Fn(&Chunk) -> bool) -> usize {
        let mut number = 0;
        for store in self.stores() {
            let of_store = store.most(&wanted);
            number += of_store;
            if of_store < store.parts() {
                break;
            }
        }
        number
    }

    fn stores(self) -> impl Iterator<Item = Store<'s>> {
        let of_stores = self.chunks.chunk_by(|a, b| a.event == b.event);
        counted(self.first, of_stores).map(|(first, chunks)| Store { first, chunks })
    }
}

impl Store<'_> {
    /// Its parts are the sets of its atoms: bit `i` of their numbers is atom `i`.
    fn parts(self) -> usize {
        self.part_with(|_| true)
    }

    fn part(self, number: usize) -> impl Iterator<Item = usize> {
        let is_kept = move |at: &usize| number >> self.atom(*at) & 1 == 1;
        (0..self.chunks.len()).filter(is_kept).map(move |at| self.first + at)
    }

    /// The largest part with only wanted chunks: an atom is wanted if all of it is.
    fn most(self, wanted: impl Fn(&Chunk) -> bool) -> usize {
        self.parts() & !self.part_with(|chunk| !wanted(chunk))
    }

    /// All atoms with a chunk for which `is_so` holds.
    fn part_with(self, is_so: impl Fn(&Chunk) -> bool) -> usize {
        let these = self.chunks.iter().enumerate().filter(|(_, chunk)| is_so(chunk));
        these.fold(0, |number, (at, _)| number | 1 << self.atom(at))
    }

    /// The number of the chunk's atom.
    fn atom(self, at: usize) -> usize {
        if self.chunks[0].in_pair { 0 } else { at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::chunk::NEVER;

    fn chunk(event: usize, word: u64, in_pair: bool) -> Chunk {
        Chunk { event, word, first_byte: 0, mask: u8::MAX, value: [1; 8], in_pair, ordered_at: NEVER }
    }

    /// Two or four bytes.
    fn piece(event: usize, word: u64, first_byte: u8) -> Chunk {
        let mask = if first_byte == 4 { 0xf0 } else { 0x03 << first_byte };
        Chunk { first_byte, mask, ..chunk(event, word, false) }
    }

    fn named<'c>(chunks: impl IntoIterator<Item = &'c Chunk>) -> Vec<(usize, u64)> {
        chunks.into_iter().map(|chunk| (chunk.event, chunk.word)).collect()
    }

    #[test]
    fn pair_is_atomic() {
        let step = [chunk(3, 4, true), chunk(3, 5, true)];
        assert_eq!(parts(&step), 1);
        let mut kept = Vec::new();
        append_part(&step, 1, &mut kept);
        assert_eq!(named(&kept), [(3, 4), (3, 5)]);
        assert_eq!(named(only(&step, 1)), [(3, 4), (3, 5)]);
        assert_eq!(named(all_but(&step, 1)), []);
        assert_eq!(named(legal_part(&step, |chunk| chunk.word == 4)), []);
    }

    #[test]
    fn each_word_keeps_a_prefix_of_its_stores() {
        let step = [chunk(0, 4, false), chunk(2, 4, false), chunk(1, 5, false)];
        assert_eq!(parts(&step), 5);
        let part = |number| {
            let mut kept = Vec::new();
            append_part(&step, number, &mut kept);
            named(&kept)
        };
        let all: Vec<_> = (1..=5).map(part).collect();
        assert_eq!(all[0], [(0, 4)]);
        assert_eq!(all[1], [(0, 4), (2, 4)]);
        assert_eq!(all[2], [(1, 5)]);
        assert_eq!(all[3], [(0, 4), (1, 5)]);
        assert_eq!(all[4], [(0, 4), (2, 4), (1, 5)]);
        assert_eq!(named(only(&step, 1)), [(0, 4), (2, 4)]);
        assert_eq!(named(all_but(&step, 0)), [(1, 5)]);
        assert_eq!(named(legal_part(&step, |chunk| chunk.event > 0)), [(1, 5)]);
    }

    #[test]
    fn word_keeps_any_pieces_of_a_store_before_the_next_store_to_it() {
        let step = [piece(0, 4, 2), piece(0, 4, 4), chunk(2, 4, false), chunk(1, 5, false)];
        let found = |chunks: &[Chunk]| chunks.iter().map(|chunk| (chunk.event, chunk.first_byte)).collect();
        let all: Vec<Vec<_>> = (0..=9)
            .map(|number| {
                let mut kept = Vec::new();
                append_part(&step, number, &mut kept);
                found(&kept)
            })
            .collect();
        assert_eq!(parts(&step), 9);
        let (two, four, later, other) = ((0, 2), (0, 4), (2, 0), (1, 0));
        let of_word = [vec![], vec![two], vec![four], vec![two, four], vec![two, four, later]];
        assert_eq!(all[..5], of_word);
        for (with, without) in all[5..].iter().zip(of_word) {
            assert_eq!(*with, [without, vec![other]].concat());
        }

        let found = |chunks: Vec<&Chunk>| found(&chunks.into_iter().copied().collect::<Vec<_>>());
        assert_eq!(found(only(&step, 1).collect()), [four]);
        assert_eq!(found(only(&step, 2).collect()), [two, four, later]);
        assert_eq!(found(all_but(&step, 0).collect()), [four, other]);
        assert_eq!(found(all_but(&step, 2).collect()), [two, four, other]);
        assert_eq!(found(legal_part(&step, |chunk| chunk.first_byte != 4).collect()), [two, other]);
    }

    #[test]
    fn parts_of_too_many_words_saturate() {
        let step: Vec<Chunk> = (0..128).map(|word| chunk(0, word, false)).collect();
        assert_eq!(parts(&step), u128::MAX);
        assert_eq!(parts(&step[1..]), (1 << 127) - 1);
    }
}
