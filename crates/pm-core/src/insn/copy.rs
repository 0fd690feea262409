//! Copies into and out of persistent memory, through and around the cache, at every alignment.
//!
//! Another thread may change persistent memory at any moment, so plain Rust loads and stores never access it. Short copies use relaxed atomics of
//! words; long copies and parts of words use assembly. All Rust atomics here have one size, because Rust's memory model does not define atomics of
//! several sizes on the same bytes. For other sizes, assembly has the behaviour that the CPU's manual defines. Every aligned 8-byte word of the
//! persistent side is copied atomically. A part of a word is copied in pieces of 4, 2 and 1 bytes, each aligned to its length, in the order of
//! addresses ([`piece_bytes`]).

use super::{Insns, arch};
use crate::line::{LINE, piece_bytes};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WORD: usize = 8;

/// The length from which the bulk copy is faster than a loop of words.
const BULK_BYTES: usize = 512;

/// A part of a copy. Invariant, ensured by the unsafe function that creates it: `dst` is writable and `src` readable for `left` bytes; accesses to
/// the persistent side follow the rules of the seam; and the two ranges do not overlap.
struct Span {
    dst: *mut u8,
    src: *const u8,
    left: usize,
}

impl Span {
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

    /// Splits off the bytes from `address` to the next multiple of `align`, or all remaining bytes if there are fewer.
    #[inline(always)]
    fn take_head(&mut self, address: *const u8, align: usize) -> Self {
        self.take((address.addr().wrapping_neg() & (align - 1)).min(self.left))
    }

    /// Splits off all remaining whole units of `unit` bytes.
    #[inline(always)]
    fn take_whole(&mut self, unit: usize) -> Self {
        self.take(self.left - self.left % unit)
    }

    /// Runs `each` on every remaining unit, with the addresses of its destination and its source.
    #[inline(always)]
    fn for_each(self, unit: usize, mut each: impl FnMut(*mut u8, *const u8)) {
        for at in (0..self.left).step_by(unit) {
            each(self.dst.wrapping_add(at), self.src.wrapping_add(at));
        }
    }

    /// Splits off the next piece of less than a word. Its length depends on the alignment of `address` and on the remaining length.
    #[inline]
    fn take_piece(&mut self, address: *const u8) -> Self {
        match piece_bytes(address.addr() as u64, self.left as u64) {
            1 => self.take(1),
            2 => self.take(2),
            _ => self.take(4),
        }
    }

    /// Stores the remaining bytes, less than a word, into persistent memory.
    #[inline(always)]
    fn store_partial_word(self) {
        if self.left != 0 {
            self.store_each_piece();
        }
    }

    /// Out of line, because most copies consist of whole words.
    #[cold]
    #[inline(never)]
    fn store_each_piece(mut self) {
        while self.left != 0 {
            let Self { dst, src, left } = self.take_piece(self.dst);
            let mut piece = [0; 4];
            // SAFETY: inside the source, by the invariant, and the part is less than a word, so a piece is 4 bytes at most.
            unsafe { src.copy_to_nonoverlapping(piece.as_mut_ptr(), left) };
            // SAFETY: inside the destination, by the invariant, and aligned to its length.
            unsafe { arch::store_piece(dst, u32::from_le_bytes(piece), left) };
        }
    }

    /// Stores the words into persistent memory with `put`; the destination must be aligned.
    #[inline(always)]
    fn store_words(self, mut put: impl FnMut(*mut u8, u64)) {
        self.for_each(WORD, |dst, src| {
            // SAFETY: inside the source, by the invariant; alignment is not assumed.
            put(dst, unsafe { src.cast::<u64>().read_unaligned() });
        });
    }

    /// Loads the remaining bytes, less than a word, from persistent memory.
    #[inline(always)]
    fn load_partial_word(self) {
        if self.left != 0 {
            self.load_each_piece();
        }
    }

    /// Out of line, like [`store_each_piece`](Self::store_each_piece).
    #[cold]
    #[inline(never)]
    fn load_each_piece(mut self) {
        while self.left != 0 {
            let Self { dst, src, left } = self.take_piece(self.src);
            // SAFETY: inside the source, by the invariant, and aligned to its length, which is 4 at most.
            let piece = unsafe { arch::load_piece(src, left) }.to_le_bytes();
            // SAFETY: inside the destination, by the invariant.
            unsafe { piece.as_ptr().copy_to_nonoverlapping(dst, left) };
        }
    }

    /// Loads the words from persistent memory; the source must be aligned.
    #[inline(always)]
    fn load_words(self) {
        self.for_each(WORD, |dst, src| {
            // SAFETY: inside the source, aligned, and every access to persistent memory is atomic or assembly.
            let word = unsafe { AtomicU64::from_ptr(src.cast_mut().cast()) }.load(Relaxed);
            // SAFETY: inside the destination, by the invariant; alignment is not assumed.
            unsafe { dst.cast::<u64>().write_unaligned(word) };
        });
    }

