//! aarch64: `dc cvap` and `dsb`; `ldxp` and `stlxp` for pairs of words.
//!
//! On aarch64 no non-temporal store makes data durable: data is stored through the cache, and each line is cleaned to the point of persistence.
//!
//! # Source
//! Arm ARM (DDI 0487), C5.3 `DC CVAP` and D8 "point of persistence"; Linux `arch/arm64/include/asm/hwcap.h`.

use super::{FlushInsn, NtWidth, PairInsn};
use crate::line::{LINE, for_each_line};
use core::arch::asm;

/// `HWCAP_DCPOP`: user space may clean to the point of persistence.
const HWCAP_DCPOP: u64 = 1 << 16;

pub(super) fn has_flush(insn: FlushInsn) -> bool {
    // SAFETY: getauxval reads the auxiliary vector of the process, and has no preconditions.
    let hwcap = unsafe { libc::getauxval(libc::AT_HWCAP) };
    matches!(insn, FlushInsn::DcCvap) && hwcap & HWCAP_DCPOP != 0
}

pub(super) fn has_nt_width(width: NtWidth) -> bool {
    matches!(width, NtWidth::B16)
}

pub(super) fn has_pair(insn: PairInsn) -> bool {
    matches!(insn, PairInsn::Stlxp)
}

/// Orders all earlier flushes and non-temporal stores of this thread, and waits for them: `sfence`, on aarch64 `dsb sy`.
#[inline(always)]
pub fn fence() {
    // SAFETY: DSB changes no register and no flag.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}

/// The time stamp counter: `rdtsc`, on aarch64 `mrs cntvct_el0`. Earlier instructions of this thread may still be in progress.
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets programs read the virtual counter; the instruction changes no flag and only the named register.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// The time stamp counter, when all earlier loads of this thread have completed: `lfence` and `rdtsc`, on aarch64 `isb` and `mrs cntvct_el0`.
#[inline(always)]
pub fn ticks_after_loads() -> u64 {
    // SAFETY: the barriers change no register and no flag.
    unsafe { asm!("dsb ishld", "isb", options(nostack, preserves_flags)) };
    ticks()
}

/// Brings the line of an address into the cache for a store: `prefetchw`, on old CPUs a `nop`; on aarch64 `prfm pstl1keep`. Never faults.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    // SAFETY: PRFM is a hint: it never faults, and changes no register, no flag and no byte.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
}

/// Brings the line of an address into the cache for a load: `prefetcht0`, on aarch64 `prfm pldl1keep`. Never faults.
#[inline(always)]
pub fn prefetch_read(address: *const u8) {
    // SAFETY: PRFM is a hint: it never faults, and changes no register, no flag and no byte.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
}

/// A full fence, which orders loads too: `mfence`, on aarch64 `dsb sy`. For studies and litmus tests; no write path needs it.
#[inline(always)]
pub fn full_fence() {
    fence();
}

/// The CPU's instruction for CRC-32C: a value of this type exists only if the CPU has it.
///
/// The methods take and return the state of a computation: the inverted CRC, in the low half of a word whose high half is zero. They are not the
/// intrinsics: a function with their target feature would not be inlined, and a call costs more than the instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc32c(());

impl Crc32c {
    /// `None` if the CPU lacks the instruction.
    #[inline(always)]
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("crc").then_some(Self(()))
    }

    /// The state after eight more bytes.
    #[inline(always)]
    pub(crate) fn word(self, mut state: u64, word: u64) -> u64 {
        // SAFETY: the CPU has the instruction, because `self` exists.
        unsafe {
            asm!(
                ".arch_extension crc",
                "crc32cx {state:w}, {state:w}, {word}",
                state = inout(reg) state, word = in(reg) word,
                options(pure, nomem, nostack, preserves_flags),
            );
        };
        state
    }

    /// The state after four more bytes.
    #[inline(always)]
    pub(crate) fn half(self, mut state: u64, half: u32) -> u64 {
        // SAFETY: the CPU has the instruction, because `self` exists.
        unsafe {
            asm!(
                ".arch_extension crc",
                "crc32cw {state:w}, {state:w}, {half:w}",
                state = inout(reg) state, half = in(reg) half,
                options(pure, nomem, nostack, preserves_flags),
            );
        };
        state
    }

    /// The state after one more byte.
    #[inline(always)]
    pub(crate) fn byte(self, mut state: u64, byte: u8) -> u64 {
        // SAFETY: the CPU has the instruction, because `self` exists.
        unsafe {
            asm!(
                ".arch_extension crc",
                "crc32cb {state:w}, {state:w}, {byte:w}",
                state = inout(reg) state, byte = in(reg) byte,
                options(pure, nomem, nostack, preserves_flags),
            );
        };
        state
    }
}

/// The CPU's instruction for carry-less products: a value of this type exists only if the CPU has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CarrylessMultiply(());

