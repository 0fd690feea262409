//! A check for allocators after recovery: compares the allocated extents with the reachable ones.

use core::fmt;
use core::ops::Range;

/// Extents about which an allocator and the structures in its memory disagree. Each list is sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// Allocated and not reachable: lost until the pool is recreated.
    pub leaked: Vec<Range<u64>>,
    /// Reachable from two places, each of which will free or change it.
    pub doubly_used: Vec<Range<u64>>,
    /// Allocated twice.
    pub doubly_allocated: Vec<Range<u64>>,
    /// Reachable and free: the next allocation may reuse it.
    pub unallocated: Vec<Range<u64>>,
}

/// Compares allocated with reachable extents, byte for byte. Empty extents are ignored.
///
/// For a check, after recovery: walk the allocator's records and the structures from their roots, and pass the
/// extents of both as the allocator rounds them.
///
/// ```
/// use pm_crashsim::leaks;
/// assert_eq!(leaks([0..64, 64..128], [64..128, 0..64]), Ok(()));
/// let leak = leaks([0..64, 64..128], [0..64]).unwrap_err();
/// assert_eq!(leak.to_string(), "leaked 0x40..0x80");
/// ```
///
/// # Errors
/// Where the two disagree, or one of them names a byte twice.
pub fn leaks(
    allocated: impl IntoIterator<Item = Range<u64>>,
    reachable: impl IntoIterator<Item = Range<u64>>,
) -> Result<(), Leak> {
    // At each offset where an extent begins or ends: the changes of the numbers of allocated and reachable extents.
    let mut edges: Vec<(u64, [i64; 2])> = Vec::new();
    for extent in allocated.into_iter().filter(|extent| !extent.is_empty()) {
        edges.extend([(extent.start, [1, 0]), (extent.end, [-1, 0])]);
    }
    for extent in reachable.into_iter().filter(|extent| !extent.is_empty()) {
        edges.extend([(extent.start, [0, 1]), (extent.end, [0, -1])]);
    }
    edges.sort_by_key(|(offset, _)| *offset);

    let mut leak = Leak::default();
    let (mut allocated, mut reachable, mut from) = (0, 0, 0);
    for (offset, [more_allocated, more_reachable]) in edges {
        let note = |is_so: bool, extents: &mut Vec<Range<u64>>| match extents.last_mut() {
            _ if !is_so || from == offset => {}
            Some(last) if last.end == from => last.end = offset,
            _ => extents.push(from..offset),
        };
        note(allocated > 0 && reachable == 0, &mut leak.leaked);
        note(reachable > 1, &mut leak.doubly_used);
        note(allocated > 1, &mut leak.doubly_allocated);
        note(reachable > 0 && allocated == 0, &mut leak.unallocated);
        (allocated, reachable, from) = (allocated + more_allocated, reachable + more_reachable, offset);
    }
    if leak == Leak::default() { Ok(()) } else { Err(leak) }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("leaked", &self.leaked),
            ("doubly used", &self.doubly_used),
            ("doubly allocated", &self.doubly_allocated),
            ("used but not allocated", &self.unallocated),
        ];
        let mut separator = "";
        for (what, extents) in lists {
            for extent in extents {
                write!(f, "{separator}{what} {:#x}..{:#x}", extent.start, extent.end)?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

impl core::error::Error for Leak {}
