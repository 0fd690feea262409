//! Removing all keys of a range: they are removed in batches.

use super::op_list::{BATCH_BYTES, OpList};
use super::range::next_found;
use super::shared::Shared;
use crate::error::WriteError;
use crate::node::{SearchKey, head_of};
use crate::ops::{Bounds, Scan, Side};
use crate::tree::Tree;
use pm_core::Pmem;
use std::sync::Arc;

/// Removes the keys within the bounds, in ascending order, and returns their number.
///
/// # Durability
/// Each batch as that of a [`WriteBatch`](crate::WriteBatch::commit): it removes in place, and needs no room in the leaves.
pub(super) fn remove_all<P: Pmem>(
    shared: &Shared<P>,
    tree: &Arc<Tree>,
    bounds: Bounds,
) -> Result<u64, WriteError> {
    let mut scan = Scan::new(Some(bounds));
    let mut ops = OpList::new();
    let mut removed = 0;
    loop {
        while ops.len() < shared.removal_batch_keys && ops.len_bytes() < BATCH_BYTES {
            let Some(found) = next_found(&mut scan, shared, tree, Side::Front) else { break };
            let key = found?.key();
            ops.push(tree, &search_key(tree, key.as_slice()), None);
        }
        if ops.len() == 0 {
            return Ok(removed);
        }
        let _settled = shared.begin()?;
        removed += ops.commit(&shared.session, &shared.sweep)?;
        ops.clear();
    }
}

/// A stored key, as its tree compares it.
pub(super) fn search_key<'a>(tree: &Tree, bytes: &'a [u8]) -> SearchKey<'a> {
    match tree.is_word() {
        true => SearchKey::word(head_of(bytes)),
        false => SearchKey::bytes_key(bytes),
    }
}