impl CarrylessMultiply {
    /// `None` if the CPU lacks the instruction.
    #[inline(always)]
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("pmull").then_some(Self(()))
    }

    /// The low word of the product of two words as polynomials over GF(2).
    #[inline(always)]
    pub(crate) fn multiply(self, left: u64, right: u64) -> u64 {
        let product: u64;
        // SAFETY: the CPU has the instruction, because `self` exists; the block clobbers only what it names.
        unsafe {
            asm!(
                ".arch_extension aes",
                "fmov {x:d}, {left}",
                "fmov {y:d}, {right}",
                "pmull {x:v}.1q, {x:v}.1d, {y:v}.1d",
                "fmov {product}, {x:d}",
                x = out(vreg) _, y = out(vreg) _, left = in(reg) left, right = in(reg) right, product = out(reg) product,
                options(pure, nomem, nostack, preserves_flags),
            );
        };
        product
    }
}

/// # Safety
/// As [`Insns::flush_range`](super::Insns::flush_range), with `insn` supported.
#[inline]
pub(super) unsafe fn flush_range(insn: FlushInsn, start: *const u8, len: usize) {
    if insn != FlushInsn::DcCvap {
        return;
    }
    // The line may hold a store of another CPU that this CPU observed through a lock. A load with acquire semantics orders later loads and stores,
    // but not cache maintenance: without a barrier the line could be cleaned before the store is in it. (Arm ARM, "Ordering and completion of data
    // and instruction cache instructions"; Linux has the same barrier in arch_wb_cache_pmem.) SAFETY: DMB changes no register and no flag.
    unsafe { asm!("dmb osh", options(nostack, preserves_flags)) };
    // A line longer than 64 bytes is cleaned more than once, which is harmless; no CPU with DC CVAP has shorter lines.
    for_each_line(start.addr(), len, |line| {
        // This is `dc cvap`, which the assembler knows only with the target feature `dpb`. SAFETY: the line holds a byte of the caller's range, which
        // lies in a live mapping.
        unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags)) }
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

/// Stores an aligned pair of words atomically, with release ordering. A successful exclusive store of an aligned pair is single-copy atomic (Arm
/// ARM, B2.2.1); a plain `stp` is atomic only with FEAT_LSE2.
///
/// # Safety
/// As [`Insns::store_u128`](super::Insns::store_u128).
#[inline(always)]
pub(super) unsafe fn store_u128(_insn: PairInsn, dst: *mut u8, value: u128) {
    #[expect(clippy::cast_possible_truncation, reason = "its two halves")]
    let (low, high) = (value as u64, (value >> 64) as u64);
    // The load sets the exclusive monitor; its value is not used. SAFETY: the caller's contract; the block clobbers only what it names.
    unsafe {
        asm!(
            "2:",
            "ldxp {old_low}, {old_high}, [{dst}]",
            "stlxp {failed:w}, {low}, {high}, [{dst}]",
            "cbnz {failed:w}, 2b",
            old_low = out(reg) _, old_high = out(reg) _, failed = out(reg) _,
            low = in(reg) low, high = in(reg) high, dst = in(reg) dst,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies words through the cache, each atomically.
///
/// # Safety
/// `src` must be readable and `dst` writable for `words * 8` bytes. They must not overlap.
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

/// Stores the first `len` bytes (1, 2 or 4) of `value` atomically.
///
/// # Safety
/// `dst` must be writable for `len` bytes and a multiple of `len`.
#[inline(always)]
pub(super) unsafe fn store_piece(dst: *mut u8, value: u32, len: usize) {
    match len {
        // SAFETY: the caller's contract.
        1 => unsafe {
            asm!("strb {:w}, [{}]", in(reg) value, in(reg) dst, options(nostack, preserves_flags))
        },
        // SAFETY: the caller's contract.
        2 => unsafe {
            asm!("strh {:w}, [{}]", in(reg) value, in(reg) dst, options(nostack, preserves_flags))
        },
        // SAFETY: the caller's contract.
        _ => unsafe { asm!("str {:w}, [{}]", in(reg) value, in(reg) dst, options(nostack, preserves_flags)) },
    }
}

/// Loads `len` bytes (1, 2 or 4) atomically; the upper bytes of the result are zero.
///
/// # Safety
/// `src` must be readable for `len` bytes and a multiple of `len`.
#[inline(always)]
pub(super) unsafe fn load_piece(src: *const u8, len: usize) -> u32 {
    let value: u32;
    match len {
        // SAFETY: the caller's contract.
        1 => unsafe {
            asm!("ldrb {:w}, [{}]", out(reg) value, in(reg) src, options(nostack, preserves_flags, readonly))
        },
        // SAFETY: the caller's contract.
        2 => unsafe {
            asm!("ldrh {:w}, [{}]", out(reg) value, in(reg) src, options(nostack, preserves_flags, readonly))
        },
        // SAFETY: the caller's contract.
        _ => unsafe {
            asm!("ldr {:w}, [{}]", out(reg) value, in(reg) src, options(nostack, preserves_flags, readonly))
        },
    }
    value
}
