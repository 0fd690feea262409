//! FAST&FAIR: a B+-tree whose leaves stay sorted by shifting, entry by entry, in an order that a reader tolerates.

use crate::harness::*;

/// A leaf of two lines. An entry is one word; a zero ends them.
const ENTRIES: u64 = 64;
const ENTRY_COUNT: u64 = 16;
const ENTRIES_PER_LINE: u64 = 8;

const fn entry_at(index: u64) -> u64 {
    ENTRIES + 8 * index
}

fn entry(pmem: &SimPmem, index: u64) -> u64 {
    pmem.load_u64(entry_at(index))
}

fn entry_count(pmem: &SimPmem) -> u64 {
    (0..ENTRY_COUNT).find(|&index| entry(pmem, index) == 0).expect("the leaf has room")
}

/// What a reader sees: a shift may be half done, so an entry that stands twice counts once.
fn scan(pmem: &SimPmem) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..entry_count(pmem)).map(|index| entry(pmem, index)).collect();
    keys.dedup();
    keys
}

fn leaf_of(keys: impl IntoIterator<Item = u64>) -> impl FnOnce(&SimPmem) {
    move |pmem| (0..).zip(keys).for_each(|(index, key)| pmem.store_u64(entry_at(index), key))
}

/// Moves what follows the first entry with that key one to the left. A line is durable before the next one changes, because
/// an entry that leaves the next one is stored nowhere else. Returns the first and the last entry written, if there was such a key.
fn shift_left(pmem: &SimPmem, key: u64) -> Result<Option<(u64, u64)>, FenceError> {
    let end = entry_count(pmem);
    let Some(first) = (0..end).find(|&index| entry(pmem, index) == key) else { return Ok(None) };
    for index in first..end {
        pmem.store_u64(entry_at(index), entry(pmem, index + 1)); //~ B04 lost: flush missing
        if (index + 1) % ENTRIES_PER_LINE == 0 {
            pmem.persist(entry_at(index), 8)?;
        }
    }
    Ok(Some((first, end - 1)))
}

/// B04, reported by Witcher: a deletion shifts over the end of a line, but flushes the line where it began. The next
/// deletion builds on the shift that is not durable: deleted keys come back, out of order.
pub(crate) fn flush_at_the_line_where_the_shift_began(form: Form) -> Case {
    let delete = move |pmem: &SimPmem, key| {
        let Some((first, last)) = shift_left(pmem, key)? else { return Ok(()) };
        let flushed = if form == Form::Bug { first } else { last };
        pmem.persist(entry_at(flushed), 8)
    };
    let without = |deleted: &[u64]| -> Vec<u64> { (1..=12).filter(|key| !deleted.contains(key)).collect() };
    let states = [&[][..], &[3], &[3, 9], &[3, 9, 12]].map(without);
    let case = Case::steps(image(leaf_of(1..=12)), [3, 9, 12], delete, states, |pmem| Ok(scan(pmem)));
    // In a line, an entry is overwritten only after it was copied to its left.
    case.relying_on_order_in_a_line()
}

/// Moves what is larger than the key one to the right, last entry first, and puts the key into the gap. All in one line.
fn insert(pmem: &SimPmem, key: u64) -> Done {
    let mut index = entry_count(pmem);
    assert!(index < ENTRIES_PER_LINE, "the line has room");
    while index > 0 && entry(pmem, index - 1) > key {
        pmem.store_u64(entry_at(index), entry(pmem, index - 1)); //~ B05 kept
        index -= 1;
    }
    pmem.store_u64(entry_at(index), key);
    pmem.persist(ENTRIES, 64)
}

/// B05, reported by Witcher: a crash in an insertion's shift leaves an entry twice, which readers tolerate. A later
/// deletion of it removes one of the two: the key survives its deletion. Corrected, it removes each.
pub(crate) fn delete_ignores_the_half_shifted_duplicate(form: Form) -> Case {
    let delete = move |pmem: &SimPmem, key| {
        while shift_left(pmem, key)?.is_some() && form == Form::Fixed {}
        // It is read at once, and so needs not be durable.
        DONE
    };
    let case =
        Case::steps(image(leaf_of([1, 3, 5])), [2], insert, [vec![1, 3, 5], vec![1, 2, 3, 5]], move |pmem| {
            for key in [3, 5] {
                let later = copy(pmem);
                delete(&later, key)?;
                assert!(!scan(&later).contains(&key), "{key} survives its deletion");
            }
            Ok(scan(pmem))
        });
    // As for deletions: an entry is overwritten only after it was copied to its right.
    case.relying_on_order_in_a_line()
}

/// The tree of B06 and B07: the root, and nodes of a header line and a line of keys. A header holds whether the node is
/// a leaf, its right sibling, and the key count of an empty node's constructor.
const ROOT: u64 = 0;
const LEFT: u64 = 512;
const RIGHT: u64 = 1024;
const INNER: u64 = 1536;
const IS_LEAF: u64 = 0;
const SIBLING: u64 = 8;
const KEYS: u64 = 64;
const KEY_COUNT: usize = 8;

