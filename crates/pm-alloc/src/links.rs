//! Making links from offsets, and values that contain links from bytes: the only file of this crate with `unsafe`.

#![expect(unsafe_code, reason = "an allocator makes links before what they lead to is durable")]

use pm_core::{Link, Persist};

/// A link to `offset`: to a block of the transaction or commit that stores the link, or to the value of a root.
pub(crate) const fn link_to<'p, T>(offset: u64) -> Link<'p, T> {
    // SAFETY: a block becomes durable by the commit that makes the link durable, and the value of a root is durable.
    unsafe { Link::new_unchecked(offset) }
}

/// A value from the bytes that `fill` loads from the heap of the value's links.
pub(crate) fn value_from<T: Persist>(fill: impl FnOnce(&mut [u8])) -> T {
    // SAFETY: `fill` loads bytes of the heap that the brand of the links stands for.
    unsafe { pm_core::from_bytes_unchecked(fill) }
}
