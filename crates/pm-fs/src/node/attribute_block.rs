//! The block with the extended attributes of a file: all of them, replaced as a whole.

use crate::error::FsError;
use crate::format::{ATTRIBUTES_MAX, AttributeBlock, AttributeEntry, XATTR_TAG};
use crate::node::inode::InodeRef;
use crate::volume::{Change, Volume};
use pm_core::{Pmem, bytes_of, from_bytes};
use std::collections::BTreeMap;

/// The attributes of a file, by their names.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

const HEAD_BYTES: u64 = size_of::<AttributeBlock>() as u64;
const ENTRY_BYTES: usize = size_of::<AttributeEntry>();

/// The longest entries that are stored through the log: a few lines of it cost less than another fence.
const LOGGED_MAX: usize = 160;

/// Loads and verifies all attributes of a file.
pub(crate) fn load<P: Pmem>(volume: &Volume<P>, inode: &InodeRef) -> Result<Xattrs, FsError> {
    let Some(offset) = inode.xattr(volume)? else { return Ok(Xattrs::new()) };
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

fn parse(mut bytes: &[u8]) -> Option<Xattrs> {
    let mut attributes = Xattrs::new();
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
fn to_bytes(attributes: &Xattrs) -> Option<Vec<u8>> {
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

/// Gives a file these attributes and no others, in a transaction.
pub(crate) fn replace<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    attributes: &Xattrs,
) -> Result<(), FsError> {
    let bytes = to_bytes(attributes).ok_or(FsError::AttributesTooLong)?;
    if let Some(offset) = inode.xattr(change)?
        && (1..=LOGGED_MAX).contains(&bytes.len())
        && bytes.len() <= change.load::<AttributeBlock>(offset)?.len_bytes as usize
    {
        // In its place: that needs no room.
        return store(change, inode, offset, &bytes);
    }
    inode.free_xattr(change)?;
    if attributes.is_empty() {
        return inode.set_xattr(change, None);
    }
    let offset = change.alloc_uninit(HEAD_BYTES + bytes.len() as u64)?;
    store(change, inode, offset, &bytes)?;
    inode.set_xattr(change, Some(offset))
}

/// Stores these entries in a block that is new, or through the log.
fn store<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    offset: u64,
    bytes: &[u8],
) -> Result<(), FsError> {
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
    if bytes.len() <= LOGGED_MAX {
        change.write(offset, &head)?;
        return change.write_bytes(offset + HEAD_BYTES, bytes);
    }
    // Not through the log: nothing links to the block before the commit, which fences first.
    let pmem = change.volume.pmem();
    pmem.store_nt(offset, bytes_of(&head));
    pmem.store_nt(offset + HEAD_BYTES, bytes);
    change.note_data();
    Ok(())
}
