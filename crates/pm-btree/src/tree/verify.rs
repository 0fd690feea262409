//! Verification of reads that have not found a key: whether corruption may have hidden it.

use super::tree::Tree;
use crate::error::{Corruption, CorruptionKind};
use crate::node::{Entry, Frame, SearchKey, Snapshot, Verified, entry_offset, slots_of};
use crate::session::Session;
use pm_core::Pmem;

impl Tree {
    /// Verifies that `key` is in the range of the leaf at `node`: a corrupted separator may have led to a wrong leaf.
    #[cold]
    pub(crate) fn verify_range<P: Pmem>(
        &self,
        session: &Session<P>,
        node: u64,
        key: &SearchKey<'_>,
    ) -> Result<(), Corruption> {
        let pmem = &session.pmem();
        let leaf = Verified::load(pmem, node, self.id)?;
        let right = match leaf.next()? {
            0 => None,
            next => Some(Verified::load(pmem, next, self.id)?),
        };
        let is_above = right.is_some_and(|right| right.low().is_at_or_below(pmem, key));
        if leaf.low().is_at_or_below(pmem, key) && !is_above {
            Ok(())
        } else {
            Err(Corruption::new(node, CorruptionKind::NodeHeader))
        }
    }

    /// Whether a live entry of the leaf has a wrong seal: then a key that is not found may have been in it.
    pub(crate) fn has_broken_seal<P: Pmem>(
        &self,
        session: &Session<P>,
        frame: &Frame,
        snapshot: Snapshot,
    ) -> bool {
        slots_of(snapshot.live).any(|slot| {
            let (entry, seal) = Entry::load(&session.pmem(), entry_offset(frame.node(), slot));
            entry.seal(frame.seed()) != seal
        })
    }
}
