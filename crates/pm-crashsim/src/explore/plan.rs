//! The rounds in which points are visited, and the choices tried at one point: all, or the most telling ones up to a bound.

use super::settings::Settings;
use crate::line::random;
use crate::model::{Choices, Chunk};

/// The approximate number of recoveries that are crashed at a sampled point. Each costs as much as exploring an operation, and most
/// findings show at a neighbour too.
const CRASHED_RECOVERIES: u64 = 32;

/// The numbers of choices tried at each point in the first rounds, where there are more.
const FEW_CHOICES: [u64; 3] = [2, 16, 256];

/// In the rounds before these, one point in so many is visited, if recoveries are bounded: the bound may not cover all points.
const STRIDES: [u64; 2] = [64, 8];

/// One pass over all points.
#[derive(Clone, Copy)]
pub(super) struct Round {
    /// How many crashes may follow each other.
    pub(super) crashes: usize,
    /// The bound on the choices at each point, if this is a round of few choices.
    pub(super) few: Option<u64>,
    /// Visits each point of the operation whose number this divides.
    pub(super) every: u64,
}

/// The rounds in order. The last one tries everything.
pub(super) fn rounds(settings: &Settings, is_bounded: bool) -> Vec<Round> {
    let Settings { reduce, crashes, choices_per_point, .. } = *settings;
    let few = FEW_CHOICES.into_iter().filter(|&few| few < choices_per_point && (reduce || crashes == 1));
    let strides = STRIDES.into_iter().filter(|_| is_bounded);
    let some_points = few.clone().take(1).flat_map(|few| strides.clone().map(move |every| (few, every)));
    let all_points = few.clone().map(|few| (few, 1));
    let once = some_points.chain(all_points).map(|(few, every)| Round { crashes: 1, few: Some(few), every });
    let mut rounds: Vec<Round> = once.collect();
    if crashes > 1 && reduce {
        rounds.push(Round { crashes, few: Some(FEW_CHOICES[0]), every: 1 });
        rounds.push(Round { crashes: 1, few: None, every: 1 });
    }
    rounds.push(Round { crashes, few: None, every: 1 });
    rounds
}

/// The choices to try at one crash point, in a fixed order.
pub(super) struct Plan<'c> {
    choices: &'c Choices,
    count: u128,
    seed: u64,
    kind: Kind,
}

enum Kind {
    Exhaustive,
    /// The telling choices, then random ones, up to the total.
    Sampled {
        telling: Vec<Telling>,
        total: u64,
    },
}

/// A choice that is more telling than a random one: most bugs need one store to survive too early, or to be lost.
#[derive(Clone, Copy)]
enum Telling {
    Nothing,
    Everything,
    OnlyChain(usize),
    AllButChain(usize),
    /// One chunk, and the chunks that must precede it.
    Only(usize),
    /// All but one chunk, and but the chunks that must follow it.
    AllBut(usize),
    /// All but two chains.
    AllButPair(usize, usize),
}

impl<'c> Plan<'c> {
    /// All choices if there are at most `bound`, else `bound` choices.
    pub(super) fn new(choices: &'c Choices, bound: u64, seed: u64) -> Self {
        let count = choices.count();
        let kind = if count <= u128::from(bound) {
            Kind::Exhaustive
        } else {
            Kind::Sampled { telling: telling(choices, bound, seed), total: bound }
        };
        Self { choices, count, seed, kind }
    }

    /// The number of legal choices; `u128::MAX` when there are more than that.
    pub(super) const fn legal(&self) -> u128 {
        self.count
    }

    /// The number of choices in the plan. Sampled ones may repeat.
    pub(super) fn len(&self) -> u64 {
        match self.kind {
            Kind::Exhaustive => u64::try_from(self.count).expect("at most the bound, which is a u64"),
            Kind::Sampled { total, .. } => total,
        }
    }

    pub(super) const fn is_exhaustive(&self) -> bool {
        matches!(self.kind, Kind::Exhaustive)
    }

    /// Whether the recovery from that choice is to be crashed too: always, or at a sampled point for nothing, everything
    /// and an even selection. The step between these is odd, to meet both halves of the pairs.
    pub(super) fn crashes_recovery(&self, number: u64) -> bool {
        let step = (self.len() / CRASHED_RECOVERIES) | 1;
        self.is_exhaustive() || number < 2 || number.is_multiple_of(step)
    }

    /// Appends the chunks that choice `number` of the plan keeps.
    pub(super) fn keep(&self, number: u64, kept: &mut Vec<Chunk>) {
        match &self.kind {
            Kind::Exhaustive => self.choices.keep_numbered(number, kept),
            Kind::Sampled { telling, .. } => kept.extend(self.sampled(telling, number)),
        }
    }

    fn sampled(&self, telling: &[Telling], number: u64) -> Vec<Chunk> {
        match usize::try_from(number).ok().and_then(|number| telling.get(number)) {
            Some(Telling::Nothing) => Vec::new(),
            Some(Telling::Everything) => self.choices.all(),
            Some(&Telling::OnlyChain(chain)) => self.choices.chains_where(|other| other == chain),
            Some(&Telling::AllButChain(chain)) => self.choices.chains_where(|other| other != chain),
            Some(&Telling::Only(chunk)) => self.choices.only(chunk),
            Some(&Telling::AllBut(chunk)) => self.choices.all_but(chunk),
            Some(&Telling::AllButPair(a, b)) => self.choices.chains_where(|other| other != a && other != b),
            None => self.choices.random(&mut random(self.seed, number)),
        }
    }
}

/// The telling choices, in at most half of the bound: whole chains first, then chunks (a seeded sample of them, if there
/// are too many), then as many pairs of chains as fit.
fn telling(choices: &Choices, bound: u64, seed: u64) -> Vec<Telling> {
    let room = usize::try_from(bound / 2).unwrap_or(usize::MAX).max(2);
    let chains = choices.chains().len();
    let mut telling = vec![Telling::Nothing, Telling::Everything];
    telling.extend((0..chains).flat_map(|chain| [Telling::OnlyChain(chain), Telling::AllButChain(chain)]));
    let chunks = sample(choices.pending(), room.saturating_sub(telling.len()) / 2, seed);
    telling.extend(chunks.into_iter().flat_map(|chunk| [Telling::Only(chunk), Telling::AllBut(chunk)]));
    let pairs = (0..chains).flat_map(|a| (0..a).map(move |b| Telling::AllButPair(a, b)));
    telling.extend(pairs.take(room.saturating_sub(telling.len())));
    telling.truncate(room);
    telling
}

/// Up to `room` of the numbers below `count`.
fn sample(count: usize, room: usize, seed: u64) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    if count > room {
        let mut random = random(seed, u64::MAX);
        for index in 0..room {
            numbers.swap(index, random.usize(index..count));
        }
        numbers.truncate(room);
    }
    numbers
}
