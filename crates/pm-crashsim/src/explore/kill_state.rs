//! What a kill leaves, line by line: what is visible, and what of it is durable.

use crate::chunk::Chunk;
use crate::line::{LineMap, LineSet};
use crate::machine::Machine;
use crate::splitmix::{fingerprint, fingerprint_of};

/// The state that a kill leaves, told apart from others by fingerprints. What was flushed and not fenced makes no difference,
/// nor does which thread stored what.
pub(super) struct KillState {
    /// Of lines that are not as at the start.
    lines: LineMap<u128>,
    /// Of all of them.
    pub(super) fingerprint: u128,
}

impl KillState {
    /// Of a machine in which the process was killed, and which differs from the start in `stored` at most.
    pub(super) fn of(machine: &Machine<'_>, stored: &LineSet) -> Self {
        let mut pending: LineMap<Vec<(Chunk, u64)>> = LineMap::default();
        for chunks in machine.write_back() {
            // Where a unit is longer than a line, the order in it reaches over lines.
            let reaches = chunks.iter().any(|chunk| chunk.line() != chunks[0].line());
            let unit = if reaches { short(fingerprint_of(words(chunks.iter()))) | 1 } else { 1 };
            chunks.iter().for_each(|chunk| pending.entry(chunk.line()).or_default().push((*chunk, unit)));
        }
        for chunk in machine.non_temporal().flatten() {
            pending.entry(chunk.line()).or_default().push((*chunk, 0));
        }
        let mut lines = LineMap::default();
        for &line in stored {
            let durable = machine.durable_line(line);
            let mut chunks = pending.remove(&line).unwrap_or_default();
            if chunks.is_empty() && durable == machine.start().line(line) {
                continue;
            }
            chunks.sort_by_key(|(chunk, _)| (chunk.event, chunk.word, chunk.first_byte));
            let of_durable = fingerprint(line, durable);
            let units = chunks.iter().map(|&(_, unit)| unit);
            let all = [short(of_durable), short(of_durable >> 64)].into_iter();
            let all = all.chain(units).chain(words(chunks.iter().map(|(chunk, _)| chunk)));
            lines.insert(line, fingerprint_of(core::iter::once(line).chain(all)));
        }
        let fingerprint = lines.values().fold(0, |sum, of_line| sum ^ of_line);
        Self { lines, fingerprint }
    }

    /// Whether the two states differ in any of these lines.
    pub(super) fn differs_in(&self, other: &Self, lines: &LineSet) -> bool {
        lines.iter().any(|line| self.lines.get(line) != other.lines.get(line))
    }
}

/// What tells chunks apart, in their order: the numbers of events are not it, but which are of one event is.
fn words<'c>(chunks: impl Iterator<Item = &'c Chunk>) -> impl Iterator<Item = u64> {
    let mut before = None;
    chunks.flat_map(move |chunk| {
        let is_of_same = before.replace(chunk.event) == Some(chunk.event);
        let shape = u64::from(chunk.mask) << 16 | u64::from(chunk.first_byte) << 8;
        let shape = shape | u64::from(chunk.in_pair) << 1 | u64::from(is_of_same);
        [chunk.word, shape, u64::from_le_bytes(chunk.value)]
    })
}

#[expect(clippy::cast_possible_truncation, reason = "half of a fingerprint is wanted")]
const fn short(print: u128) -> u64 {
    print as u64
}
