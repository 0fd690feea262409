//! Level Hashing: buckets of slots, each slot valid when its token is set.

use crate::harness::*;

/// A bucket: the tokens of its slots, as bits of one word, and on the next line the slots.
const TOKENS: u64 = 0;
const SLOTS: u64 = 64;
const SLOT_COUNT: u64 = 4;
const SLOT_BYTES: u64 = 16;

type Pairs = BTreeMap<u64, u64>;

const fn slot_at(slot: u64) -> u64 {
    SLOTS + slot * SLOT_BYTES
}

fn taken_slots(pmem: &SimPmem) -> impl Iterator<Item = u64> {
    let tokens = pmem.load_u64(TOKENS);
    (0..SLOT_COUNT).filter(move |slot| tokens >> slot & 1 == 1)
}

fn pairs(pmem: &SimPmem) -> Pairs {
    taken_slots(pmem).map(|slot| load_words::<2>(pmem, slot_at(slot)).into()).collect()
}

fn free_slot(pmem: &SimPmem) -> u64 {
    let tokens = pmem.load_u64(TOKENS);
    (0..SLOT_COUNT).find(|slot| tokens >> slot & 1 == 0).expect("the bucket has room")
}

fn insert(pmem: &SimPmem, form: Form, key: u64, value: u64) -> Done {
    let slot = free_slot(pmem);
    pmem.store(slot_at(slot), &bytes_of(&[key, value])); //~ B01 lost: fence missing
    pmem.flush(slot_at(slot), SLOT_BYTES);
    if form == Form::Fixed {
        pmem.fence()?;
    }
    pmem.put(TOKENS, pmem.load_u64(TOKENS) | 1 << slot)
}

/// B01, reported by Witcher: an insert sets the slot's token while key and value are flushed but not fenced. A token
/// that overtakes them makes an empty slot valid: a pair that was never inserted.
pub(crate) fn token_set_before_its_slot_is_fenced(form: Form) -> Case {
    let states = [&[][..], &[(1, 10)], &[(1, 10), (2, 20)]].map(|s| s.iter().copied().collect());
    let insert = move |pmem: &SimPmem, key| insert(pmem, form, key, 10 * key);
    Case::steps(image(|_| ()), [1, 2], insert, states, |pmem| Ok(pairs(pmem)))
}

/// Puts the new value into another slot, then lets the tokens change over.
fn update(pmem: &SimPmem, form: Form, key: u64, value: u64) -> Done {
    let old = taken_slots(pmem).find(|&slot| pmem.load_u64(slot_at(slot)) == key).expect("is there");
    let new = free_slot(pmem);
    pmem.store(slot_at(new), &bytes_of(&[key, value]));
    pmem.persist(slot_at(new), SLOT_BYTES)?;
    let mut tokens = pmem.load_u64(TOKENS) & !(1 << old);
    if form == Form::Bug {
        // teeth: the planted bug's own
        pmem.put(TOKENS, tokens)?; //~ B02 kept
    }
    tokens |= 1 << new;
    pmem.put(TOKENS, tokens)
}

/// B02, reported by Witcher: an update clears the token of the old slot, then sets that of the new one. A crash between
/// loses the key, old value and new. Corrected, both bits change in one word at once.
pub(crate) fn old_token_cleared_before_the_new_one_is_set(form: Form) -> Case {
    Case::steps(
        image(|pmem| insert(pmem, Form::Fixed, 1, 10)),
        [11],
        move |pmem, value| update(pmem, form, 1, value),
        [Pairs::from([(1, 10)]), Pairs::from([(1, 11)])],
        |pmem| Ok(pairs(pmem)),
    )
}

/// The table: which descriptor holds, and two of them, each a capacity and where the buckets are.
const CURRENT: u64 = 0;
const DESCRIPTORS: [u64; 2] = [64, 128];
const LEVELS: [u64; 2] = [1024, 2048];

fn bucket_of(key: u64, capacity: u64, level: u64) -> u64 {
    level + key % capacity * SLOT_BYTES
}

fn get(pmem: &SimPmem, key: u64) -> Option<u64> {
    let [capacity, level] = load_words(pmem, pmem.load_u64(CURRENT));
    let [found, value] = load_words(pmem, bucket_of(key, capacity, level));
    (found == key).then_some(value)
}

/// Moves all pairs to a level twice as large.
fn expand(pmem: &SimPmem, form: Form, keys: [u64; 2]) -> Done {
    let [old_capacity, _] = load_words(pmem, DESCRIPTORS[0]);
    let capacity = 2 * old_capacity;
    let values = keys.map(|key| get(pmem, key).expect("is there"));
    if form == Form::Bug {
        // teeth: the planted bug's own
        pmem.put(DESCRIPTORS[0], capacity)?; //~ B03 kept
    }
    for (key, value) in keys.into_iter().zip(values) {
        pmem.store(bucket_of(key, capacity, LEVELS[1]), &bytes_of(&[key, value]));
    }
    pmem.flush(LEVELS[1], capacity * SLOT_BYTES);
    pmem.store(DESCRIPTORS[1], &bytes_of(&[capacity, LEVELS[1]]));
    pmem.flush(DESCRIPTORS[1], 16);
    pmem.fence()?;
    pmem.put(CURRENT, DESCRIPTORS[1])
}

/// B03, reported by Witcher: an expansion doubles the capacity before the new buckets exist. Keys are then looked for where no bucket is, and none of
/// those that hash differently is found. Corrected, capacity and buckets change together, by one pointer.
pub(crate) fn capacity_bumped_before_the_new_buckets_exist(form: Form) -> Case {
    const KEYS: [u64; 2] = [1, 2];
    let before = image(|pmem| {
        pmem.store_u64(CURRENT, DESCRIPTORS[0]);
        pmem.store(DESCRIPTORS[0], &bytes_of(&[2, LEVELS[0]]));
        for key in KEYS {
            pmem.store(bucket_of(key, 2, LEVELS[0]), &bytes_of(&[key, 10 * key]));
        }
    });
    Case::steps(
        before,
        [KEYS],
        move |pmem, keys| expand(pmem, form, keys),
        [2, 4],
        |pmem| {
            assert_eq!(KEYS.map(|key| get(pmem, key)), [Some(10), Some(20)]);
            let [capacity, _] = load_words(pmem, pmem.load_u64(CURRENT));
            Ok(capacity)
        },
    )
}
