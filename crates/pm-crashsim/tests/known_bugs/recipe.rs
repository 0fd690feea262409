//! RECIPE: volatile indexes made persistent. What they commit by is a word in the index, written as any variable is.

use crate::harness::*;

/// The word that leads to the current node: in the lower half where it is, in the upper half its version.
const COMMIT: u64 = 0;
/// A node is its version, and two values.
const NODES: [u64; 2] = [256, 512];

const fn node_of(version: u64) -> u64 {
    if version.is_multiple_of(2) { NODES[0] } else { NODES[1] }
}

fn write_node(pmem: &SimPmem, version: u64) {
    let node = node_of(version);
    pmem.store(node, &bytes_of(&[version, 10 * version, 20 * version]));
    pmem.flush(node, 24);
}

/// Stores the commit word: as an atomic, or as the compiler may compile a plain assignment, in two halves.
fn commit(pmem: &SimPmem, form: Form, version: u64) -> Done {
    let word = version << 32 | node_of(version);
    match form {
        Form::Fixed => pmem.store_u64(COMMIT, word),
        Form::Bug => {
            let bytes = word.to_le_bytes();
            pmem.store(COMMIT, &bytes[..4]);
            pmem.store(COMMIT + 4, &bytes[4..]); //~ B19 lost
        }
    }
    pmem.persist(COMMIT, 8)
}

fn values(pmem: &SimPmem) -> [u64; 2] {
    let word = pmem.load_u64(COMMIT);
    let [version, first, second] = load_words(pmem, word & u64::from(u32::MAX));
    assert_eq!(version, word >> 32, "the node is of the version that the commit word says");
    [first, second]
}

/// B19, reported by Yashme: a commit word is stored by a plain assignment, which the compiler may tear in two. A crash
/// between the halves leaves a pointer to one node with the version of the other.
pub(crate) fn commit_word_torn_by_the_compiler(form: Form) -> Case {
    let first_version = image(|pmem| {
        write_node(pmem, 1);
        commit(pmem, Form::Fixed, 1)
    });
    let write = move |pmem: &SimPmem, version| {
        write_node(pmem, version);
        pmem.fence()?;
        commit(pmem, form, version)
    };
    Case::steps(first_version, [2], write, [[10, 20], [20, 40]], |pmem| Ok(values(pmem)))
}
