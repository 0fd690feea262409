//! Sets and maps of line numbers, and of fingerprints, which are random already.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type LineSet = HashSet<u64, BuildHasherDefault<LineHasher>>;
pub(crate) type LineMap<V> = HashMap<u64, V, BuildHasherDefault<LineHasher>>;
pub(crate) type PrintSet = HashSet<u128, BuildHasherDefault<LineHasher>>;
pub(crate) type PrintMap<V> = HashMap<u128, V, BuildHasherDefault<LineHasher>>;

/// One multiplication: line numbers come from the program under test, not from an adversary.
#[derive(Default)]
pub(crate) struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The table looks at the highest bits and at the lowest; the golden ratio spreads over both.
        let product = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }

    #[expect(clippy::cast_possible_truncation, reason = "a fingerprint is as random in one half as in both")]
    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}
