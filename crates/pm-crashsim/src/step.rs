//! The inside of a step of a [`Chain`](crate::choices::Chain): which parts of it can be there without the rest.
//!
//! Lanes lie side by side, and each keeps a prefix. A word's stores are a lane, one after the other; a pair of words that was
//! stored in one piece is one too, and keeps both words or none. Of a store of some words, every word is a lane of its own,
//! so that any subset can be there.

use crate::chunk::Chunk;

/// What is in order within a step. It lies in one line.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'s> {
    /// The number of its first chunk, within the step.
    pub(crate) first: usize,
    pub(crate) chunks: &'s [Chunk],
}

/// The lanes of a step, whose chunks of one word follow one another.
pub(crate) fn lanes(step: &[Chunk]) -> impl Iterator<Item = Lane<'_>> {
    let mut first = 0;
    step.chunk_by(|a, b| a.word == b.word || a.in_pair && a.event == b.event).map(move |chunks| {
        let lane = Lane { first, chunks };
        first += chunks.len();
        lane
    })
}

/// In how many ways some of the step's chunks can be there; `u128::MAX` when there are more than that.
pub(crate) fn parts(step: &[Chunk]) -> u128 {
    let all = lanes(step).try_fold(1, |all: u128, lane| all.checked_mul(lane.prefixes() as u128));
    all.map_or(u128::MAX, |all| all - 1)
}

/// Appends the part with that number: from 1, for some chunk, to [`parts`], for all.
pub(crate) fn append_part(step: &[Chunk], mut number: u64, kept: &mut Vec<Chunk>) {
    for lane in lanes(step) {
        let prefixes = lane.prefixes() as u64;
        kept.extend(lane.prefix(crate::span::index(number % prefixes)));
        number /= prefixes;
    }
}

/// The most that can be there if nothing may be that is not `wanted`.
pub(crate) fn legal_part(step: &[Chunk], wanted: impl Fn(&Chunk) -> bool) -> impl Iterator<Item = &Chunk> {
    lanes(step).flat_map(move |lane| lane.longest(&wanted))
}

/// The chunk with that number, and what of the step must be there with it.
pub(crate) fn only(step: &[Chunk], chunk: usize) -> &[Chunk] {
    let lane = lane_of(step, chunk);
    lane.prefix(lane.atoms_before(chunk) + 1)
}

/// The step without the chunk with that number, and without what cannot be there then.
pub(crate) fn all_but(step: &[Chunk], chunk: usize) -> impl Iterator<Item = &Chunk> {
    let lane = lane_of(step, chunk);
    let lost = lane.first + lane.prefix(lane.atoms_before(chunk)).len()..lane.first + lane.chunks.len();
    step.iter().enumerate().filter(move |(at, _)| !lost.contains(at)).map(|(_, chunk)| chunk)
}

fn lane_of(step: &[Chunk], chunk: usize) -> Lane<'_> {
    let lane = lanes(step).find(|lane| chunk < lane.first + lane.chunks.len());
    lane.expect("every chunk of a step lies in one of its lanes")
}

impl<'s> Lane<'s> {
    /// Whether it is there as a whole or not at all.
    pub(crate) fn is_pair(&self) -> bool {
        self.chunks[0].in_pair
    }

    /// In how many ways it can be kept.
    pub(crate) fn prefixes(&self) -> usize {
        if self.is_pair() { 2 } else { self.chunks.len() + 1 }
    }

    /// The prefix with that number: 0 is nothing, and the last one everything.
    pub(crate) fn prefix(&self, number: usize) -> &'s [Chunk] {
        match number {
            0 => &[],
            _ if self.is_pair() => self.chunks,
            _ => &self.chunks[..number],
        }
    }

    /// The longest prefix of what is wanted.
    pub(crate) fn longest(&self, wanted: impl Fn(&Chunk) -> bool) -> &'s [Chunk] {
        let length = self.chunks.iter().take_while(|chunk| wanted(chunk)).count();
        if self.is_pair() && length < self.chunks.len() { &[] } else { &self.chunks[..length] }
    }

    /// How many of what is kept or lost as one precede the chunk with that number in the step.
    fn atoms_before(&self, chunk: usize) -> usize {
        if self.is_pair() { 0 } else { chunk - self.first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(event: usize, word: u64, in_pair: bool) -> Chunk {
        Chunk { event, word, mask: u8::MAX, value: [1; 8], in_pair }
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
    fn a_store_of_more_words_than_can_be_counted_says_so() {
        let step: Vec<Chunk> = (0..128).map(|word| chunk(0, word, false)).collect();
        assert_eq!(parts(&step), u128::MAX);
        assert_eq!(parts(&step[1..]), (1 << 127) - 1);
    }
}
