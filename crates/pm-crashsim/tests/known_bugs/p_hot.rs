//! P-HOT: a height-optimised trie. Its nodes are published by one exchange; their entries are tuples' identifiers.

use crate::harness::*;
use std::thread;

/// The root pointer, and versions of the root: a count and the entries.
const ROOT: u64 = 0;
const VERSIONS: [u64; 3] = [256, 512, 768];
const ENTRIES: u64 = 8;
/// Stands for the stack, where temporaries are.
const STACK: u64 = 2048;

fn entries(pmem: &SimPmem) -> Vec<u64> {
    let node = pmem.load_u64(ROOT);
    (0..pmem.load_u64(node)).map(|index| pmem.load_u64(node + ENTRIES + 8 * index)).collect()
}

fn one_entry(pmem: &SimPmem) {
    pmem.store(VERSIONS[0], &bytes_of(&[1, 100]));
    pmem.store_u64(ROOT, VERSIONS[0]);
}

/// Builds the root with one entry more. Another thread may publish it.
fn build(pmem: &SimPmem, form: Form, version: usize, entry: u64) -> Done {
    let mut node = entries(pmem);
    node.push(entry);
    node.insert(0, node.len() as u64);
    pmem.store(VERSIONS[version], &bytes_of(&node)); //~ B17 lost: fence missing
    pmem.flush(VERSIONS[version], 8 * node.len() as u64);
    if form == Form::Fixed {
        pmem.fence()?;
    }
    Ok(())
}

fn publish(pmem: &SimPmem, version: usize) -> Done {
    let (old, new) = (VERSIONS[version - 1], VERSIONS[version]);
    assert_eq!(pmem.compare_exchange_u64(ROOT, old, new), Ok(old), "no other thread publishes");
    pmem.persist(ROOT, 8)
}

/// B17, reported by Witcher: a node is published by an exchange while its content is flushed but not fenced. A locked instruction fences too, but
/// only what its own thread flushed, and here a helper publishes what another thread built. After a crash the root is empty.
///
/// Builder and helper are threads, started and joined one after the other.
pub(crate) fn exchange_publishes_an_unfenced_node(form: Form) -> Case {
    let build_and_publish = move |pmem: &SimPmem, (version, entry)| {
        let build = || build(pmem, form, version, entry);
        let publish = || publish(pmem, version);
        thread::scope(|scope| scope.spawn(build).join()).expect("the builder builds")?;
        thread::scope(|scope| scope.spawn(publish).join()).expect("the helper publishes")
    };
    let states = [vec![100], vec![100, 101], vec![100, 101, 102]];
    Case::steps(image(one_entry), [(1, 101), (2, 102)], build_and_publish, states, |pmem| Ok(entries(pmem)))
}

/// B18, reported by Witcher: an entry is replaced, and the flush covers the local variable of the new one,
/// not the node's entry. It reads well in C++, where both are `&entry`. The change is lost after it was acknowledged.
pub(crate) fn flush_of_a_temporary(form: Form) -> Case {
    let replace_entry = move |pmem: &SimPmem, new: u64| {
        let (temporary, entry) = (STACK, VERSIONS[0] + ENTRIES);
        pmem.store_u64(temporary, new);
        pmem.store_u64(entry, pmem.load_u64(temporary)); //~ B18 lost: flush missing
        pmem.flush(if form == Form::Bug { temporary } else { entry }, 8);
        pmem.fence()
    };
    let states = [vec![100], vec![200]];
    Case::steps(image(one_entry), [200], replace_entry, states, |pmem| Ok(entries(pmem)))
}
