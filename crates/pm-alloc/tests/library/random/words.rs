//! Random programs in two lanes write the same words: by the log, in place, and by long writes. A line of the log is corrupted between stopped
//! recoveries. Then each word has the value of its last transaction, unless that transaction was discarded.

use super::prelude::*;
use crate::discarding::{entry_lines, heap, opened, options, with_worker};
use std::collections::HashMap;

const WORDS: u64 = 64;

/// The number of words of a long write, which is made in place.
const LONG: u64 = 33;

/// The kind of an operation, with its effect on the words of the operation.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Writes each word.
    Each,
    /// Stores the first word in place.
    InPlace,
    /// Writes the first `LONG` words, which are adjacent, and then one more word, if the operation has it.
    Long,
    Checkpoint,
}

/// A random operation: the kind and the words. A lower `most` excludes the last cases.
fn plan(most: u64, rng: &mut Rng) -> (Kind, Vec<u64>) {
    let long = |rng: &mut Rng| {
        let from = rng.below(WORDS - LONG - 1);
        from..from + LONG
    };
    match rng.below(most) {
        0..6 => (Kind::Each, (0..1 + rng.below(7)).map(|_| rng.below(WORDS)).collect()),
        6..9 => (Kind::InPlace, vec![rng.below(WORDS)]),
        9 => (Kind::Long, long(rng).collect()),
        10 => (Kind::Long, long(rng).chain([rng.below(WORDS)]).collect()),
        _ => (Kind::Checkpoint, vec![]),
    }
}

fn run_op(heap: &SimHeap, area: u64, kind: Kind, words: &[u64], id: u64) {
    let at = |word: u64| area + 8 * word;
    let done: Result<(), TxError> = match kind {
        Kind::Each => {
            heap.transaction(|tx| words.iter().try_for_each(|&word| tx.write(link_to(at(word)), &id)))
        }
        Kind::InPlace => heap.view(|view| view.store_u64(link_to(at(words[0])), id)),
        Kind::Long => heap.transaction(|tx| {
            tx.write(link_to(at(words[0])), &[id; LONG as usize])?;
            words.get(LONG as usize).map_or(Ok(()), |&word| tx.write(link_to(at(word)), &id))
        }),
        Kind::Checkpoint => return heap.checkpoint().unwrap(),
    };
    done.unwrap();
}

/// Runs the program of a seed. Returns whether the corrupted line had to be discarded.
fn run(seed: u64) -> bool {
    let mut rng = Rng::of(seed.wrapping_mul(77) + 5);
    let heap = heap();
    let made = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc_zeroed::<u64>(WORDS)?.offset()));
    let area = made.unwrap();
    let sim = Arc::clone(heap.pool().pmem().sampled());
    let mut last = vec![0_u64; WORDS as usize];
    let mut owner: HashMap<usize, u64> = HashMap::new();
    let mut ops = vec![];
    with_worker(&heap, |other| {
        let mut before = sim.power_failure();
        let (other_twelfths, most) = (rng.below(12), [8, 12][rng.below(2) as usize]);
        for id in 1..=5 + rng.below(50) {
            let (kind, words) = plan(most, &mut rng);
            let is_other = rng.below(12) < other_twelfths;
            ops.push((id, is_other, kind, words.clone()));
            words.iter().for_each(|&word| last[word as usize] = id);
            if is_other {
                other.run(move |heap| run_op(heap, area, kind, &words, id));
            } else {
                run_op(&heap, area, kind, &words, id);
            }
            let after = sim.power_failure();
            for line in entry_lines(&heap, &before, &after) {
                owner.insert(line, id);
            }
            before = after;
        }
    });
    let left = sim.state().crash(&mut rng);
    core::mem::forget(heap);
    let mut left = stopped_recoveries(left, &options(), &mut rng);
    let mut lines: Vec<_> = owner.into_iter().collect();
    lines.sort_unstable();
    if lines.is_empty() {
        return false;
    }
    let newest = lines.iter().map(|line| line.1).max().unwrap();
    let recent: Vec<_> = lines.iter().copied().filter(|line| line.1 + 8 > newest).collect();
    let of_lane = |lane: bool| -> Vec<_> {
        let is_of = |id: u64| ops.iter().any(|op| op.0 == id && op.1 == lane);
        let mut ids: Vec<u64> = lines.iter().map(|line| line.1).filter(|&id| is_of(id)).collect();
        ids.sort_unstable();
        ids.dedup();
        let last: Vec<u64> = ids.iter().rev().take(2).copied().collect();
        lines.iter().copied().filter(|line| last.contains(&line.1)).collect()
    };
    let lines = match rng.below(4) {
        0 => lines,
        1 => recent,
        2 => of_lane(false),
        _ => of_lane(true),
    };
    if lines.is_empty() {
        return false;
    }
    let (line, victim) = lines[rng.below(lines.len() as u64) as usize];
    left.visible[line + 20] ^= 4;
    left.durable[line + 20] ^= 4;
    let is_refused_at = |left: &State| opened(Arc::new(SampledPmem::of(left.clone())), &options()).is_none();
    let was_refused = is_refused_at(&left);
    let discarding = options().discard_corrupted_records(true);
    let left = stopped_recoveries(left, &discarding, &mut rng);
    // A power failure may have reverted a floor that was visible.
    let is_refused = was_refused || is_refused_at(&left);
    let sim = Arc::new(SampledPmem::of(left));
    core::mem::forget(Heap::attach(any(Arc::clone(&sim)), &discarding).unwrap());
    let found = sim.power_failure().durable;
    for (word, &id) in last.iter().enumerate() {
        let at = area as usize + 8 * word;
        let value = u64::from_le_bytes(found[at..at + 8].try_into().unwrap());
        assert!(
            value == id || is_refused && id == victim,
            "PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: word {word} has {value}; {id} wrote it last, {victim} is discarded: {ops:?}"
        );
    }
    is_refused
}

#[test]
fn discarding_keeps_words_of_other_transactions() {
    let is_discarded = each_seed(200, run);
    let count = is_discarded.iter().filter(|is_discarded| **is_discarded).count();
    assert!(count > is_discarded.len() / 8, "{count}");
}
