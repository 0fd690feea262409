//! Which of the legal choices at a crash point are tried: all of them, or the most telling ones up to a bound.

use crate::choices::Choices;
use crate::chunk::Chunk;
use crate::random::Random;

/// At a sampled point, about how many recoveries are crashed in turn. Each costs as much as exploring an operation,
/// and what most of them would show, a neighbour shows.
const CRASHED_RECOVERIES: u64 = 32;

/// The choices to try at one crash point, in a fixed order: number `n` is the same in every run.
pub(crate) struct Plan<'c> {
    choices: &'c Choices,
    count: u128,
    seed: u64,
    kind: Kind,
}

enum Kind {
    Exhaustive,
    /// Nothing, everything, then these in pairs (only it, all but it), then at random.
    Sampled {
        structured: Vec<usize>,
        total: u64,
    },
}

impl<'c> Plan<'c> {
    /// All choices if there are at most `bound`, else `bound` of them.
    pub(crate) fn new(choices: &'c Choices, bound: u64, seed: u64) -> Self {
        let count = choices.count();
        let kind = if count <= u128::from(bound) {
            Kind::Exhaustive
        } else {
            Kind::Sampled { structured: structured(choices.pending(), bound, seed), total: bound }
        };
        Self { choices, count, seed, kind }
    }

    /// How many choices there are; `u128::MAX` when there are more than that.
    pub(crate) const fn legal(&self) -> u128 {
        self.count
    }

    /// How many are in the plan. Sampled ones may repeat.
    pub(crate) fn len(&self) -> u64 {
        match self.kind {
            Kind::Exhaustive => u64::try_from(self.count).expect("at most the bound, which is a u64"),
            Kind::Sampled { total, .. } => total,
        }
    }

    pub(crate) const fn is_exhaustive(&self) -> bool {
        matches!(self.kind, Kind::Exhaustive)
    }

    /// Whether the recovery from that choice is to be crashed too: each, or at a sampled point nothing, everything
    /// and an even selection. The step between these is odd, to meet both halves of the pairs.
    pub(crate) fn crashes_recovery(&self, number: u64) -> bool {
        let step = (self.len() / CRASHED_RECOVERIES) | 1;
        self.is_exhaustive() || number < 2 || number.is_multiple_of(step)
    }

    /// The chunks that number `number` of the plan keeps.
    pub(crate) fn kept(&self, number: u64) -> Vec<Chunk> {
        let Kind::Sampled { structured, .. } = &self.kind else {
            return self.choices.numbered(u128::from(number));
        };
        match number {
            0 => return Vec::new(),
            1 => return self.choices.all(),
            _ => {}
        }
        let paired = number - 2;
        let chosen = usize::try_from(paired / 2).ok().and_then(|index| structured.get(index));
        match chosen {
            Some(&chunk) if paired.is_multiple_of(2) => self.choices.only(chunk),
            Some(&chunk) => self.choices.all_but(chunk),
            None => self.choices.random(&mut Random::new(self.seed, number)),
        }
    }
}

/// The chunks tried on their own and left out on their own: all of them if that takes at most half of the bound,
/// else a seeded sample that does.
fn structured(pending: usize, bound: u64, seed: u64) -> Vec<usize> {
    let room = usize::try_from(bound / 4).unwrap_or(usize::MAX);
    let mut chunks: Vec<usize> = (0..pending).collect();
    if pending > room {
        let mut random = Random::new(seed, u64::MAX);
        for index in 0..room {
            let other = index + random.below(pending - index);
            chunks.swap(index, other);
        }
        chunks.truncate(room);
    }
    chunks
}
