//! WineFS: an inode is written to a free slot of its table, then the directory is made to lead there.

use crate::harness::*;

/// The directory's one entry, and the table. It begins after a header of 8 bytes, so that inodes of 48 bytes straddle lines now and then.
const DIRECTORY: u64 = 0;
const TABLE: u64 = 256 + 8;
const INODE_BYTES: u64 = 48;
const LINE_BYTES: u64 = 64;

/// Writes back an object that is no longer than a line.
fn flush_object(pmem: &SimPmem, form: Form, offset: u64, len_bytes: u64) {
    let end = if form == Form::Bug { offset + 1 } else { offset + len_bytes };
    let mut line = offset / LINE_BYTES * LINE_BYTES;
    while line < end {
        pmem.flush(line, LINE_BYTES);
        line += LINE_BYTES;
    }
}

/// Writes an inode of a size and five extents, and lets the directory lead to it.
fn write_inode(pmem: &SimPmem, form: Form, slot: u64, size: u64) -> Done {
    let inode = TABLE + slot * INODE_BYTES;
    let extents = [1, 2, 3, 4, 5].map(|extent| size + extent);
    pmem.store(inode, &bytes_of(&[&[size], &extents[..]].concat())); //~ B30 lost: flush missing
    flush_object(pmem, form, inode, INODE_BYTES);
    pmem.fence()?;
    pmem.put(DIRECTORY, inode)
}

fn size_and_extents(pmem: &SimPmem) -> Option<[u64; 6]> {
    let inode = pmem.load_u64(DIRECTORY);
    (inode != 0).then(|| load_words(pmem, inode))
}

/// B30, reported by Chipmunk: a flush of an object no longer than a line writes back one line. The inode in the second
/// slot straddles two: its last extents are lost.
pub(crate) fn flush_of_the_first_line_only(form: Form) -> Case {
    let inode = |size: u64| Some([0, 1, 2, 3, 4, 5].map(|extent| size + extent));
    let write = move |pmem: &SimPmem, (slot, size)| write_inode(pmem, form, slot, size);
    let states = [None, inode(100), inode(200)];
    Case::steps(image(|_| ()), [(0, 100), (1, 200)], write, states, |pmem| Ok(size_and_extents(pmem)))
}
