//! Extended attributes: one block for all of a file's, which is replaced as a whole.

use crate::error::FsError;
use crate::format::{ATTRIBUTES_MAX, AttributeBlock, AttributeEntry, NAME_MAX, XATTR_TAG};
use crate::inode::InodeRef;
use crate::shared::Shared;
use crate::table::{Life, State};
use crate::volume::{Change, Volume};
use pm_core::{Pmem, bytes_of, from_bytes};
use std::collections::BTreeMap;

/// The attributes of a file, by their names.
pub(crate) type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

const HEAD_BYTES: u64 = size_of::<AttributeBlock>() as u64;
const ENTRY_BYTES: usize = size_of::<AttributeEntry>();

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

/// Loads and verifies all attributes of a file.
pub(crate) fn load<P: Pmem>(volume: &Volume<P>, inode: &InodeRef) -> Result<Attributes, FsError> {
    let Some(offset) = inode.xattr(volume)? else { return Ok(Attributes::new()) };
    let corrupted = || FsError::corrupted(offset, "the attributes of a file");
    let head: AttributeBlock = volume.load(offset)?;
    let is_known = (head.tag, head.owner, head.birth) == (XATTR_TAG, inode.ino, inode.birth);
    if !is_known || u64::from(head.len_bytes) > ATTRIBUTES_MAX {
        return Err(corrupted());
    }
    let mut bytes = vec![0; head.len_bytes as usize];
    volume.bytes(offset + HEAD_BYTES, &mut bytes)?;
    if head.crc != head.expected_crc(volume.seed, offset, &bytes) {
        return Err(corrupted());
    }
    parse(&bytes).ok_or_else(corrupted)
}

fn parse(mut bytes: &[u8]) -> Option<Attributes> {
    let mut attributes = Attributes::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(ENTRY_BYTES)?;
        let entry: AttributeEntry = from_bytes(|bytes| bytes.copy_from_slice(head));
        let (name, rest) = rest.split_at_checked(entry.name_len.into())?;
        let (value, rest) = rest.split_at_checked(entry.value_len as usize)?;
        let padding = (name.len() + value.len()).next_multiple_of(8) - name.len() - value.len();
        bytes = rest.get(padding..)?;
        attributes.insert(name.to_vec(), value.to_vec());
    }
    Some(attributes)
}

/// The entries of a block; `None` if they are too long.
fn to_bytes(attributes: &Attributes) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for (name, value) in attributes {
        let name_len = u8::try_from(name.len()).ok()?;
        let value_len = u32::try_from(value.len()).ok()?;
        bytes.extend_from_slice(bytes_of(&AttributeEntry { value_len, name_len, reserved: [0; 3] }));
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    (bytes.len() as u64 <= ATTRIBUTES_MAX).then_some(bytes)
}

/// Changes the attributes of a file by `edit`.
///
/// # Durability
/// Durable when this returns; a crash before that leaves the old attributes. Two fences.
fn change<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    edit: impl FnOnce(&mut Attributes) -> Result<(), FsError>,
) -> Result<(), FsError> {
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let inner = state.write();
    if inner.life == Life::Freed {
        return Err(FsError::NotFound);
    }
    let mut attributes = load(volume, inode)?;
    edit(&mut attributes)?;
    let bytes = to_bytes(&attributes).ok_or(FsError::AttributesTooLong)?;
    let now = volume.now();
    volume.transaction(|change| {
        inode.free_xattr(change)?;
        let block = if attributes.is_empty() { None } else { Some(store(change, inode, &bytes)?) };
        inode.set_xattr(change, block)?;
        change.set(inode.ctime_at(), now)
    })
}

/// Allocates a block with these entries.
fn store<P: Pmem>(change: &mut Change<'_, '_, P>, inode: &InodeRef, bytes: &[u8]) -> Result<u64, FsError> {
    let offset = change.alloc_uninit(HEAD_BYTES + bytes.len() as u64)?;
    let len_bytes = u32::try_from(bytes.len()).expect("attributes are short");
    let head = AttributeBlock {
        tag: XATTR_TAG,
        crc: 0,
        owner: inode.ino,
        birth: inode.birth,
        len_bytes,
        reserved: 0,
    };
    let head = AttributeBlock { crc: head.expected_crc(change.volume.seed, offset, bytes), ..head };
    // Not through the log: nothing links to the block before the commit, which fences first.
    let pmem = change.volume.pmem();
    pmem.store_nt(offset, bytes_of(&head));
    pmem.store_nt(offset + HEAD_BYTES, bytes);
    change.note_data();
    Ok(offset)
}

/// Sets an attribute.
pub(crate) fn set<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    (name, value): (&[u8], &[u8]),
    how: SetXattr,
) -> Result<(), FsError> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(FsError::Invalid);
    }
    if value.len() as u64 > ATTRIBUTES_MAX {
        return Err(FsError::AttributesTooLong);
    }
    change(shared, state, |attributes| match (attributes.contains_key(name), how) {
        (true, SetXattr::Create) => Err(FsError::Exists),
        (false, SetXattr::Replace) => Err(FsError::NoAttribute),
        _ => {
            attributes.insert(name.to_vec(), value.to_vec());
            Ok(())
        }
    })
}

/// Removes an attribute.
pub(crate) fn remove<P: Pmem>(shared: &Shared<P>, state: &State, name: &[u8]) -> Result<(), FsError> {
    change(shared, state, |attributes| match attributes.remove(name) {
        Some(_) => Ok(()),
        None => Err(FsError::NoAttribute),
    })
}
