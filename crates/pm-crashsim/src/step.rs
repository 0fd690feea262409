//! The inside of a step of a [`Chain`](crate::choices::Chain): which parts of it can be there without the rest.
//!
//! Lanes lie side by side, each as if it were alone: a word, or both words of a pair that was stored in one piece. Along a lane
//! one store comes after the other, and each has atoms there, of which any subset can be there: the pieces that it wrote to the
//! word, or the pair, which is one atom. So a part of a lane is some whole stores, and some atoms of the next one.
//!
//! Parts have numbers: 0 is nothing, and the last one is everything.

use crate::chunk::Chunk;

/// What is in order within a step. It lies in one line.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'s> {
    /// The number of its first chunk, within the step.
    first: usize,
    pub(crate) chunks: &'s [Chunk],
}

/// What one store did to a lane.
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

/// How many parts the step has, not counting nothing; `u128::MAX` when there are more than that.
pub(crate) fn parts(step: &[Chunk]) -> u128 {
    let all = lanes(step).try_fold(1, |all: u128, lane| all.checked_mul(lane.parts() as u128 + 1));
    all.map_or(u128::MAX, |all| all - 1)
}

/// Appends the part with that number, at most [`parts`].
pub(crate) fn append_part(step: &[Chunk], mut number: u64, kept: &mut Vec<Chunk>) {
    for lane in lanes(step) {
        let ways = lane.parts() as u64 + 1;
        kept.extend(lane.part(crate::line::index(number % ways)).map(|at| step[at]));
        number /= ways;
    }
}

/// The most that can be there if nothing may be that is not `wanted`.
pub(crate) fn legal_part(step: &[Chunk], wanted: impl Fn(&Chunk) -> bool) -> impl Iterator<Item = &Chunk> {
    lanes(step).flat_map(move |lane| lane.part(lane.most(&wanted))).map(|at| &step[at])
}

/// The chunk with that number, and what of the step must be there with it.
pub(crate) fn only(step: &[Chunk], chunk: usize) -> impl Iterator<Item = &Chunk> {
    let this = &step[chunk];
    let is_before = |other: &Chunk| other.word == this.word && other.event < this.event;
    legal_part(step, move |other| other.is_one_with(this) || is_before(other))
}

/// The step without the chunk with that number, and without what cannot be there then.
pub(crate) fn all_but(step: &[Chunk], chunk: usize) -> impl Iterator<Item = &Chunk> {
    let this = &step[chunk];
    legal_part(step, |other| !other.is_one_with(this))
}

/// Neighbouring groups, each with the number of its first chunk, if that of all is `first`.
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
    /// How many parts it has, not counting nothing.
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

    /// The number of the largest part of what is wanted.
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
    /// Its parts are the sets of its atoms: bit `i` of their numbers is the atom with the number `i`.
    fn parts(self) -> usize {
        self.part_with(|_| true)
    }

    fn part(self, number: usize) -> impl Iterator<Item = usize> {
        let is_kept = move |at: &usize| number >> self.atom(*at) & 1 == 1;
        (0..self.chunks.len()).filter(is_kept).map(move |at| self.first + at)
    }

    /// The largest part of what is wanted: an atom is wanted if all of it is.
    fn most(self, wanted: impl Fn(&Chunk) -> bool) -> usize {
        self.parts() & !self.part_with(|chunk| !wanted(chunk))
    }

    /// All atoms of which some chunk is so.
    fn part_with(self, is_so: impl Fn(&Chunk) -> bool) -> usize {
        let these = self.chunks.iter().enumerate().filter(|(_, chunk)| is_so(chunk));
        these.fold(0, |number, (at, _)| number | 1 << self.atom(at))
    }

    /// The number of the atom that the chunk belongs to.
    fn atom(self, at: usize) -> usize {
        if self.chunks[0].in_pair { 0 } else { at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(event: usize, word: u64, in_pair: bool) -> Chunk {
        Chunk {
            event,
            word,
            first_byte: 0,
            mask: u8::MAX,
            value: [1; 8],
            in_pair,
            ordered_at: crate::chunk::NEVER,
        }
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
    fn a_pair_is_kept_whole_or_not_at_all() {
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
    fn of_the_pieces_of_one_word_any_are_there_before_the_next_store_to_it() {
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
    fn a_store_of_more_words_than_can_be_counted_says_so() {
        let step: Vec<Chunk> = (0..128).map(|word| chunk(0, word, false)).collect();
        assert_eq!(parts(&step), u128::MAX);
        assert_eq!(parts(&step[1..]), (1 << 127) - 1);
    }
}