    /// Copies the words through the cache, each atomically, in any order; the persistent side must be aligned.
    #[inline(always)]
    fn copy_words(self) {
        // SAFETY: the invariant.
        unsafe { arch::copy_words(self.dst, self.src, self.left / WORD) };
    }
}

/// Copies `len` bytes into persistent memory through the cache.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes. They must not overlap, and there must be no Rust reference to the bytes of `dst`.
#[inline]
pub unsafe fn copy_to_pmem(dst: *mut u8, src: *const u8, len: usize) {
    let mut rest = Span { dst, src, left: len };
    rest.take_head(dst, WORD).store_partial_word();
    let words = rest.take_whole(WORD);
    if words.left >= BULK_BYTES {
        words.copy_words();
    } else {
        words.store_words(|dst, word| {
            // SAFETY: aligned and inside the destination; every access to persistent memory is atomic or assembly.
            unsafe { AtomicU64::from_ptr(dst.cast()) }.store(word, Relaxed);
        });
    }
    rest.store_partial_word();
}

/// Copies `len` bytes out of persistent memory.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes. They must not overlap, and there must be no mutable Rust reference to the bytes of
/// `src`.
#[inline]
pub unsafe fn copy_from_pmem(dst: *mut u8, src: *const u8, len: usize) {
    let mut rest = Span { dst, src, left: len };
    rest.take_head(src, WORD).load_partial_word();
    let words = rest.take_whole(WORD);
    if words.left >= BULK_BYTES {
        words.copy_words();
    } else {
        words.load_words();
    }
    rest.load_partial_word();
}

/// The parts of a copy around the cache.
enum Part {
    /// Less than a word at either end: stored through the cache, and flushed.
    PartialWord(Span),
    /// Aligned words.
    Words(Span),
    /// Aligned whole lines.
    Lines(Span),
}

/// Cuts a copy into parts: a partial word up to the first whole word, words up to the first line, whole lines, words, and a partial word at the
/// end. Empty parts are left out.
#[inline(always)]
fn cut_nt(mut rest: Span, mut each: impl FnMut(Part)) {
    let mut put = |part: Span, kind: fn(Span) -> Part| {
        if part.left != 0 {
            each(kind(part));
        }
    };
    put(rest.take_head(rest.dst, WORD), Part::PartialWord);
    // A short copy may end before the next line starts: then less than a line is left, and the `Lines` part is empty.
    let to_line = (rest.dst.addr().wrapping_neg() % LINE).min(rest.left);
    put(rest.take(to_line / WORD * WORD), Part::Words);
    put(rest.take_whole(LINE), Part::Lines);
    put(rest.take_whole(WORD), Part::Words);
    put(rest, Part::PartialWord);
}

