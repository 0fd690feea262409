//! A store behaves like a `BTreeMap`, also after it was closed, and after it was abandoned like a killed process.

use pm_btree::{Store, StoreOptions};
use pm_core::{Pmem, Region};
use pm_testkit::any;
use std::collections::BTreeMap;
use std::ops::Bound;

/// The number of operations of each test.
fn operation_count() -> u64 {
    std::env::var("PM_MODEL_OPS").map_or(100_000, |count| count.parse().expect("PM_MODEL_OPS is a number"))
}

fn options() -> StoreOptions {
    StoreOptions::new()
}

/// A type of keys or values in the test, with a small set of values.
trait Sample {
    type Owned: Ord + Clone + std::fmt::Debug;
    fn sample(random: &mut fastrand::Rng) -> Self::Owned;
}

struct Word;
impl Sample for Word {
    type Owned = u64;
    fn sample(random: &mut fastrand::Rng) -> u64 {
        // Extremes, dense and sparse keys.
        match random.u32(..10) {
            0 => *random.choice(&[0, 1, u64::MAX, u64::MAX - 1]).expect("there are some"),
            1..5 => random.u64(..2_000),
            _ => (random.u64(..3_000)).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }
}

struct Text;
impl Sample for Text {
    type Owned = Vec<u8>;
    /// Short and long keys, with long common prefixes, zeros, and keys that are prefixes of others.
    fn sample(random: &mut fastrand::Rng) -> Vec<u8> {
        let prefix: &[u8] = match random.u32(..5) {
            0 => b"",
            1 => b"user:profile:",
            2 => b"user:pro",
            3 => &[0; 9],
            _ => b"user:profile:settings:notifications:",
        };
        let mut key = prefix.to_vec();
        let number = random.u32(..400);
        match random.u32(..3) {
            0 => key.extend_from_slice(number.to_string().as_bytes()),
            1 => key.extend(std::iter::repeat_n(0, number as usize % 12)),
            _ => key.extend_from_slice(&number.to_be_bytes()),
        }
        key
    }
}

struct Value;
impl Value {
    fn sample(random: &mut fastrand::Rng) -> Vec<u8> {
        let len = match random.u32(..8) {
            0..4 => random.usize(..9),
            4..7 => random.usize(..300),
            _ => random.usize(..4_000),
        };
        (0..len).map(|_| random.u8(..)).collect()
    }
}

/// Runs random operations on a table with these keys and on a map, and compares all results. Reopens the store several times.
macro_rules! model_test {
    ($name:ident, $options:expr, $key:ty, $sample:ty, $view:expr, $own:expr) => {
        #[test]
        fn $name() {
            let options: StoreOptions = $options;
            let mut random = fastrand::Rng::with_seed(7);
            let pmem = any(Region::anonymous(256 << 20).unwrap());
            let mut store = Store::format(pmem.clone(), &options).unwrap();
            let mut map: BTreeMap<<$sample as Sample>::Owned, Vec<u8>> = BTreeMap::new();
            let view = $view;
            let own = $own;
            let count = operation_count();
            for number in 0..count {
                if number % (count / 8 + 1) == count / 16 {
                    let is_clean = random.bool();
                    store = reopen(store, &pmem, &options, is_clean, [0, 1, 100, 100_000][random.usize(..4)]);
                }
                if number % (count / 8 + 1) == count / 10 {
                    // Leaves become empty, and are unlinked.
                    let (low, high) = (<$sample>::sample(&mut random), <$sample>::sample(&mut random));
                    let is_kept = |key: &_| *key < low || *key > high;
                    map.retain(|key, _| is_kept(key));
                    let table = store.table::<$key, &[u8]>("t").unwrap();
                    table.retain(|key, _| is_kept(&own(key))).unwrap();
                    drop(table);
                    store.compact().unwrap();
                }
                let table = store.table::<$key, &[u8]>("t").unwrap();
                let key = <$sample>::sample(&mut random);
                match random.u32(..100) {
                    0..45 => {
                        let value = Value::sample(&mut random);
                        let is_new = table.insert(view(&key), &value).unwrap();
                        assert_eq!(is_new, map.insert(key, value).is_none());
                    }
                    45..65 => assert_eq!(table.remove(view(&key)).unwrap(), map.remove(&key).is_some()),
                    65..90 => {
                        let found = table.get(view(&key)).unwrap();
                        assert_eq!(
                            found.as_ref().map(|guard| guard.value()),
                            map.get(&key).map(Vec::as_slice)
                        );
                    }
                    90..98 => {
                        let other = <$sample>::sample(&mut random);
                        let (low, high) = if key <= other { (key, other) } else { (other, key) };
                        let bounds = match random.u32(..4) {
                            0 if low < high => (Bound::Excluded(low), Bound::Excluded(high)),
                            1 => (Bound::Unbounded, Bound::Included(high)),
                            2 => (Bound::Included(low), Bound::Unbounded),
                            _ => (Bound::Included(low), Bound::Included(high)),
                        };
                        let viewed = (bounds.0.as_ref().map(view), bounds.1.as_ref().map(view));
                        let mut ours = table.range(viewed);
                        let mut theirs = map.range(bounds);
                        for _ in 0..random.usize(..200) {
                            let (ours, theirs) = if random.u32(..3) > 0 {
                                (ours.next(), theirs.next())
                            } else {
                                (ours.next_back(), theirs.next_back())
                            };
                            let ours = ours.map(|entry| entry.unwrap());
                            let ours = ours.as_ref().map(|(key, value)| (own(key.value()), value.value()));
                            assert_eq!(ours, theirs.map(|(key, value)| (key.clone(), value.as_slice())));
                            if theirs_is_none(&ours) {
                                break;
                            }
                        }
                    }
                    _ => {
                        let first = table.first().unwrap().map(|(key, _)| own(key.value()));
                        assert_eq!(first.as_ref(), map.keys().next());
                        let last = table.last().unwrap().map(|(key, _)| own(key.value()));
                        assert_eq!(last.as_ref(), map.keys().next_back());
                        assert_eq!(table.len().unwrap(), map.len() as u64);
                    }
                }
            }
            let store = reopen(store, &pmem, &options, false, 0);
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{report:?}");
            let table = store.table::<$key, &[u8]>("t").unwrap();
            let all: Vec<_> = table.range(..).map(|entry| entry.unwrap()).collect();
            assert_eq!(all.len(), map.len());
            for ((key, value), (expected_key, expected_value)) in all.iter().zip(&map) {
                assert_eq!(
                    (own(key.value()), value.value()),
                    (expected_key.clone(), expected_value.as_slice())
                );
            }
            let mut blocks = store.heap().blocks();
            blocks.sort_unstable();
            assert_eq!(blocks, store.blocks(), "no block is leaked");
        }
    };
}

fn theirs_is_none<T>(entry: &Option<T>) -> bool {
    entry.is_none()
}

/// Opens the store again. The open visits `swept` leaves.
fn reopen<P: Pmem + Clone>(
    store: Store<P>,
    pmem: &P,
    options: &StoreOptions,
    is_clean: bool,
    swept: u64,
) -> Store<P> {
    let options = &options.clone().sweep_at_open(swept);
    if is_clean {
        store.close().unwrap();
        return Store::attach(pmem.clone(), options).unwrap();
    }
    // As after a kill: nothing is flushed, and the state words say that the session goes on. The lock of the pool is released with the store.
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    drop(store);
    for (offset, chunk) in (0..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
        pmem.store(offset, chunk);
    }
    Store::attach(pmem.clone(), options).unwrap()
}

fn word(key: &u64) -> u64 {
    *key
}
fn bytes(key: &Vec<u8>) -> &[u8] {
    key
}

model_test!(words, options(), u64, Word, word, |key: u64| key);
model_test!(words_in_small_nodes, options().node_slots(4).verify_reads(true), u64, Word, word, |key: u64| {
    key
});
model_test!(strings, options(), &[u8], Text, bytes, |key: &[u8]| key.to_vec());
model_test!(
    strings_in_small_nodes,
    options().node_slots(6).verify_reads(true),
    &[u8],
    Text,
    bytes,
    |key: &[u8]| key.to_vec()
);
