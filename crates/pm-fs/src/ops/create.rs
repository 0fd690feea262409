//! Creates inodes: with a name, and without one.

use crate::error::FsError;
use crate::node::acl::{self, Inherited};
use crate::node::attribute_block::{self, Xattrs};
use crate::node::dir::DirChange;
use crate::node::inode::{FileKind, InodeRef, NewInode};
use crate::node::symlink::{NewTarget, TARGET_MAX};
use crate::ops::lookup::DirName;
use crate::session::orphans;
use crate::session::shared::Shared;
use crate::session::table::{Life, State};
use crate::volume::{Change, Volume};
use pm_core::Pmem;
use std::sync::Arc;

/// What [`create`] creates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewNode<'n> {
    pub(crate) inode: NewInode,
    /// Permissions that it does not get, unless the directory has a default access control list.
    pub(crate) umask: u32,
    /// The target of a symbolic link; empty for other inodes.
    pub(crate) target: &'n [u8],
}

/// Creates an inode with a name.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves the file or not. One fence; two if the directory
/// gets a block.
pub(crate) fn create<P: Pmem>(
    shared: &Shared<P>,
    at: DirName<'_>,
    new: NewNode<'_>,
) -> Result<Arc<State>, FsError> {
    at.check()?;
    if new.target.len() > TARGET_MAX {
        return Err(FsError::NameTooLong);
    }
    let volume = shared.prepared()?;
    let dir = at.dir;
    shared.ensure_index(dir)?;
    let mut inner = dir.write();
    let entries = inner.entries()?;
    if entries.find(volume, at.name)?.is_some() {
        return Err(FsError::Exists);
    }
    let initial = Initial::new(volume, &dir.inode, new.inode, new.umask)?;
    let now = volume.now();
    let nlink = dir.inode.nlink(volume)?;
    let target = NewTarget::new(volume, new.target)?;
    let created = volume.transaction(|change| {
        let inode = initial.create(change, now)?;
        target.store(change, &inode)?;
        let added = entries.add(change, &dir.inode, at.name, &inode)?;
        dir.inode.touch(change, now)?;
        if inode.kind == FileKind::Directory {
            dir.inode.set_nlink(change, dir.inode.changed_nlink(nlink, 1, 0)?)?;
        }
        Ok(Created { inode, added })
    })?;
    target.keep();
    inner.apply(created.added);
    Ok(shared.table.open(created.inode))
}

/// Creates a file without a name, which inherits the access control list of a directory.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`, but freed after a crash. One fence; two if the directory of orphans gets a
/// block.
pub(crate) fn create_unnamed<P: Pmem>(
    shared: &Shared<P>,
    dir: &State,
    new: NewInode,
    umask: u32,
) -> Result<Arc<State>, FsError> {
    let volume = shared.prepared()?;
    shared.ensure_index(dir)?;
    let inner = dir.read();
    // Fails if it has no name any more.
    inner.entries()?;
    let initial = Initial::new(volume, &dir.inode, new, umask)?;
    shared.ensure_index(&shared.orphans)?;
    let mut list = shared.orphans.write();
    let entries = list.entries()?;
    let created = volume.transaction(|change| {
        let inode = initial.create(change, volume.now())?;
        let name = orphans::name_of(inode.ino);
        let added = entries.add(change, &shared.orphans.inode, &name, &inode)?;
        Ok(Created { inode, added })
    })?;
    list.apply(created.added);
    let state = shared.table.open(created.inode);
    state.write().life = Life::Unnamed;
    Ok(state)
}

/// What a transaction has created.
struct Created {
    inode: InodeRef,
    added: DirChange,
}

/// A new inode, and the attributes that it inherits from its directory.
struct Initial {
    new: NewInode,
    attributes: Xattrs,
}

impl Initial {
    fn new<P: Pmem>(volume: &Volume<P>, dir: &InodeRef, new: NewInode, umask: u32) -> Result<Self, FsError> {
        let parent = attribute_block::load(volume, dir)?;
        let Inherited { mode, attributes } = acl::inherit(&parent, new.kind, new.mode, umask);
        Ok(Self { new: NewInode { mode, ..new }, attributes })
    }

    /// Allocates it, with its attributes, in a transaction.
    fn create<P: Pmem>(&self, change: &mut Change<'_, '_, P>, now: u64) -> Result<InodeRef, FsError> {
        let inode = self.new.create(change, now)?;
        if !self.attributes.is_empty() {
            attribute_block::replace(change, &inode, &self.attributes)?;
        }
        Ok(inode)
    }
}
