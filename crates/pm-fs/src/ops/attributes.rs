//! The attributes of inodes, and how they change: owners, permissions and times, and whether writes are atomic.

use crate::error::FsError;
use crate::format::FLAG_STRICT;
use crate::node::inode::{Attributes, FileKind, PERMISSIONS, TYPE_MASK};
use crate::node::{acl, attribute_block};
use crate::session::shared::Shared;
use crate::session::table::State;
use crate::volume::Source as _;
use pm_core::Pmem;

/// What an attribute is to become; `None` leaves it as it is. Times are in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in stat(2)")]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime_ns: Option<i64>,
    pub mtime_ns: Option<i64>,
}

/// The attributes.
pub(crate) fn get<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<Attributes, FsError> {
    let _inner = state.read();
    state.inode.attributes(&shared.volume)
}

/// Changes attributes.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves the old ones or the new ones. One fence; up to
/// four for the mode of a file with an access control list.
pub(crate) fn set<P: Pmem>(shared: &Shared<P>, state: &State, set: &SetAttributes) -> Result<(), FsError> {
    let volume = shared.prepared()?;
    let inode = &state.inode;
    let _inner = state.write();
    let now = volume.now();
    let old = inode.attributes(volume)?;
    let mut xattrs = if set.mode.is_some() {
        attribute_block::load(volume, inode)?
    } else {
        attribute_block::Xattrs::new()
    };
    let changes_acl = set.mode.is_some_and(|mode| acl::change_mode(&mut xattrs, mode));
    volume.transaction(|change| {
        if changes_acl {
            attribute_block::replace(change, inode, &xattrs)?;
        }
        let stored_wtime = change.word(inode.wtime_at())?;
        let mut identity = inode.identity(change)?;
        if let Some(mode) = set.mode {
            identity.mode = identity.mode & TYPE_MASK | mode & PERMISSIONS;
        }
        identity.uid = set.uid.unwrap_or(identity.uid);
        identity.gid = set.gid.unwrap_or(identity.gid);
        if let Some(mtime) = set.mtime_ns {
            (identity.mtime_set, identity.mtime_set_at) = (mtime.cast_unsigned(), stored_wtime);
        }
        inode.set_identity(change, identity)?;
        if let Some(atime) = set.atime_ns {
            change.set(inode.atime_at(), atime.cast_unsigned())?;
        }
        change.set(inode.ctime_at(), now.max(old.ctime_ns.cast_unsigned()))
    })
}

/// Makes writes to a file atomic, or only durable.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`. One fence.
pub(crate) fn set_strict<P: Pmem>(shared: &Shared<P>, state: &State, is_strict: bool) -> Result<(), FsError> {
    if state.inode.kind != FileKind::File {
        return Err(FsError::Invalid);
    }
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let _inner = state.write_existing()?;
    let now = volume.now();
    volume.transaction(|change| {
        let mut identity = inode.identity(change)?;
        identity.flags = identity.flags & !FLAG_STRICT | if is_strict { FLAG_STRICT } else { 0 };
        inode.set_identity(change, identity)?;
        change.set(inode.ctime_at(), now)
    })
}

/// Whether writes to a file are atomic.
pub(crate) fn is_strict<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<bool, FsError> {
    let _inner = state.read();
    state.inode.is_strict(&shared.volume)
}
