//! The records: random keys, all different, and random values.

/// Where values are taken from: more than they all differ in, and small enough to stay in a cache.
const POOL_BYTES: usize = 16 << 10;

/// The records, which are numbered from zero.
#[derive(Debug)]
pub(crate) struct Records {
    pool: Vec<u8>,
    value_bytes: usize,
}

impl Records {
    /// Records with values of this length, at least eight.
    pub(crate) fn new(value_bytes: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(1);
        let pool = (0..POOL_BYTES + value_bytes).map(|_| random.u8(..)).collect();
        Self { pool, value_bytes }
    }

    /// The key of the record with this number: splitmix64, which is a permutation of all words.
    pub(crate) const fn key(number: u64) -> u64 {
        let mut word = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A key as text, in the same order: 21 bytes.
    pub(crate) fn string_key(key: u64) -> String {
        format!("user:{key:016x}")
    }

    /// Writes the value of the record with this key into `out`: the key, followed by bytes that do not compress.
    pub(crate) fn value_into(&self, key: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&key.to_le_bytes());
        let from = usize::try_from(key >> 32).unwrap_or_default() % POOL_BYTES;
        out.extend_from_slice(&self.pool[from..from + self.value_bytes - out.len()]);
    }

    /// Whether this is the value of this key: compares the length and the key in it.
    pub(crate) fn is_value(&self, key: u64, value: &[u8]) -> bool {
        value.len() == self.value_bytes && value.starts_with(&key.to_le_bytes())
    }
}
