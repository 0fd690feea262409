//! aarch64: `dc cvap` and `dsb`.
//!
//! There is no non-temporal store with its own durability here: data is stored through the cache and cleaned to
//! the point of persistence, line by line.
//!
//! # Source
//! Arm ARM (DDI 0487), C5.3 `DC CVAP` and D8 "point of persistence"; Linux `arch/arm64/include/asm/hwcap.h`.

use super::{FlushInsn, NtWidth};
use crate::line::{LINE, for_each_line};
use core::arch::asm;

/// `HWCAP_DCPOP`: user space may clean to the point of persistence.
const HWCAP_DCPOP: u64 = 1 << 16;

pub(super) fn has_flush(insn: FlushInsn) -> bool {
    // SAFETY: getauxval reads the process's own auxiliary vector and has no preconditions.
    let hwcap = unsafe { libc::getauxval(libc::AT_HWCAP) };
    matches!(insn, FlushInsn::DcCvap) && hwcap & HWCAP_DCPOP != 0
}

pub(super) fn has_nt_width(width: NtWidth) -> bool {
    matches!(width, NtWidth::B16)
}

#[inline(always)]
pub(super) fn fence() {
    // SAFETY: DSB touches no register and no flag.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}

#[inline(always)]
pub(super) fn full_fence() {
    fence();
}

/// # Safety
/// As [`Insns::flush_range`](super::Insns::flush_range), with `insn` supported.
#[inline]
pub(super) unsafe fn flush_range(insn: FlushInsn, start: *const u8, len: usize) {
    if insn != FlushInsn::DcCvap {
        return;
    }
    // A line longer than 64 bytes is cleaned more than once, which does no harm; shorter ones do not occur where
    // DC CVAP does.
    for_each_line(start.addr(), len, |line| {
        // SAFETY: the line holds a byte of the caller's range, which lies in a live mapping.
        unsafe { asm!("dc cvap, {}", in(reg) line, options(nostack, preserves_flags)) }
    });
}

/// Stores whole lines through the cache and cleans them.
///
/// # Safety
/// `dst` must be line-aligned and writable, `src` readable, for `lines * 64` bytes; `lines` not zero.
#[inline]
pub(super) unsafe fn copy_lines_nt(_width: NtWidth, dst: *mut u8, src: *const u8, lines: usize) {
    // SAFETY: the caller's contract.
    unsafe { copy_words(dst, src, lines * LINE / 8) };
    // SAFETY: the caller's contract.
    unsafe { flush_range(FlushInsn::DcCvap, dst, lines * LINE) };
}

/// Stores one aligned word and cleans its line.
///
/// # Safety
/// `dst` must be writable for 8 bytes and a multiple of 8.
#[inline(always)]
pub(super) unsafe fn store_word_nt(dst: *mut u8, word: u64) {
    // SAFETY: the caller's contract.
    unsafe { asm!("str {}, [{}]", in(reg) word, in(reg) dst, options(nostack, preserves_flags)) };
    // SAFETY: the caller's contract.
    unsafe { flush_range(FlushInsn::DcCvap, dst, 8) };
}

/// Copies words through the cache, each in one piece.
///
/// # Safety
/// `src` readable and `dst` writable for `words * 8` bytes, not overlapping.
#[inline]
pub(super) unsafe fn copy_words(dst: *mut u8, src: *const u8, words: usize) {
    if words == 0 {
        return;
    }
    // SAFETY: the caller's contract; ordinary memory may be read unaligned.
    unsafe {
        asm!(
            "2:",
            "ldr {w}, [{src}], #8",
            "str {w}, [{dst}], #8",
            "subs {n}, {n}, #1",
            "b.ne 2b",
            src = inout(reg) src => _, dst = inout(reg) dst => _, n = inout(reg) words => _, w = out(reg) _,
            options(nostack),
        );
    }
}
