//! The cache line, the unit in which stores reach persistent memory, and arithmetic on ranges of lines.

/// The length of a cache line: 64 bytes on every CPU that this crate supports. Each line starts at a multiple of its length.
pub const LINE_BYTES: u64 = 64;

/// [`LINE_BYTES`] as a `usize`, for arithmetic on addresses.
pub(crate) const LINE: usize = 64;
const _: () = assert!(LINE as u64 == LINE_BYTES);

/// The start of the line that holds the byte at `offset`.
#[must_use]
#[inline]
pub const fn line_start(offset: u64) -> u64 {
    offset & !(LINE_BYTES - 1)
}

/// The number of lines that hold at least one byte of the `len` bytes at `offset`; zero for an empty range.
///
/// Both ends are computed from the exact range: an end computed from a rounded start would miss the last line of a range that straddles lines.
///
/// # Panics
/// If the last byte of the range lies past `u64::MAX`.
#[must_use]
#[inline]
pub const fn lines_spanned(offset: u64, len: u64) -> u64 {
    if len == 0 {
        return 0;
    }
    let last_byte = offset.checked_add(len - 1).expect("the range must end inside 64 bits");
    (line_start(last_byte) - line_start(offset)) / LINE_BYTES + 1
}

/// The length of the next piece of a store that continues at `offset` with `left_bytes` left: the largest power of two up to 8 that is at most
/// `left_bytes` and to which `offset` is aligned. A store consists of such pieces, and each piece is atomic. [`store_u128`](crate::Pmem::store_u128)
/// consists of two pieces, which a crash does not separate.
///
/// ```
/// use pm_core::line::piece_bytes;
/// assert_eq!(piece_bytes(4, 4), 4, "a word of 32 bits is one piece");
/// assert_eq!((piece_bytes(2, 5), piece_bytes(4, 3), piece_bytes(6, 1)), (2, 2, 1));
/// assert_eq!(piece_bytes(64, 100), 8);
/// ```
///
/// # Panics
/// If `left_bytes` is zero.
#[must_use]
#[inline]
pub const fn piece_bytes(offset: u64, left_bytes: u64) -> u64 {
    let aligned_log2 = offset.trailing_zeros();
    let fits_log2 = left_bytes.ilog2();
    let log2 = if aligned_log2 < fits_log2 { aligned_log2 } else { fits_log2 };
    if log2 < 3 { 1 << log2 } else { 8 }
}

/// Calls `each` once for every line that holds a byte of the `len` bytes at `start`, in order, with the address of the line.
///
/// The last line itself ends the loop, because the address after it wraps to zero at the end of the address space.
#[inline(always)]
pub(crate) fn for_each_line(start: usize, len: usize, mut each: impl FnMut(usize)) {
    if len == 0 {
        return;
    }
    let mut line = start & !(LINE - 1);
    let last = (start + (len - 1)) & !(LINE - 1);
    loop {
        each(line);
        if line == last {
            return;
        }
        line += LINE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A naive oracle: the line of each byte.
    fn lines_of_each_byte(start: usize, len: usize) -> Vec<usize> {
        let lines: BTreeSet<usize> = (start..start + len).map(|byte| byte / 64 * 64).collect();
        lines.into_iter().collect()
    }

    fn visited(start: usize, len: usize) -> Vec<usize> {
        let mut lines = Vec::new();
        for_each_line(start, len, |line| lines.push(line));
        lines
    }

    #[test]
    fn short_ranges_visit_each_line_once_in_order() {
        for start in 4096..4096 + 64 {
            for len in 0..=3 * 64 {
                let lines = visited(start, len);
                assert_eq!(lines, lines_of_each_byte(start, len), "{len} bytes at {start}");
                assert_eq!(lines.len() as u64, lines_spanned(start as u64, len as u64));
            }
        }
    }

    proptest! {
        #[test]
        fn any_range_visits_each_line_once_in_order(start in 0_usize..1 << 40, len in 0_usize..20_000) {
            prop_assert_eq!(visited(start, len), lines_of_each_byte(start, len));
        }
    }

    #[test]
    fn walk_ends_at_last_line_of_address_space() {
        assert_eq!(visited(usize::MAX - 63, 64), [usize::MAX - 63]);
    }

    #[test]
    fn spans_count_each_touched_line_once() {
        assert_eq!(lines_spanned(0, 0), 0);
        assert_eq!(lines_spanned(63, 0), 0);
        assert_eq!(lines_spanned(63, 1), 1);
        assert_eq!(lines_spanned(63, 2), 2);
        assert_eq!(lines_spanned(60, 64), 2);
        assert_eq!(lines_spanned(0, 4096), 64);
        assert_eq!(lines_spanned(1, 4096), 65);
    }
}
