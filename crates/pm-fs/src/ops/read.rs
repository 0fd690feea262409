//! Reads file data and the targets of symbolic links, and finds where a file has data.

use crate::error::FsError;
use crate::format::PAGE_BYTES;
use crate::node::contents::{check_is_file, short_len};
use crate::node::{symlink, tree, walk};
use crate::session::shared::Shared;
use crate::session::table::State;
use pm_core::Pmem;

/// Reads bytes from an offset, and returns their number: fewer at the end of the file.
pub(crate) fn read<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    offset: u64,
    out: &mut [u8],
) -> Result<usize, FsError> {
    check_is_file(&state.inode)?;
    let volume = &shared.volume;
    let _inner = state.read();
    let size = state.inode.size(volume)?;
    let len = short_len(size.saturating_sub(offset), out.len());
    let mut rest = &mut out[..len];
    let mut at = offset;
    while !rest.is_empty() {
        let within = at % PAGE_BYTES;
        let (part, after) = rest.split_at_mut(short_len(PAGE_BYTES - within, rest.len()));
        match tree::find(volume, &state.inode, at / PAGE_BYTES)? {
            Some(slot) => volume.pmem().load(volume.page(slot.number)? + within, part),
            None => part.fill(0),
        }
        at += part.len() as u64;
        rest = after;
    }
    Ok(len)
}

/// The first byte at an offset or behind it that is data, or in a hole. The end of the file is a hole.
pub(crate) fn seek<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    offset: u64,
    for_data: bool,
) -> Result<u64, FsError> {
    check_is_file(&state.inode)?;
    let (volume, inode) = (&shared.volume, &state.inode);
    let _inner = state.read();
    let size = inode.size(volume)?;
    if offset >= size {
        return Err(FsError::NoData);
    }
    let index = offset / PAGE_BYTES;
    if for_data {
        let found = walk::next(volume, inode, index)?.map(|next| (next.index * PAGE_BYTES).max(offset));
        return found.filter(|at| *at < size).ok_or(FsError::NoData);
    }
    Ok((walk::next_hole(volume, inode, index)? * PAGE_BYTES).clamp(offset, size))
}

/// The bytes of the pages of a file.
pub(crate) fn allocated_bytes<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<u64, FsError> {
    check_is_file(&state.inode)?;
    let _inner = state.read();
    Ok(walk::page_count(&shared.volume, &state.inode)? * PAGE_BYTES)
}

/// The target of a symbolic link.
pub(crate) fn read_link<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<Vec<u8>, FsError> {
    let _inner = state.read();
    symlink::read(&shared.volume, &state.inode)
}
