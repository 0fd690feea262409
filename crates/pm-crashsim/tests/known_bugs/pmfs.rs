//! PMFS: metadata changes in place, under an undo journal. Entries belong to a generation, which the commit record ends.

use crate::harness::*;

/// The commit record: the last generation that is done.
const COMMITTED: u64 = 0;
/// A journal lane: entries of a line each, of the word's place, its old value, and the generation.
const LANE: u64 = 64;
const ENTRY_COUNT: u64 = 2;
/// The metadata: which inodes the directory names, as bits, and the inodes' link counts.
const DIRECTORY: u64 = 512;
const INODES: u64 = 1024;

fn lane() -> impl Iterator<Item = u64> {
    (0..ENTRY_COUNT).map(|index| LANE + 64 * index)
}

fn commit(pmem: &SimPmem, generation: u64) -> Done {
    pmem.put(COMMITTED, generation)
}

/// Changes two words, both or none.
fn transaction(pmem: &SimPmem, form: Form, changes: [(u64, u64); 2]) -> Done {
    let generation = pmem.load_u64(COMMITTED) + 1;
    for (entry, (word, _)) in lane().zip(changes) {
        pmem.store(entry, &bytes_of(&[word, pmem.load_u64(word)]));
        // The generation makes the entry valid.
        pmem.store_u64(entry + 16, generation);
        pmem.flush(entry, 24);
    }
    pmem.fence()?;
    for (word, new) in changes {
        pmem.store_u64(word, new); //~ B29 lost: fence missing
        pmem.flush(word, 8);
    }
    if form == Form::Fixed {
        pmem.fence()?;
    }
    commit(pmem, generation)
}

/// Undoes the generation that is not done, and ends it.
fn recover(pmem: &SimPmem) -> Done {
    let generation = pmem.load_u64(COMMITTED) + 1;
    let entries = lane().map(|entry| load_words(pmem, entry));
    let undone: Vec<[u64; 3]> = entries.filter(|[_, _, of]| *of == generation).collect();
    for [word, old, _] in &undone {
        pmem.store_u64(*word, *old);
        pmem.flush(*word, 8);
    }
    if !undone.is_empty() {
        pmem.fence()?;
        commit(pmem, generation)?;
    }
    Ok(())
}

fn create(pmem: &SimPmem, form: Form, inode: u64) -> Done {
    let named = pmem.load_u64(DIRECTORY) | 1 << inode;
    transaction(pmem, form, [(DIRECTORY, named), (INODES + 64 * inode, 1)])
}

/// The inodes that the directory names, which are those with a link.
fn files(pmem: &SimPmem) -> Vec<u64> {
    let named: Vec<u64> = (0..4).filter(|inode| pmem.load_u64(DIRECTORY) >> inode & 1 == 1).collect();
    let linked: Vec<u64> = (0..4).filter(|inode| pmem.load_u64(INODES + 64 * inode) == 1).collect();
    assert_eq!(named, linked, "named in the directory, and linked");
    named
}

/// B29, reported by Chipmunk: what a transaction changed is flushed, and not fenced, before the commit record is
/// stored. The record overtakes it: recovery takes for done what is half there.
pub(crate) fn no_fence_before_the_commit_record(form: Form) -> Case {
    let create = move |pmem: &SimPmem, inode| create(pmem, form, inode);
    let case = Case::steps(image(|_| ()), [1, 2], create, [vec![], vec![1], vec![1, 2]], |pmem| {
        recover(pmem)?;
        Ok(files(pmem))
    });
    // An entry's generation is stored after the rest of its line, with nothing between.
    case.relying_on_order_in_a_line()
}