/// The keys that are the leaf's: those below its sibling's first, once it has one.
fn leaf_keys(pmem: &SimPmem, leaf: u64) -> Vec<u64> {
    let sibling = pmem.load_u64(leaf + SIBLING);
    let end = if sibling == 0 { u64::MAX } else { pmem.load_u64(sibling + KEYS) };
    let keys = load_words::<KEY_COUNT>(pmem, leaf + KEYS);
    keys.into_iter().filter(|&key| key != 0 && key < end).collect()
}

/// The leaf that the key belongs to: the root has no sibling, so no lookup follows one there. An inner node holds a separator and its children.
fn leaf_for(pmem: &SimPmem, key: u64) -> u64 {
    let root = pmem.load_u64(ROOT);
    if pmem.load_u64(root + IS_LEAF) == 1 {
        return root;
    }
    let [separator, left, right] = load_words(pmem, root + KEYS);
    if key < separator { left } else { right }
}

fn contains(pmem: &SimPmem, key: u64) -> bool {
    leaf_keys(pmem, leaf_for(pmem, key)).contains(&key)
}

/// Splits the root, a leaf of four keys.
fn split_root(pmem: &SimPmem, form: Form) -> Done {
    let upper: [u64; 2] = load_words(pmem, LEFT + KEYS + 16);
    pmem.store(RIGHT, &bytes_of(&[1, 0]));
    pmem.store(RIGHT + KEYS, &bytes_of(&upper));
    pmem.flush(RIGHT, 128);
    if form == Form::Bug {
        // teeth: the planted bug's own
        pmem.fence()?;
        // teeth: the planted bug's own
        pmem.put(LEFT + SIBLING, RIGHT)?; //~ B06 kept
    }
    pmem.store(INNER, &bytes_of(&[0, 0]));
    pmem.store(INNER + KEYS, &bytes_of(&[upper[0], LEFT, RIGHT]));
    pmem.persist(INNER, 128)?;
    pmem.put(ROOT, INNER)?;
    if form == Form::Fixed {
        // Fenced with the next change: until then, all is found without it.
        pmem.store_u64(LEFT + SIBLING, RIGHT);
        pmem.flush(LEFT + SIBLING, 8);
    }
    Ok(())
}

/// B06, reported by Witcher: when the root leaf splits, its sibling is linked before the new root exists. The link
/// makes the upper keys the sibling's, and nothing leads there from the old root: a crash loses them.
pub(crate) fn sibling_linked_before_the_new_root_exists(form: Form) -> Case {
    let one_leaf = image(|pmem| {
        pmem.store_u64(ROOT, LEFT);
        pmem.store_u64(LEFT + IS_LEAF, 1);
        pmem.store(LEFT + KEYS, &bytes_of(&[1, 2, 3, 4]));
    });
    let split_and_insert = move |pmem: &SimPmem, key| {
        split_root(pmem, form)?;
        let end = leaf_for(pmem, key) + KEYS + 16;
        pmem.put(end, key)
    };
    let states = [vec![1, 2, 3, 4], vec![1, 2, 3, 4, 5]];
    Case::steps(one_leaf, [5], split_and_insert, states, |pmem| {
        for key in 1..=4 {
            assert!(contains(pmem, key), "{key} is lost");
        }
        // A scan goes from leaf to leaf, so it also needs the link.
        let sibling = Some(pmem.load_u64(LEFT + SIBLING)).filter(|&sibling| sibling != 0);
        let leaves = std::iter::once(LEFT).chain(sibling);
        Ok(leaves.flat_map(|leaf| leaf_keys(pmem, leaf)).collect())
    })
}

/// B07, reported by Jaaru: the constructor of a node initialises its header and flushes nothing. The root then leads to
/// what was in that memory before: here, to a node that claims to be an inner one.
pub(crate) fn constructor_is_never_flushed(form: Form) -> Case {
    let recycled = image(|pmem| pmem.store(LEFT, &[0xEE; 16]));
    let construct: Step = |pmem, form| {
        pmem.store(LEFT, &bytes_of(&[1, 0])); //~ B07 lost: flush and fence missing
        if form == Form::Fixed {
            pmem.persist(LEFT, 16)?;
        }
        pmem.put(ROOT, LEFT)
    };
    let insert_first: Step = |pmem, _| pmem.put(LEFT + KEYS, 7);
    let steps = [construct, insert_first];
    let states = [None, Some(vec![]), Some(vec![7])];
    Case::steps(
        recycled,
        steps,
        move |pmem, step| step(pmem, form),
        states,
        |pmem| {
            let root = Some(pmem.load_u64(ROOT)).filter(|&root| root != 0);
            Ok(root.map(|root| {
                assert_eq!(load_words(pmem, root), [1, 0], "the header of a leaf");
                leaf_keys(pmem, root)
            }))
        },
    )
}
