//! Extended attributes, and how they change.

use crate::error::FsError;
use crate::format::{ATTRIBUTES_MAX, Identity, NAME_MAX};
use crate::node::acl;
use crate::node::attribute_block::{self, Xattrs};
use crate::node::inode::load_identity;
use crate::session::shared::Shared;
use crate::session::table::State;
use pm_core::Pmem;

/// Whether an attribute must exist before it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SetXattr {
    /// It may exist or not.
    #[default]
    Any,
    /// It must not: `XATTR_CREATE`.
    Create,
    /// It must: `XATTR_REPLACE`.
    Replace,
}

/// All attributes of a file.
pub(crate) fn all<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<Xattrs, FsError> {
    let _inner = state.read();
    attribute_block::load(&shared.volume, &state.inode)
}

/// Sets an attribute.
///
/// # Durability
/// As for [`change`].
pub(crate) fn set<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<(), FsError> {
    // listxattr(2) ends names with a zero byte.
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
        return Err(FsError::Invalid);
    }
    if value.len() as u64 > ATTRIBUTES_MAX {
        return Err(FsError::AttributesTooLong);
    }
    change(shared, state, |attributes, mode| match (attributes.contains_key(name), how) {
        (true, SetXattr::Create) => Err(FsError::Exists),
        (false, SetXattr::Replace) => Err(FsError::NoAttribute),
        _ if [acl::ACCESS, acl::DEFAULT].contains(&name) => {
            acl::set(attributes, name, value, state.inode.kind, mode)
        }
        _ => {
            attributes.insert(name.to_vec(), value.to_vec());
            Ok(mode)
        }
    })
}

/// Removes an attribute.
///
/// # Durability
/// As for [`change`].
pub(crate) fn remove<P: Pmem>(shared: &Shared<P>, state: &State, name: &[u8]) -> Result<(), FsError> {
    change(shared, state, |attributes, mode| match attributes.remove(name) {
        Some(_) => Ok(mode),
        None => Err(FsError::NoAttribute),
    })
}

/// Changes the attributes of a file by `edit`, which gets its mode, and returns the new one.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves the old attributes and the old mode. Two fences.
fn change<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    edit: impl FnOnce(&mut Xattrs, u32) -> Result<u32, FsError>,
) -> Result<(), FsError> {
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let _inner = state.write_existing()?;
    let mut attributes = attribute_block::load(volume, inode)?;
    let mode = load_identity(volume, inode.ino)?.mode;
    let new_mode = edit(&mut attributes, mode)?;
    let now = volume.now();
    volume.transaction(|change| {
        if new_mode != mode {
            let identity = inode.identity(change)?;
            inode.set_identity(change, Identity { mode: new_mode, ..identity })?;
        }
        attribute_block::replace(change, inode, &attributes)?;
        change.set(inode.ctime_at(), now)
    })
}
