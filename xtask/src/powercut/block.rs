//! A block that proves where it belongs, which write it is of, and that it is whole.

use std::fmt;

/// The size of a block, and its alignment in memory, as direct I/O wants it.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes before the filling: place, sequence number, checksum.
const HEAD_BYTES: usize = 24;

/// The number of a write: later writes to a slot have greater ones.
pub type Sequence = u64;

/// 4 KiB of memory, aligned for direct I/O.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_BYTES]);

/// What a block says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// All zeroes: never written.
    Blank,
    /// Whole.
    Whole {
        /// The place that it was written for.
        place: u64,
        /// The write that it is of.
        sequence: Sequence,
    },
    /// Not what any write has written.
    Torn,
}

impl Block {
    /// A block of zeroes.
    #[must_use]
    pub const fn blank() -> Self {
        Self([0; BLOCK_BYTES])
    }

    /// The block that write `sequence` puts at `place`: its every byte depends on both.
    #[must_use]
    pub fn of_write(place: u64, sequence: Sequence) -> Self {
        let mut block = Self::blank();
        fastrand::Rng::with_seed(place ^ sequence.rotate_left(32)).fill(&mut block.0[HEAD_BYTES..]);
        block.0[..8].copy_from_slice(&place.to_le_bytes());
        block.0[8..16].copy_from_slice(&sequence.to_le_bytes());
        let sum = block.checksum();
        block.0[16..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// What it is.
    #[must_use]
    pub fn state(&self) -> BlockState {
        if self.0.iter().all(|byte| *byte == 0) {
            BlockState::Blank
        } else if self.word(16) == self.checksum() {
            BlockState::Whole { place: self.word(0), sequence: self.word(8) }
        } else {
            BlockState::Torn
        }
    }

    /// FNV-1a by words, over everything but the checksum itself.
    fn checksum(&self) -> u64 {
        let words = (0..16).step_by(8).chain((HEAD_BYTES..BLOCK_BYTES).step_by(8));
        words.fold(0xcbf2_9ce4_8422_2325, |sum, offset| {
            (sum ^ self.word(offset)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    fn word(&self, offset: usize) -> u64 {
        let bytes = self.0[offset..offset + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
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
            // In front of the first byte that differs there is nothing to tear.
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
