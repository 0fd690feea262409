//! Free blocks, beside each other, that have a wanted length together: whoever gets them needs no header but its own.

use super::chunk::ChunkMap;
use super::hints::Hint;
use core::ops::RangeInclusive;

/// Lines that a map has in one word.
const WORD_LINES: u32 = u64::BITS;

/// Words of maps, of those where blocks start, that one search goes through: 512 KiB of the heap, in a quarter of a
/// microsecond. With four times as many a benchmark's heap was written to 0.1 % less.
const WORDS_MAX: usize = 128;

/// Where the next search begins. It goes round, so that all free space takes its turn, and none wears out before the rest.
#[derive(Debug, Default)]
pub(super) struct Runs {
    slot: u32,
    line: u32,
}

impl Runs {
    /// Where there are free blocks with the fewest of `wanted` lines together, or else with more of them, and with how many.
    #[inline]
    pub(super) fn find(
        &mut self,
        wanted: RangeInclusive<u32>,
        slots: &[Option<Box<ChunkMap>>],
    ) -> Option<(Hint, u32)> {
        let (fewest, most) = (*wanted.start(), *wanted.end());
        let mut close = None;
        let mut words = WORDS_MAX;
        // The chunk where it begins comes last, too: what lies in front.
        for _ in 0..=slots.len() {
            if let Some(map) = slots.get(self.slot as usize).and_then(Option::as_ref) {
                while self.line < map.lines && words > 0 {
                    let more = if close.is_none() { most } else { fewest };
                    if let Some((line, lines)) = map.find_run(self.line, fewest..=more) {
                        let found = (Hint { slot: self.slot, line }, lines);
                        if lines == fewest {
                            return Some(found);
                        }
                        close = Some(found);
                    }
                    words -= 1;
                    // Where no block starts there is nothing to look at.
                    let next = map.starts.next_set(self.line + WORD_LINES);
                    self.line = next - next % WORD_LINES;
                }
                if words == 0 {
                    break;
                }
            }
            self.line = 0;
            self.slot = if self.slot as usize + 1 < slots.len() { self.slot + 1 } else { 0 };
        }
        close
    }
}
