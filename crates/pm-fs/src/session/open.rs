//! An inode that a caller has open, with its file system.

use crate::node::inode::InodeRef;
use crate::session::shared::Shared;
use crate::session::table::State;
use core::fmt;
use pm_core::Pmem;
use std::sync::Arc;

/// An open inode. It exists as long as one of these, with or without a name, and the file system stays open.
pub(crate) struct OpenInode<P: Pmem> {
    shared: Arc<Shared<P>>,
    state: Arc<State>,
}

impl<P: Pmem> OpenInode<P> {
    /// The root directory.
    pub(crate) fn root(shared: &Arc<Shared<P>>) -> Self {
        Self { shared: Arc::clone(shared), state: shared.table.open_again(&shared.root) }
    }

    /// Another inode of the same file system. Its handle, which the caller has, is this one's from now on.
    pub(crate) fn another(&self, state: Arc<State>) -> Self {
        Self { shared: Arc::clone(&self.shared), state }
    }

    pub(crate) fn shared(&self) -> &Shared<P> {
        &self.shared
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    pub(crate) fn inode(&self) -> &InodeRef {
        &self.state.inode
    }
}

impl<P: Pmem> fmt::Debug for OpenInode<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By the name of its public face.
        f.debug_struct("Handle").field("inode", self.inode()).finish_non_exhaustive()
    }
}

impl<P: Pmem> Clone for OpenInode<P> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), state: self.shared.table.open_again(&self.state) }
    }
}

impl<P: Pmem> Drop for OpenInode<P> {
    /// Frees the inode if it has no name and this was its last handle. If that fails, the next open frees it.
    fn drop(&mut self) {
        drop(self.shared.release(&self.state));
    }
}

/// As [`OpenInode`], for the duration of a call: an inode that an operation has found.
pub(crate) struct Held<'s, P: Pmem> {
    shared: &'s Shared<P>,
    pub(crate) state: Arc<State>,
}

impl<'s, P: Pmem> Held<'s, P> {
    /// Takes over a handle from the caller.
    pub(crate) const fn new(shared: &'s Shared<P>, state: Arc<State>) -> Self {
        Self { shared, state }
    }
}

impl<P: Pmem> Drop for Held<'_, P> {
    fn drop(&mut self) {
        // An inode that cannot be freed now stays an orphan, which the next open frees.
        drop(self.shared.release(&self.state));
    }
}
