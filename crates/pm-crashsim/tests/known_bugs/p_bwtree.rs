//! P-BwTree: a node is changed by a delta record in front of its chain. Records come from a chunk that fills downwards.

use crate::harness::*;

/// The mapping table's one entry, the chunk's tail, and the chunk: records of key, value and next, a line each.
const MAPPING: u64 = 0;
const TAIL: u64 = 64;
const CHUNK: u64 = 128;
const RECORD_COUNT: u64 = 8;

/// The chain from the mapping on: the newest record of a key holds.
fn contents(pmem: &SimPmem) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    let mut record = pmem.load_u64(MAPPING);
    for _ in 0..RECORD_COUNT {
        if record == 0 {
            break;
        }
        let [key, value, next] = load_words(pmem, record);
        found.entry(key).or_insert(value);
        record = next;
    }
    assert_eq!(record, 0, "the chain ends");
    found
}

/// `tail.fetch_sub(1)`. What it returns is the caller's own.
fn fetch_sub_tail(pmem: &SimPmem) -> u64 {
    loop {
        let tail = pmem.load_u64(TAIL);
        let taken = pmem.compare_exchange_u64(TAIL, tail, tail - 1); //~ B13 lost: flush missing
        if taken.is_ok() {
            return tail - 1;
        }
    }
}

fn insert(pmem: &SimPmem, form: Form, key: u64, value: u64) -> Done {
    let record = CHUNK + 64 * fetch_sub_tail(pmem);
    if form == Form::Fixed {
        pmem.flush(TAIL, 8);
    }
    pmem.store(record, &bytes_of(&[key, value, pmem.load_u64(MAPPING)]));
    pmem.persist(record, 24)?;
    pmem.put(MAPPING, record)
}

/// B13, reported by Witcher: the allocation of a delta record decrements the chunk's tail and never flushes it. After a
/// crash the tail is back where it was, and the next insertion overwrites a record that the chain goes through.
pub(crate) fn fetch_sub_is_never_flushed(form: Form) -> Case {
    let empty_chunk = image(|pmem| pmem.store_u64(TAIL, RECORD_COUNT));
    let states = [&[][..], &[(1, 10)], &[(1, 10), (2, 20)]].map(|s| s.iter().copied().collect());
    let insert_key = move |pmem: &SimPmem, key| insert(pmem, form, key, 10 * key);
    Case::steps(empty_chunk, [1, 2], insert_key, states, |pmem| {
        let found = contents(pmem);
        let later = copy(pmem);
        insert(&later, Form::Fixed, 3, 30)?;
        let mut expected = found.clone();
        expected.insert(3, 30);
        assert_eq!(contents(&later), expected, "one insertion later");
        Ok(found)
    })
}
