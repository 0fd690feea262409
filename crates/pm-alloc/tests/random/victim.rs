//! The loss of one transaction: its log entry is corrupted at a crash, and discarded. All changes of other transactions stay: their blocks are
//! listed, unchanged and not allocated again, and what they freed is free.

use crate::discarding::{all_payloads, lines_of, opened_at_last};
use crate::prelude::*;

/// The changes of one operation: slots, and blocks that it allocated or freed.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    pub(super) slots: Vec<u64>,
    pub(super) blocks: Vec<u64>,
}

/// Fills a new block: the first word of each line is the block's offset, and if `is_filled`, all others are, too.
pub(super) fn fill(heap: &SimHeap, block: u64, is_filled: bool) {
    let (pool, lines) = (heap.pool(), lines_of(heap, block));
    filled_words(block, lines, is_filled).for_each(|at| pool.pmem().store_u64(at, block));
    let filled = pool.pmem().persist(block, 64 * lines - 8);
    assert!(filled.is_ok() || pool.pmem().has_failed());
}

fn filled_words(block: u64, lines: u64, is_filled: bool) -> impl Iterator<Item = u64> {
    (block..block + 64 * lines - 8).step_by(if is_filled { 8 } else { 64 })
}

/// The acknowledged state at a crash.
pub(super) struct Before {
    /// The block of slots, and another one, which stay allocated.
    pub(super) slots: u64,
    pub(super) long: u64,
    /// The contents of the slots.
    pub(super) shadow: Vec<u64>,
    /// The allocated blocks, and the lines of each.
    pub(super) lens: Vec<(u64, u64)>,
    pub(super) is_filled: bool,
}

impl Before {
    /// Corrupts one line of the victim's entry, and opens the heap. Returns whether the entry had to be discarded.
    pub(super) fn assert_only_victim_is_lost(
        &self,
        mut left: State,
        line: usize,
        victim: &Done,
        options: &HeapOptions,
        rng: &mut Rng,
        case: &str,
    ) -> bool {
        left.visible[line + 20] ^= 4;
        left.durable[line + 20] ^= 4;
        match Heap::attach(Arc::new(Sim::of(left.clone())), options) {
            Ok(_) => return false,
            Err(HeapError::Recover(RecoverError::Corrupted { .. })) => {}
            Err(error) => panic!("{case}: {error}"),
        }
        let heap = opened_at_last(left, options, rng);
        let pmem = heap.pool().pmem();
        let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
        let report = heap.check();
        // The contents of the victim's block may overwrite a header of the chain, and cut it.
        assert!(report.is_clean() || self.is_filled, "{case}: {:?}", report.corruptions);
        let mut live: Vec<(u64, u64)> = vec![];
        for (slot, &block) in (0..).zip(&self.shadow) {
            if victim.slots.contains(&slot) || block == 0 {
                continue;
            }
            assert_eq!(pmem.load_u64(self.slots + 8 * slot), block, "{case}: slot {slot}");
            live.extend(self.lens.iter().find(|live| live.0 == block));
        }
        for at in all_payloads(&heap) {
            let over = live.iter().find(|live| at < live.0 + 64 * live.1 && live.0 < at + 64);
            assert!(over.is_none(), "{case}: {at} allocated over {over:?}");
        }
        for &(block, lines) in &live {
            assert!(listed.contains(&block), "{case}: {block} is not listed");
            let mut words = filled_words(block, lines, self.is_filled);
            assert!(words.all(|at| pmem.load_u64(at) == block), "{case}: {block} is changed");
        }
        let mut known: BTreeSet<u64> = self.shadow.iter().chain(&victim.blocks).copied().collect();
        known.extend([self.slots, self.long]);
        let leaked: Vec<&u64> = listed.difference(&known).collect();
        assert!(leaked.is_empty() || !report.is_clean(), "{case}: {leaked:?} were freed");
        true
    }
}
