//! Links to offsets that a test computes: the only file with `unsafe` in the test programs that include it.

#![allow(
    unsafe_code,
    dead_code,
    reason = "makes links of offsets; not every test that declares it needs one"
)]

use pm_core::Link;

/// A link to `offset`.
pub(crate) fn link_to<'p, T>(offset: u64) -> Link<'p, T> {
    // SAFETY: a test passes the offset of a durable value, or an invalid offset that must be refused.
    unsafe { Link::new_unchecked(offset) }
}