/// Copies `len` bytes into persistent memory around the cache. A part of a word at either end of `dst` is stored through the cache, and its line is
/// flushed. All bytes are durable after [`fence`](super::fence).
///
/// # Safety
/// As for [`copy_to_pmem`], and `dst` must lie inside a live mapping.
#[inline]
pub unsafe fn copy_to_pmem_nt(insns: Insns, dst: *mut u8, src: *const u8, len: usize) {
    cut_nt(Span { dst, src, left: len }, |part| match part {
        Part::PartialWord(bytes) => {
            let (start, len) = (bytes.dst, bytes.left);
            bytes.store_partial_word();
            // SAFETY: the destination lies inside a live mapping, which holds whole lines; `insns` are supported.
            unsafe { insns.flush_range(start, len) };
        }
        Part::Words(words) => words.store_words(|dst, word| {
            // SAFETY: aligned and inside the destination.
            unsafe { arch::store_word_nt(dst, word) }
        }),
        // SAFETY: at least one line, whole and aligned; `insns` are supported.
        Part::Lines(lines) => unsafe {
            arch::copy_lines_nt(insns.nt_width(), lines.dst, lines.src, lines.left / LINE);
        },
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::{FlushInsn, NtWidth, fence};
    use proptest::prelude::*;

    /// Every alignment, and every length up to four lines: the parts leave no gap, and each is aligned as its kind requires.
    #[test]
    fn copy_is_covered_by_aligned_parts() {
        for start in 4096_usize..4096 + 64 {
            for len in 0..=4 * LINE {
                let dst = std::ptr::without_provenance_mut::<u8>(start);
                let mut at = start;
                cut_nt(Span { dst, src: dst, left: len }, |piece| {
                    let (piece, unit) = match piece {
                        Part::PartialWord(piece) => {
                            assert!(piece.left < WORD, "shorter than a word");
                            assert_eq!(at / WORD, (at + piece.left - 1) / WORD, "inside one word");
                            (piece, 1)
                        }
                        Part::Words(piece) => (piece, WORD),
                        Part::Lines(piece) => (piece, LINE),
                    };
                    assert_eq!(
                        (piece.dst.addr(), piece.src.addr()),
                        (at, at),
                        "no gap; source and destination advance together"
                    );
                    assert!(at.is_multiple_of(unit) && piece.left.is_multiple_of(unit) && piece.left != 0);
                    at += piece.left;
                });
                assert_eq!(at, start + len, "{len} bytes at {start} are covered to the end");
            }
        }
    }

    /// At every alignment and length, the pieces are those of `piece_bytes`, on which the simulator relies.
    #[test]
    fn partial_words_are_cut_as_documented() {
        for start in 4096_usize..4096 + 16 {
            for len in 0..40 {
                let dst = std::ptr::without_provenance_mut::<u8>(start);
                let mut rest = Span { dst, src: dst, left: len };
                let mut cut = Vec::new();
                let mut partial = |mut partial: Span| {
                    while partial.left != 0 {
                        let piece = partial.take_piece(partial.dst);
                        cut.push((piece.dst.addr(), piece.left));
                    }
                };
                partial(rest.take_head(dst, WORD));
                let words = rest.take_whole(WORD);
                let words: Vec<_> =
                    (0..words.left).step_by(WORD).map(|at| (words.dst.addr() + at, WORD)).collect();
                partial(rest);
                cut.extend(words);
                cut.sort_unstable();

                let (mut promised, mut done) = (Vec::new(), 0);
                while done < len {
                    let piece = piece_bytes((start + done) as u64, (len - done) as u64);
                    let piece = usize::try_from(piece).unwrap();
                    assert!((start + done).is_multiple_of(piece), "aligned to its length");
                    promised.push((start + done, piece));
                    done += piece;
                }
                assert_eq!(cut, promised, "{len} bytes at {start}");
            }
        }
    }

    fn supported() -> Vec<Insns> {
        let detected = Insns::detect();
        let widths = [NtWidth::B16, NtWidth::B32, NtWidth::B64];
        let flushes = [FlushInsn::Clwb, FlushInsn::ClflushOpt, FlushInsn::Clflush, FlushInsn::DcCvap];
        let with_width = widths.into_iter().filter_map(|width| detected.with_nt_width(width).ok());
        with_width.flat_map(|i| flushes.into_iter().filter_map(move |f| i.with_flush(f).ok())).collect()
    }

    proptest! {
        /// Every instruction, at every alignment of both sides, changes only the bytes of its range.
        #[test]
        fn copies_change_only_their_range(
            src_at in 0_usize..64, dst_at in 0_usize..64, len in 0_usize..1500, seed: u8,
        ) {
            let source: Vec<u8> = (0..=u8::MAX).cycle().take(1600).map(|i| i.wrapping_mul(31) ^ seed).collect();
            let mut expected = vec![0xEE; 2048];
            expected[dst_at..dst_at + len].copy_from_slice(&source[src_at..src_at + len]);
            let from = source[src_at..].as_ptr();
            for insns in supported() {
                let mut target = vec![0xEE; 2048];
                // SAFETY: both ranges are inside their vectors, which nothing else uses during the call.
                unsafe { copy_to_pmem_nt(insns, target[dst_at..].as_mut_ptr(), from, len) };
                fence();
                prop_assert_eq!(&target, &expected, "{}", insns);
            }
            let mut target = vec![0xEE; 2048];
            // SAFETY: as above.
            unsafe { copy_to_pmem(target[dst_at..].as_mut_ptr(), from, len) };
            prop_assert_eq!(&target, &expected);
            let mut target = vec![0xEE; 2048];
            // SAFETY: as above.
            unsafe { copy_from_pmem(target[dst_at..].as_mut_ptr(), from, len) };
            prop_assert_eq!(&target, &expected);
        }
    }

    #[test]
    fn flushes_change_no_bytes_at_any_alignment() {
        let bytes = vec![0x5A; 512];
        for insns in supported() {
            for start in 0..64 {
                for len in [0, 1, 63, 64, 65, 200] {
                    // SAFETY: inside the vector.
                    unsafe { insns.flush_range(bytes[start..].as_ptr(), len) };
                }
            }
        }
        fence();
        assert!(bytes.iter().all(|&byte| byte == 0x5A));
    }

    #[test]
    fn unsupported_instruction_is_refused() {
        let absent = if cfg!(target_arch = "x86_64") { FlushInsn::DcCvap } else { FlushInsn::Clwb };
        let error = Insns::detect().with_flush(absent).unwrap_err();
        assert!(error.to_string().contains(absent.name()), "{error}");
    }
}
