//! A bitmap with a bit for each line of a chunk, and a summary with a bit for each word of the bitmap. So a search can skip 4,096 lines at a time.

use core::ops::Range;

const WORD_BITS: u32 = u64::BITS;

#[derive(Clone, Debug)]
pub(super) struct Bitmap {
    words: Box<[u64]>,
    /// Bit `i` is set if `words[i]` is not zero.
    summary: Box<[u64]>,
    len: u32,
}

/// A mask of the bits `from..to` of a word. The range must not be empty.
#[inline]
const fn mask(from: u32, to: u32) -> u64 {
    (u64::MAX >> (WORD_BITS - (to - from))) << from
}

/// Sets or clears these bits of an array of words. The range must not be empty.
#[inline]
fn fill<const VALUE: bool>(words: &mut [u64], bits: Range<u32>) {
    let put = |word: &mut u64, mask: u64| if VALUE { *word |= mask } else { *word &= !mask };
    let (first, last) = ((bits.start / WORD_BITS) as usize, ((bits.end - 1) / WORD_BITS) as usize);
    let (from, to) = (bits.start % WORD_BITS, (bits.end - 1) % WORD_BITS + 1);
    let words = &mut words[first..=last];
    match words {
        [word] => put(word, mask(from, to)),
        [head, whole @ .., tail] => {
            put(head, mask(from, WORD_BITS));
            if !whole.is_empty() {
                whole.fill(if VALUE { u64::MAX } else { 0 });
            }
            put(tail, mask(0, to));
        }
        [] => {}
    }
}

impl Bitmap {
    /// A bitmap with all bits clear.
    pub(super) fn new(len: u32) -> Self {
        let words = len.div_ceil(WORD_BITS);
        let zeroes = |count: u32| vec![0; count as usize].into_boxed_slice();
        Self { words: zeroes(words), summary: zeroes(words.div_ceil(WORD_BITS)), len }
    }

    #[inline]
    pub(super) fn get(&self, bit: u32) -> bool {
        self.words[(bit / WORD_BITS) as usize] >> (bit % WORD_BITS) & 1 == 1
    }

    #[inline]
    pub(super) fn set(&mut self, bit: u32) {
        let word = bit / WORD_BITS;
        self.words[word as usize] |= 1 << (bit % WORD_BITS);
        self.summary[(word / WORD_BITS) as usize] |= 1 << (word % WORD_BITS);
    }

    #[inline]
    pub(super) fn clear(&mut self, bit: u32) {
        let word = bit / WORD_BITS;
        self.words[word as usize] &= !(1 << (bit % WORD_BITS));
        self.summarize(word);
    }

    #[inline]
    pub(super) fn set_range(&mut self, bits: Range<u32>) {
        if !bits.is_empty() {
            fill::<true>(&mut self.words, bits.clone());
            // No word of the range is zero now.
            fill::<true>(&mut self.summary, bits.start / WORD_BITS..(bits.end - 1) / WORD_BITS + 1);
        }
    }

    #[inline]
    pub(super) fn clear_range(&mut self, bits: Range<u32>) {
        if bits.is_empty() {
            return;
        }
        let (first, last) = (bits.start / WORD_BITS, (bits.end - 1) / WORD_BITS);
        fill::<false>(&mut self.words, bits);
        // All words between the first and the last are zero now.
        if first + 1 < last {
            fill::<false>(&mut self.summary, first + 1..last);
        }
        self.summarize(first);
        if last > first {
            self.summarize(last);
        }
    }

    /// The 64 bits from `bit` on. Bits beyond the bitmap's length are clear.
    #[inline]
    pub(super) fn window(&self, bit: u32) -> u64 {
        let word = |index: u32| self.words.get(index as usize).copied().unwrap_or(0);
        let (index, shift) = (bit / WORD_BITS, bit % WORD_BITS);
        let low = word(index) >> shift;
        if shift == 0 { low } else { low | word(index + 1) << (WORD_BITS - shift) }
    }

