//! Roots in a transaction: where a program finds its data again.

use super::Tx;
use crate::error::TxError;
use core::mem::size_of;
use pm_core::{InPool, Link, Pmem, Root, RootError};

impl<'p, P: Pmem> Tx<'p, P> {
    /// The root of this name, if there is one, as this transaction has left it.
    ///
    /// # Errors
    /// When it holds another type, or is not found while some of the directory is damaged.
    pub fn root<T: InPool<'p>>(&self, name: &str) -> Result<Option<Link<'p, T>>, TxError> {
        let root = match self.staged_root(name) {
            Some(staged) => staged,
            None => self.heap.pool().find_root(name)?,
        };
        Ok(root.map(|root| self.heap.typed_root(&root)).transpose()?)
    }

    /// Names what `link` is to, so that [`root`](Self::root) finds it after a restart; instead of what had the name
    /// before. Other transactions that change roots wait until this one is over.
    ///
    /// # Errors
    /// When the link is null or leads out of the heap; when the name is empty, longer than 24 bytes or the heap's own,
    /// `pm-alloc.heap`, or there are 63 other roots.
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
    /// When the name cannot be one, as for [`set_root`](Self::set_root).
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
        // Two transactions could find the same slot free.
        let heap = self.heap;
        self.roots_lock.get_or_insert_with(|| heap.lock_roots());
        if let Some(write) = heap.pool().root_write(name, target, &self.work.roots)? {
            self.work.roots.retain(|staged| staged.offset() != write.offset());
            self.work.roots.push(write);
        }
        Ok(())
    }

    /// What this transaction has made of a root: `None` when it did not touch it.
    fn staged_root(&self, name: &str) -> Option<Option<Root>> {
        self.work.roots.iter().find(|write| write.name() == name).map(|write| write.root())
    }
}
