//! Whether the roots of a heap lead to blocks that are allocated.

use pm_alloc::Block;
use pm_alloc::format::{BlockState, ROOT};
use pm_alloc::layout::Layout;
use pm_core::Root;

/// The roots of a heap but the one that names the heap itself, by offset; and for each whether its value lies in a block.
pub(crate) struct Roots(Vec<(Root, bool)>);

impl Roots {
    pub(crate) fn of(mut roots: Vec<Root>) -> Self {
        roots.retain(|root| root.name() != ROOT);
        roots.sort_by_key(Root::offset);
        Self(roots.into_iter().map(|root| (root, false)).collect())
    }

    /// Takes note of a block.
    pub(crate) fn note(&mut self, block: &Block) {
        let end = block.payload + Layout::usable_bytes(block.lines);
        let first = self.0.partition_point(|(root, _)| root.offset() < block.payload);
        for (root, is_held) in self.0[first..].iter_mut().take_while(|(root, _)| root.offset() < end) {
            let root_end = root.offset().checked_add(root.len_bytes());
            *is_held =
                block.state == BlockState::Allocated && root_end.is_some_and(|root_end| root_end <= end);
        }
    }

    /// All of them, after all blocks were noted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Root, bool)> {
        self.0.iter().map(|(root, is_held)| (root, *is_held))
    }
}