    /// The first set bit at or after `from`. The length of the bitmap if there is none.
    #[inline]
    pub(super) fn next_set(&self, from: u32) -> u32 {
        if from >= self.len {
            return self.len;
        }
        let word = from / WORD_BITS;
        let here = self.words[word as usize] & (u64::MAX << (from % WORD_BITS));
        if here != 0 {
            return word * WORD_BITS + here.trailing_zeros();
        }
        let mut at = (word + 1) / WORD_BITS;
        let mut keep = u64::MAX << ((word + 1) % WORD_BITS);
        while let Some(summary) = self.summary.get(at as usize) {
            let found = summary & keep;
            if found != 0 {
                let word = at * WORD_BITS + found.trailing_zeros();
                return word * WORD_BITS + self.words[word as usize].trailing_zeros();
            }
            (at, keep) = (at + 1, u64::MAX);
        }
        self.len
    }

    /// The last set bit that is lower than `before`. `None` if there is none.
    #[inline]
    pub(super) fn last_set(&self, before: u32) -> Option<u32> {
        let from = before.checked_sub(1)?;
        let word = from / WORD_BITS;
        let here = self.words[word as usize] & mask(0, from % WORD_BITS + 1);
        if here != 0 {
            return Some(word * WORD_BITS + here.ilog2());
        }
        let from = word.checked_sub(1)?;
        let mut keep = mask(0, from % WORD_BITS + 1);
        for at in (0..=from / WORD_BITS).rev() {
            let found = self.summary[at as usize] & keep;
            if found != 0 {
                let word = at * WORD_BITS + found.ilog2();
                return Some(word * WORD_BITS + self.words[word as usize].ilog2());
            }
            keep = u64::MAX;
        }
        None
    }

    /// The first clear bit at or after `from`. The length of the bitmap if there is none.
    pub(super) fn next_clear(&self, from: u32) -> u32 {
        let mut keep = u64::MAX << (from % WORD_BITS);
        for word in from / WORD_BITS..self.len.div_ceil(WORD_BITS) {
            let found = !self.words[word as usize] & keep;
            if found != 0 {
                return (word * WORD_BITS + found.trailing_zeros()).min(self.len);
            }
            keep = u64::MAX;
        }
        self.len
    }

    #[inline]
    fn summarize(&mut self, word: u32) {
        let any = u64::from(self.words[word as usize] != 0);
        let summary = &mut self.summary[(word / WORD_BITS) as usize];
        *summary = *summary & !(1 << (word % WORD_BITS)) | any << (word % WORD_BITS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTHS: [u32; 6] = [1, 63, 64, 65, 4097, 9000];

    proptest! {
        #[test]
        fn bitmap_matches_booleans(
            len in proptest::sample::select(&LENGTHS),
            steps in proptest::collection::vec((any::<u8>(), any::<u32>(), any::<u32>()), 1..60),
        ) {
            let (mut bitmap, mut plain) = (Bitmap::new(len), vec![false; len as usize]);
            for (kind, a, b) in steps {
                let (a, b) = ((a % len).min(b % len), (a % len).max(b % len));
                match kind % 4 {
                    0 => { bitmap.set(a); plain[a as usize] = true; }
                    1 => { bitmap.clear(a); plain[a as usize] = false; }
                    2 => { bitmap.set_range(a..b); plain[a as usize..b as usize].fill(true); }
                    _ => { bitmap.clear_range(a..b); plain[a as usize..b as usize].fill(false); }
                }
                let position = |from: u32, wanted: bool| {
                    let found = plain[from as usize..].iter().position(|bit| *bit == wanted);
                    found.map_or(len as usize, |at| from as usize + at)
                };
                for at in [0, a, b, len - 1] {
                    prop_assert_eq!(bitmap.get(at), plain[at as usize]);
                    prop_assert_eq!(bitmap.next_set(at) as usize, position(at, true));
                    prop_assert_eq!(bitmap.next_clear(at) as usize, position(at, false));
                    let last = plain[..at as usize].iter().rposition(|bit| *bit);
                    prop_assert_eq!(bitmap.last_set(at).map(|bit| bit as usize), last);
                }
                let bit = |at: u32| plain.get(at as usize).copied().unwrap_or(false);
                let window = (0..64).filter(|at| bit(a + at)).fold(0, |word, at| word | 1_u64 << at);
                prop_assert_eq!(bitmap.window(a), window);
            }
            prop_assert_eq!(bitmap.next_set(len), len);
        }
    }
}
