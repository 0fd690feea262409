//! Roots in a transaction: where a program finds its data again.

use super::Tx;
use super::work::StagedRoot;
use crate::error::TxError;
use core::mem::size_of;
use pm_core::{InPool, Link, Pmem, Root, RootChange, RootError, RootWrite};

impl<'p, P: Pmem> Tx<'p, P> {
    /// The root of this name, if there is one, as this transaction has left it.
    ///
    /// # Errors
    /// When it holds another type, or is not found while some of the directory is corrupted.
    pub fn root<T: InPool<'p>>(&self, name: &str) -> Result<Option<Link<'p, T>>, TxError> {
        let root = match self.staged_root(name) {
            Some(staged) => staged,
            None => self.heap.pool_parts().find_root(name)?,
        };
        Ok(root.map(|root| self.heap.typed_root(&root)).transpose()?)
    }

    /// Names what `link` is to, so that [`root`](Self::root) finds it after a restart; instead of what had the name
    /// before. Of two transactions that set one root, the one that commits later counts.
    ///
    /// # Errors
    /// When the link is null or leads out of the heap; when the name is empty, longer than 24 bytes or the heap's own,
    /// `pm-alloc.heap`, or there are 63 other roots, that one included, of which this transaction has removed none. If others set
    /// roots meanwhile, that is known at the end: the transaction fails then.
    ///
    /// # Durability
    /// With the transaction. Costs two entries of the log, and the root's line.
    pub fn set_root<T: InPool<'p>>(&mut self, name: &str, link: Link<'p, T>) -> Result<(), TxError> {
        let offset = self.heap.check_link(link, 1)?;
        self.stage_root(name, Some((offset, size_of::<T>() as u64, T::LAYOUT)))
    }

    /// Forgets a root, if there is one. What it named stays as it is.
    ///
    /// # Errors
    /// When the name cannot be one, as for [`set_root`](Self::set_root); when there is no such root, but some of the directory is
    /// corrupted, which [`Heap::discard_corrupted_roots`](crate::Heap::discard_corrupted_roots) is for.
    ///
    /// # Durability
    /// With the transaction.
    pub fn remove_root(&mut self, name: &str) -> Result<(), TxError> {
        self.stage_root(name, None)
    }

    fn stage_root(&mut self, name: &str, target: Option<(u64, u64, u64)>) -> Result<(), TxError> {
        if name == crate::format::ROOT {
            return Err(RootError::Name { name: name.to_owned() }.into());
        }
        // Only to see whether it can be: which slot it gets is decided when the transaction commits.
        let staged: Vec<RootWrite> = self.work.roots.iter().filter_map(|staged| staged.write).collect();
        let write = self.heap.pool_parts().root_write(name, target, &staged)?;
        self.work.roots.retain(|staged| staged.name != name);
        self.work.roots.push(StagedRoot { name: name.to_owned(), target, write });
        Ok(())
    }

    /// What this transaction has made of a root: `None` when it did not touch it.
    fn staged_root(&self, name: &str) -> Option<Option<Root>> {
        let staged = self.work.roots.iter().find(|staged| staged.name == name)?;
        Some(staged.write.and_then(|write| write.root()))
    }

    /// Adds the roots to what the transaction writes, and hides them until the change is complete. For a transaction that has its lane:
    /// the lock of the directory is the last one that is taken, and who holds it waits for no other transaction.
    pub(super) fn write_roots(&mut self) -> Result<Option<RootChange<'p>>, TxError> {
        if self.work.roots.is_empty() {
            return Ok(None);
        }
        self.heap.log.check()?;
        let (pool, staged) = (self.heap.pool_parts(), &self.work.roots);
        let choose = || -> Result<Vec<RootWrite>, TxError> {
            let mut slots = Vec::new();
            // What is removed makes room for what is set.
            let (removed, set): (Vec<_>, Vec<_>) = staged.iter().partition(|root| root.target.is_none());
            for StagedRoot { name, target, .. } in removed.into_iter().chain(set) {
                slots.extend(pool.root_write(name, *target, &slots)?);
            }
            Ok(slots)
        };
        let (change, slots) = pool.change_roots(choose)?;
        for slot in slots {
            self.work.writes.bytes(slot.offset(), slot.bytes());
        }
        Ok(Some(change))
    }
}
