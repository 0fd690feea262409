//! A block whose content is determined by its place and its write.

use std::fmt;

/// The size of a block, and its alignment in memory for direct I/O.
pub const BLOCK_BYTES: usize = 4096;

/// The place and the sequence number, before the random content.
const HEAD_BYTES: usize = 16;

/// The number of a write. Later writes to a slot have greater numbers.
pub type Sequence = u64;

/// 4 KiB of memory, aligned for direct I/O.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_BYTES]);

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// All zeroes: never written.
    Blank,
    /// The complete block of a write.
    Whole {
        /// Its place.
        place: u64,
        /// Its write.
        sequence: Sequence,
    },
    /// Anything else.
    Torn,
}

impl Block {
    /// A block of zeroes.
    #[must_use]
    pub const fn blank() -> Self {
        Self([0; BLOCK_BYTES])
    }

    /// The block that write `sequence` stores at `place`. Its random content depends on both.
    #[must_use]
    pub fn of_write(place: u64, sequence: Sequence) -> Self {
        let mut block = Self::blank();
        block.0[..8].copy_from_slice(&place.to_le_bytes());
        block.0[8..HEAD_BYTES].copy_from_slice(&sequence.to_le_bytes());
        fastrand::Rng::with_seed(place ^ sequence.rotate_left(32)).fill(&mut block.0[HEAD_BYTES..]);
        block
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> BlockState {
        let (words, _) = self.0.as_chunks::<8>();
        let (place, sequence) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        if self.0 == [0; BLOCK_BYTES] {
            BlockState::Blank
        } else if self.0 == Self::of_write(place, sequence).0 {
            BlockState::Whole { place, sequence }
        } else {
            BlockState::Torn
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Block").field(&self.state()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_state_round_trips() {
        assert_eq!(Block::blank().state(), BlockState::Blank);
        for (place, sequence) in [(0, 0), (0, 1), (7, 3), (u64::MAX, 1 << 40)] {
            assert_eq!(Block::of_write(place, sequence).state(), BlockState::Whole { place, sequence });
        }
    }

    #[test]
    fn mixture_of_two_writes_is_torn() {
        let (old, new) = (Block::of_write(5, 10), Block::of_write(5, 11));
        for tear in (8..BLOCK_BYTES).step_by(8) {
            let mut torn = old.clone();
            torn.0[..tear].copy_from_slice(&new.0[..tear]);
            // Before the first byte that differs there is no tear.
            let whole = torn.0 == old.0 || torn.0 == new.0;
            assert_eq!(torn.state() == BlockState::Torn, !whole, "torn at {tear}");
        }
    }

    #[test]
    fn torn_first_write_is_not_blank() {
        let mut torn = Block::blank();
        torn.0[64..128].copy_from_slice(&Block::of_write(5, 10).0[64..128]);
        assert_eq!(torn.state(), BlockState::Torn);
    }
}
