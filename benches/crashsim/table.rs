//! A hash table with open addressing, during 1,000 insertions and removals: an index of tokens and keys, and a line for each value. The token
//! is a checksum of key and value, so that an insertion needs one fence. Recovery scans the index and counts the entries with valid values.

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Coverage, Crash, Explorer, Failure, Image, Run};

const SLOTS: u64 = 1024;
const OPERATIONS: u64 = 1000;

/// The index, four slots to a line: the token, then the key.
const SLOT_BYTES: u64 = 16;
const KEY: u64 = 8;
/// The values, in the order of the slots.
const VALUES: u64 = SLOTS * SLOT_BYTES;
const VALUE_WORDS: usize = 4;
pub(crate) const REGION_BYTES: u64 = VALUES + SLOTS * 64;

/// The token of a slot whose key was removed; that of an unused slot is zero.
const REMOVED: u64 = 2;

/// The contents of a table: the number of keys, and a sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    keys: u64,
    sum: u64,
}

/// An operation.
#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u64),
    Remove(u64),
}

pub(crate) fn explore(explorer: &Explorer, image: &Image) -> Result<Coverage, Box<Failure>> {
    let summaries = summaries();
    let operation = |run: &Run<()>| {
        for number in 0..OPERATIONS {
            match op(number) {
                Op::Insert(key) => insert(&**run.pmem(), key)?,
                Op::Remove(key) => remove(&**run.pmem(), key)?,
            }
            run.ack(());
        }
        Ok::<(), FenceError>(())
    };
    let check = |crash: &Crash<'_, ()>| {
        let (found, acked) = (recover(&**crash.pmem()), crash.acked().len());
        let allowed = &summaries[acked..summaries.len().min(acked + 2)];
        match allowed.contains(&found) {
            true => Ok(()),
            false => Err(format!("{found:?} after {acked} operations, where {allowed:?} are allowed")),
        }
    };
    explorer.explore(image, operation, check)
}

/// Three insertions of new keys, and a removal of the last of them.
const fn op(number: u64) -> Op {
    if number % 4 == 3 { Op::Remove(number) } else { Op::Insert(number + 1) }
}

/// The contents before the first operation, and after each.
fn summaries() -> Vec<Summary> {
    let mut summary = Summary::default();
    let mut summaries = vec![summary];
    for number in 0..OPERATIONS {
        match op(number) {
            Op::Insert(key) => summary.insert(key),
            Op::Remove(key) => summary.remove(key),
        }
        summaries.push(summary);
    }
    summaries
}

impl Summary {
    const fn insert(&mut self, key: u64) {
        self.keys += 1;
        self.sum = self.sum.wrapping_add(hash(key));
    }

    const fn remove(&mut self, key: u64) {
        self.keys -= 1;
        self.sum = self.sum.wrapping_sub(hash(key));
    }
}

fn insert(pmem: &impl Pmem, key: u64) -> Result<(), FenceError> {
    let slot = probe(key).find(|&slot| pmem.load_u64(slot * SLOT_BYTES) == 0).expect("more slots than keys");
    let value = value(key);
    let bytes: Vec<u8> = value.iter().flat_map(|word| word.to_le_bytes()).collect();
    pmem.store(VALUES + slot * 64, &bytes);
    pmem.flush(VALUES + slot * 64, bytes.len() as u64);
    pmem.store_u64(slot * SLOT_BYTES + KEY, key);
    pmem.store_u64(slot * SLOT_BYTES, token(key, &value));
    pmem.persist(slot * SLOT_BYTES, SLOT_BYTES)
}

fn remove(pmem: &impl Pmem, key: u64) -> Result<(), FenceError> {
    let slot = probe(key).find(|slot| pmem.load_u64(slot * SLOT_BYTES + KEY) == key).expect("was inserted");
    pmem.store_u64(slot * SLOT_BYTES, REMOVED);
    pmem.persist(slot * SLOT_BYTES, 8)
}

fn recover(pmem: &impl Pmem) -> Summary {
    let mut summary = Summary::default();
    for slot in 0..SLOTS {
        let found = pmem.load_u64(slot * SLOT_BYTES);
        if found <= REMOVED {
            continue;
        }
        let key = pmem.load_u64(slot * SLOT_BYTES + KEY);
        let value: [u64; VALUE_WORDS] =
            core::array::from_fn(|word| pmem.load_u64(VALUES + slot * 64 + word as u64 * 8));
        if found == token(key, &value) {
            summary.insert(key);
        }
    }
    summary
}

/// The slots of a key in probing order.
fn probe(key: u64) -> impl Iterator<Item = u64> {
    (0..SLOTS).map(move |step| hash(key).wrapping_add(step) % SLOTS)
}

fn value(key: u64) -> [u64; VALUE_WORDS] {
    core::array::from_fn(|word| hash(key ^ (word as u64) << 32))
}

/// A checksum that differs from the other tokens.
fn token(key: u64, value: &[u64]) -> u64 {
    value.iter().fold(hash(key), |sum, &word| hash(sum ^ word)) | 1 << 63
}

const fn hash(key: u64) -> u64 {
    let product = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ product >> 29
}
