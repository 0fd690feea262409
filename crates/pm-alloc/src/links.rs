//! Creates links from offsets, and values that contain links from bytes. This is the only file of this crate with `unsafe`.

#![expect(unsafe_code, reason = "an allocator creates links before their targets are durable")]

use pm_core::{Link, Persist};

/// A link to `offset`, which is the offset of a root's value, or of a block that is allocated by the same commit that stores the link.
pub(crate) const fn link_to<'p, T>(offset: u64) -> Link<'p, T> {
    // SAFETY: the commit that makes the link durable also makes the block durable, and the value of a root is durable.
    unsafe { Link::new_unchecked(offset) }
}

/// Makes a value from the bytes that `fill` loads. `fill` loads them from the heap to which the value's links belong.
pub(crate) fn value_from<T: Persist>(fill: impl FnOnce(&mut [u8])) -> T {
    // SAFETY: `fill` loads bytes of the heap that the links' brand denotes.
    unsafe { pm_core::from_bytes_unchecked(fill) }
}
