//! Copies in and out of persistent memory, and around the cache, at every alignment.
//!
//! Memory on the other side of the seam may be changed by another thread at any moment, so it is never touched
//! by plain Rust loads and stores: short copies are relaxed atomics of a word or a byte, long ones assembly.
//! Every aligned 8-byte word of the destination is stored in one piece, unless the copy covers only part of it.

use super::{Insns, arch};
use crate::line::LINE;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = 8;

/// From this length on, the bulk copy beats a loop of words.
const BULK_BYTES: usize = 512;

/// What is left of a copy. Invariant, from the unsafe function that makes it: `dst` is writable and `src` readable
/// for `left` bytes, one of them through the seam's rules, and they do not overlap.
struct Rest {
    dst: *mut u8,
    src: *const u8,
    left: usize,
}

impl Rest {
    /// Splits off the next `len` bytes.
    #[inline(always)]
    fn take(&mut self, len: usize) -> Self {
        debug_assert!(len <= self.left, "a copy cannot take more than is left");
        let taken = Self { left: len, ..*self };
        self.dst = self.dst.wrapping_add(len);
        self.src = self.src.wrapping_add(len);
        self.left -= len;
        taken
    }

    /// Splits off the bytes before `address` is a multiple of `align`, or all that is left.
    #[inline(always)]
    fn take_head(&mut self, address: *const u8, align: usize) -> Self {
        self.take((address.addr().wrapping_neg() & (align - 1)).min(self.left))
    }

    /// Splits off as many whole units of `unit` bytes as are left.
    #[inline(always)]
    fn take_whole(&mut self, unit: usize) -> Self {
        self.take(self.left - self.left % unit)
    }

    /// Runs `each` on every byte pair, or word pair, that is left.
    #[inline(always)]
    fn for_each(self, unit: usize, mut each: impl FnMut(*mut u8, *const u8)) {
        for at in (0..self.left).step_by(unit) {
            each(self.dst.wrapping_add(at), self.src.wrapping_add(at));
        }
    }

    /// Ordinary bytes into persistent memory, a byte at a time.
    #[inline(always)]
    fn store_bytes(self) {
        self.for_each(1, |dst, src| {
            // SAFETY: inside the source, by the invariant.
            let byte = unsafe { src.read() };
            // SAFETY: inside the destination, and every access to persistent memory is atomic or assembly.
            unsafe { AtomicU8::from_ptr(dst) }.store(byte, Relaxed);
        });
    }

    /// Ordinary words into persistent memory by `put`; the destination is aligned.
    #[inline(always)]
    fn store_words(self, mut put: impl FnMut(*mut u8, u64)) {
        self.for_each(WORD, |dst, src| {
            // SAFETY: inside the source, by the invariant; alignment is not assumed.
            put(dst, unsafe { src.cast::<u64>().read_unaligned() });
        });
    }

    /// Persistent bytes into ordinary memory, a byte at a time.
    #[inline(always)]
    fn load_bytes(self) {
        self.for_each(1, |dst, src| {
            // SAFETY: inside the source, and every access to persistent memory is atomic or assembly.
            let byte = unsafe { AtomicU8::from_ptr(src.cast_mut()) }.load(Relaxed);
            // SAFETY: inside the destination, by the invariant.
            unsafe { dst.write(byte) };
        });
    }

    /// Persistent words into ordinary memory; the source is aligned.
    #[inline(always)]
    fn load_words(self) {
        self.for_each(WORD, |dst, src| {
            // SAFETY: inside the source, aligned, and every access to persistent memory is atomic or assembly.
            let word = unsafe { AtomicU64::from_ptr(src.cast_mut().cast()) }.load(Relaxed);
            // SAFETY: inside the destination, by the invariant; alignment is not assumed.
            unsafe { dst.cast::<u64>().write_unaligned(word) };
        });
    }

    /// All that is left, through the cache, in no order.
    #[inline(always)]
    fn copy_bulk(self) {
        // SAFETY: the invariant.
        unsafe { arch::copy_bulk(self.dst, self.src, self.left) };
    }
}

/// Copies `len` bytes into persistent memory through the cache.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes; they must not overlap, and nothing may hold a Rust
/// reference to `dst`'s bytes.
#[inline]
pub unsafe fn copy_to_pmem(dst: *mut u8, src: *const u8, len: usize) {
    let mut rest = Rest { dst, src, left: len };
    rest.take_head(dst, WORD).store_bytes();
    if rest.left >= BULK_BYTES {
        return rest.copy_bulk();
    }
    rest.take_whole(WORD).store_words(|dst, word| {
        // SAFETY: aligned and inside the destination; every access to persistent memory is atomic or assembly.
        unsafe { AtomicU64::from_ptr(dst.cast()) }.store(word, Relaxed);
    });
    rest.store_bytes();
}

/// Copies `len` bytes out of persistent memory.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes; they must not overlap, and nothing may hold a
/// mutable Rust reference to `src`'s bytes.
#[inline]
pub unsafe fn copy_from_pmem(dst: *mut u8, src: *const u8, len: usize) {
    let mut rest = Rest { dst, src, left: len };
    rest.take_head(src, WORD).load_bytes();
    if rest.left >= BULK_BYTES {
        return rest.copy_bulk();
    }
    rest.take_whole(WORD).load_words();
    rest.load_bytes();
}

/// Head and tail of less than a word through the cache with a flush, words up to the first whole line around it,
/// whole lines at full width, then words and tail again.
///
/// # Safety
/// As [`Insns::copy_nt`].
#[inline]
pub(super) unsafe fn copy_nt(insns: Insns, dst: *mut u8, src: *const u8, len: usize) {
    let mut rest = Rest { dst, src, left: len };
    store_ragged(insns, rest.take_head(dst, WORD));
    // Words as far as the next line starts; a short copy may end before.
    let to_line = rest.dst.addr().wrapping_neg() % LINE;
    let words = to_line.min(rest.left) / WORD * WORD;
    store_words_nt(rest.take(words));
    // Less than a word is left if the line's start was not reached, and so no whole line.
    let lines = rest.take_whole(LINE);
    if lines.left != 0 {
        // SAFETY: whole lines, by the invariant of `Rest`; the width was checked when `insns` was made.
        unsafe { arch::copy_lines_nt(insns.nt_width, lines.dst, lines.src, lines.left / LINE) };
    }
    store_words_nt(rest.take_whole(WORD));
    store_ragged(insns, rest);
}

#[inline(always)]
fn store_words_nt(words: Rest) {
    words.store_words(|dst, word| {
        // SAFETY: aligned and inside the destination.
        unsafe { arch::store_word_nt(dst, word) }
    });
}

/// Less than a word, through the cache, with its line flushed: the part of a non-temporal copy that is easily
/// forgotten.
#[inline(always)]
fn store_ragged(insns: Insns, rest: Rest) {
    if rest.left != 0 {
        let (start, len) = (rest.dst, rest.left);
        rest.store_bytes();
        // SAFETY: the destination lies inside a live mapping.
        unsafe { insns.flush_range(start, len) };
    }
}
