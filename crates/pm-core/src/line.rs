//! The cache line, the unit in which stores reach persistent memory, and the arithmetic on ranges of lines.

/// Bytes of one cache line: 64 on every CPU that this crate supports. Lines begin at multiples of it.
pub const LINE_BYTES: u64 = 64;

/// The same for arithmetic on addresses.
pub(crate) const LINE: usize = 64;
const _: () = assert!(LINE as u64 == LINE_BYTES);

/// The start of the line that holds the byte at `offset`.
#[must_use]
#[inline]
pub const fn line_start(offset: u64) -> u64 {
    offset & !(LINE_BYTES - 1)
}

/// How many lines hold at least one byte of the `len` bytes at `offset`; zero for an empty range.
///
/// Both ends come from the exact range: an end computed from a rounded start misses the last line of a range
/// that straddles one.
///
/// # Panics
/// If `offset + len` passes `u64::MAX`.
#[must_use]
#[inline]
pub const fn lines_spanned(offset: u64, len: u64) -> u64 {
    if len == 0 {
        return 0;
    }
    let last_byte = offset.checked_add(len - 1).expect("the range must end inside 64 bits");
    (line_start(last_byte) - line_start(offset)) / LINE_BYTES + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_count_every_touched_line_once() {
        assert_eq!(lines_spanned(0, 0), 0);
        assert_eq!(lines_spanned(63, 0), 0);
        assert_eq!(lines_spanned(63, 1), 1);
        assert_eq!(lines_spanned(63, 2), 2);
        assert_eq!(lines_spanned(60, 64), 2);
        assert_eq!(lines_spanned(0, 4096), 64);
        assert_eq!(lines_spanned(1, 4096), 65);
    }
}
