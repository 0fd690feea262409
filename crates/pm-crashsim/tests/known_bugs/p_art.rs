//! P-ART: an adaptive radix tree. A small node has a count, the key bytes of its children, and pointers to them.

use crate::harness::*;

/// The root is a node of up to four children, each part on a line of its own. Children are leaves of key and value.
const COUNT: u64 = 0;
const KEY_BYTES: u64 = 64;
const CHILDREN: u64 = 128;
const LEAVES: u64 = 256;

fn key_byte(pmem: &SimPmem, index: u64) -> u8 {
    let mut byte = [0];
    pmem.load(KEY_BYTES + index, &mut byte);
    byte[0]
}

/// What a reader finds by the key byte of each child.
fn contents(pmem: &SimPmem) -> BTreeMap<u64, u64> {
    let children = (0..pmem.load_u64(COUNT)).map(|index| {
        let leaf = pmem.load_u64(CHILDREN + 8 * index);
        assert_ne!(leaf, 0, "child {index} is counted and not there");
        let [key, value] = load_words(pmem, leaf);
        assert_eq!(u64::from(key_byte(pmem, index)), key, "the leaf is another key's");
        (key, value)
    });
    children.collect()
}

fn insert(pmem: &SimPmem, form: Form, key: u8, value: u64) -> Done {
    let count = pmem.load_u64(COUNT);
    let leaf = LEAVES + 64 * count;
    pmem.store(leaf, &bytes_of(&[u64::from(key), value]));
    pmem.flush(leaf, 16);
    pmem.store(KEY_BYTES + count, &[key]);
    pmem.flush(KEY_BYTES + count, 1);
    if form == Form::Bug {
        // teeth: the planted bug's own
        pmem.fence()?;
        // teeth(fence): the planted bug's own
        pmem.put(COUNT, count + 1)?; //~ B12 kept
    }
    pmem.put(CHILDREN + 8 * count, leaf)?;
    if form == Form::Fixed {
        pmem.put(COUNT, count + 1)?;
    }
    Ok(())
}

/// B12, reported by Witcher: the count of a node is durable before the pointer to the child that it counts. After a
/// crash between, every lookup of that key byte follows a null pointer.
pub(crate) fn count_durable_before_its_child(form: Form) -> Case {
    let insert = move |pmem: &SimPmem, key| insert(pmem, form, key, 10 * u64::from(key));
    let states = [&[][..], &[(5, 50)], &[(3, 30), (5, 50)]].map(|s| s.iter().copied().collect());
    Case::steps(image(|_| ()), [5, 3], insert, states, |pmem| Ok(contents(pmem)))
}
