//! x86_64: `clwb`, `clflushopt`, `clflush`, `movnt*`, `sfence`, `mfence`; `vmovdqa` and `cmpxchg16b` for pairs of words.
//!
//! This module uses inline assembly and no intrinsics: an access to persistent memory may race with other threads, and the compiler must not tear,
//! duplicate, reorder or drop it. An `asm!` block without `nomem` is opaque, and orders the compiler's own accesses around it.

use super::{FlushInsn, NtWidth, PairInsn};
use crate::line::for_each_line;
use core::arch::asm;

/// CPUID leaf 7, sub-leaf 0, EBX: CLFLUSHOPT is bit 23, CLWB bit 24 (Intel SDM vol. 2, CPUID).
const CPUID_7_EBX_CLFLUSHOPT: u32 = 1 << 23;
const CPUID_7_EBX_CLWB: u32 = 1 << 24;

fn cpuid_7_ebx() -> u32 {
    if core::arch::x86_64::__cpuid(0).eax < 7 {
        return 0;
    }
    core::arch::x86_64::__cpuid_count(7, 0).ebx
}

pub(super) fn has_flush(insn: FlushInsn) -> bool {
    match insn {
        FlushInsn::Clwb => cpuid_7_ebx() & CPUID_7_EBX_CLWB != 0,
        FlushInsn::ClflushOpt => cpuid_7_ebx() & CPUID_7_EBX_CLFLUSHOPT != 0,
        FlushInsn::Clflush | FlushInsn::Nothing => true,
        FlushInsn::DcCvap => false,
    }
}

pub(super) fn has_nt_width(width: NtWidth) -> bool {
    match width {
        NtWidth::B16 => true,
        NtWidth::B32 => std::arch::is_x86_feature_detected!("avx"),
        NtWidth::B64 => std::arch::is_x86_feature_detected!("avx512f"),
    }
}

/// The vendors that document that their CPUs with AVX store 16 aligned bytes atomically: CPUID leaf 0, EBX, EDX and ECX.
///
/// # Source
/// Intel SDM vol. 3A, "Guaranteed Atomic Operations" (since 2021); AMD APM vol. 2, 7.3.2, "Access Atomicity".
const ATOMIC_WITH_AVX: [&[u8; 12]; 2] = [b"GenuineIntel", b"AuthenticAMD"];

fn has_atomic_vmovdqa() -> bool {
    let id = core::arch::x86_64::__cpuid(0);
    let maker = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
    let is_promised = ATOMIC_WITH_AVX.iter().any(|known| maker.as_flattened() == known.as_slice());
    is_promised && std::arch::is_x86_feature_detected!("avx")
}

pub(super) fn has_pair(insn: PairInsn) -> bool {
    match insn {
        PairInsn::Vmovdqa => has_atomic_vmovdqa(),
        PairInsn::Cmpxchg16b => std::arch::is_x86_feature_detected!("cmpxchg16b"),
        PairInsn::Stlxp => false,
    }
}

/// Orders all earlier flushes and non-temporal stores of this thread, and waits for them: `sfence`, on aarch64 `dsb sy`.
#[inline(always)]
pub fn fence() {
    // SAFETY: every x86_64 CPU has SFENCE, which changes no register and no flag.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}

/// The time stamp counter: `rdtsc`, on aarch64 `mrs cntvct_el0`. Earlier instructions of this thread may still be in progress.
#[inline(always)]
pub fn ticks() -> u64 {
    let (high, low): (u64, u64);
    // SAFETY: every x86_64 CPU has RDTSC, which changes no flag and only the named registers. Linux forbids it only to a process that has asked for that.
    unsafe { asm!("rdtsc", out("rdx") high, out("rax") low, options(nostack, preserves_flags)) };
    high << 32 | low
}

/// The time stamp counter, when all earlier loads of this thread have completed: `lfence` and `rdtsc`, on aarch64 `isb` and `mrs cntvct_el0`.
#[inline(always)]
pub fn ticks_after_loads() -> u64 {
    // SAFETY: every x86_64 CPU has LFENCE, which changes no register and no flag.
    unsafe { asm!("lfence", options(nostack, preserves_flags)) };
    ticks()
}

/// Brings the line of an address into the cache for a store: `prefetchw`, on old CPUs a `nop`; on aarch64 `prfm pstl1keep`. Never faults.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    // SAFETY: PREFETCHW is a hint, on old CPUs a NOP: it never faults, and changes no register, no flag and no byte.
    unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
}

/// Brings the line of an address into the cache for a load: `prefetcht0`, on aarch64 `prfm pldl1keep`. Never faults.
#[inline(always)]
pub fn prefetch_read(address: *const u8) {
    // SAFETY: PREFETCHT0 is a hint: it never faults, and changes no register, no flag and no byte.
    unsafe { asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
}

/// A full fence, which orders loads too: `mfence`, on aarch64 `dsb sy`. Write paths need it after `clflush` only.
#[inline(always)]
pub fn full_fence() {
    // SAFETY: every x86_64 CPU has MFENCE, which changes no register and no flag.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) }
}

/// Runs one flush instruction for each line of a range.
macro_rules! flush_lines {
    ($insn:literal, $start:expr, $len:expr) => {
        for_each_line($start.addr(), $len, |line| {
            // SAFETY: the line holds a byte of the caller's range, which lies in a live mapping.
            unsafe { asm!(concat!($insn, " [{}]"), in(reg) line, options(nostack, preserves_flags)) }
        })
    };
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
        std::arch::is_x86_feature_detected!("sse4.2").then_some(Self(()))
    }

    /// The state after eight more bytes.
    #[inline(always)]
    pub(crate) fn word(self, mut state: u64, word: u64) -> u64 {
        // SAFETY: the CPU has the instruction, because `self` exists.
        unsafe {
            asm!("crc32 {}, {}", inout(reg) state, in(reg) word, options(pure, nomem, nostack, preserves_flags));
        };
        state
    }

    /// The state after four more bytes.
    #[inline(always)]
    pub(crate) fn half(self, mut state: u64, half: u32) -> u64 {
        // SAFETY: the CPU has the instruction, because `self` exists.
        unsafe {
            asm!("crc32 {:e}, {:e}", inout(reg) state, in(reg) half, options(pure, nomem, nostack, preserves_flags));
        };
        state
    }

    /// The state after one more byte.
    #[inline(always)]
    pub(crate) fn byte(self, mut state: u64, byte: u8) -> u64 {
        // SAFETY: the CPU has the instruction, because `self` exists.
        unsafe {
            asm!("crc32 {:e}, {}", inout(reg) state, in(reg_byte) byte, options(pure, nomem, nostack, preserves_flags));
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
        std::arch::is_x86_feature_detected!("pclmulqdq").then_some(Self(()))
    }

    /// The low word of the product of two words as polynomials over GF(2).
    #[inline(always)]
    pub(crate) fn multiply(self, left: u64, right: u64) -> u64 {
        let product: u64;
        // SAFETY: the CPU has the instruction, because `self` exists; the block clobbers only what it names.
        unsafe {
            asm!(
                "movq {x}, {left}",
                "movq {y}, {right}",
                "pclmulqdq {x}, {y}, 0",
                "movq {product}, {x}",
                x = out(xmm_reg) _, y = out(xmm_reg) _, left = in(reg) left, right = in(reg) right, product = out(reg) product,
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
    match insn {
        FlushInsn::Clwb => flush_lines!("clwb", start, len),
        FlushInsn::ClflushOpt => flush_lines!("clflushopt", start, len),
        FlushInsn::Clflush => {
            flush_lines!("clflush", start, len);
            // SFENCE orders CLFLUSH on Intel's CPUs. On AMD's, only MFENCE does (APM vol. 3, CLFLUSH).
            full_fence();
        }
        FlushInsn::DcCvap | FlushInsn::Nothing => {}
    }
}

/// Copies `lines` whole lines with non-temporal stores.
///
/// # Safety
/// `dst` must be line-aligned and writable, `src` readable, for `lines * 64` bytes; `lines` must not be zero, and `width` must be supported.
#[inline]
pub(super) unsafe fn copy_lines_nt(width: NtWidth, dst: *mut u8, src: *const u8, lines: usize) {
    match width {
        // zmm16 and above do not dirty the upper halves of the legacy registers, so vzeroupper is not needed. SAFETY: the caller's contract; the
        // block clobbers only what it names.
        NtWidth::B64 => unsafe {
            asm!(
                "2:",
                "vmovdqu64 zmm16, [{src}]",
                "vmovntdq [{dst}], zmm16",
                "add {src}, 64",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                src = inout(reg) src => _, dst = inout(reg) dst => _, n = inout(reg) lines => _,
                // A caller compiled for AVX-512 may hold a value in zmm16.
                out("zmm16") _,
                options(nostack),
            );
        },
        // SAFETY: as above.
        NtWidth::B32 => unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [{src}]",
                "vmovdqu ymm1, [{src} + 32]",
                "vmovntdq [{dst}], ymm0",
                "vmovntdq [{dst} + 32], ymm1",
                "add {src}, 64",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                "vzeroupper",
                src = inout(reg) src => _, dst = inout(reg) dst => _, n = inout(reg) lines => _,
                // vzeroupper clears the upper halves of all sixteen registers.
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack),
            );
        },
        // SAFETY: as above.
        NtWidth::B16 => unsafe {
            asm!(
                "2:",
                "movdqu xmm0, [{src}]",
                "movdqu xmm1, [{src} + 16]",
                "movdqu xmm2, [{src} + 32]",
                "movdqu xmm3, [{src} + 48]",
                "movntdq [{dst}], xmm0",
                "movntdq [{dst} + 16], xmm1",
                "movntdq [{dst} + 32], xmm2",
                "movntdq [{dst} + 48], xmm3",
                "add {src}, 64",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                src = inout(reg) src => _, dst = inout(reg) dst => _, n = inout(reg) lines => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack),
            );
        },
    }
}

/// Stores one aligned word around the cache.
///
/// # Safety
/// `dst` must be writable for 8 bytes and a multiple of 8.
#[inline(always)]
pub(super) unsafe fn store_word_nt(dst: *mut u8, word: u64) {
    // SAFETY: the caller's contract; every x86_64 CPU has MOVNTI, which is part of SSE2.
    unsafe { asm!("movnti [{}], {}", in(reg) dst, in(reg) word, options(nostack, preserves_flags)) }
}

/// Stores an aligned pair of words atomically. Every store is a release on x86.
///
/// # Safety
/// As [`Insns::store_u128`](super::Insns::store_u128), with `insn` supported.
#[inline(always)]
pub(super) unsafe fn store_u128(insn: PairInsn, dst: *mut u8, value: u128) {
    #[expect(clippy::cast_possible_truncation, reason = "its two halves")]
    let (low, high) = (value as u64, (value >> 64) as u64);
    match insn {
        // VEX-encoded instructions clear the upper half of the register, so vzeroupper is not needed. SAFETY: the caller's contract; the block
        // clobbers only what it names.
        PairInsn::Vmovdqa => unsafe {
            asm!(
                "vmovq {pair}, {low}",
                "vpinsrq {pair}, {pair}, {high}, 1",
                "vmovdqa [{dst}], {pair}",
                pair = out(xmm_reg) _, low = in(reg) low, high = in(reg) high, dst = in(reg) dst,
                options(nostack, preserves_flags),
            );
        },
        // The first load of the old pair may be torn: in that case the first `cmpxchg16b` fails, and loads the pair atomically. SAFETY: as above;
        // RBX, which the compiler reserves, is restored.
        PairInsn::Cmpxchg16b | PairInsn::Stlxp => unsafe {
            asm!(
                "xchg rsi, rbx",
                "mov rax, [rdi]",
                "mov rdx, [rdi + 8]",
                "2:",
                "lock cmpxchg16b [rdi]",
                "jnz 2b",
                "mov rbx, rsi",
                inout("rsi") low => _, in("rcx") high, in("rdi") dst, out("rax") _, out("rdx") _,
                options(nostack),
            );
        },
    }
}

/// Copies words through the cache, in any order, with `rep movsq`, which is fastest above a few hundred bytes. Each word of an aligned
/// destination is stored atomically.
///
/// # Safety
/// `src` must be readable and `dst` writable for `words * 8` bytes. They must not overlap.
#[inline]
pub(super) unsafe fn copy_words(dst: *mut u8, src: *const u8, words: usize) {
    // SAFETY: the caller's contract; the ABI keeps the direction flag clear.
    unsafe {
        asm!(
            "rep movsq",
            inout("rcx") words => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags),
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
            asm!("mov byte ptr [{}], {}", in(reg) dst, in(reg_byte) value.to_le_bytes()[0], options(nostack, preserves_flags))
        },
        // SAFETY: the caller's contract.
        2 => unsafe {
            asm!("mov word ptr [{}], {:x}", in(reg) dst, in(reg) value, options(nostack, preserves_flags))
        },
        // SAFETY: the caller's contract.
        _ => unsafe {
            asm!("mov dword ptr [{}], {:e}", in(reg) dst, in(reg) value, options(nostack, preserves_flags))
        },
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
            asm!("movzx {:e}, byte ptr [{}]", out(reg) value, in(reg) src, options(nostack, preserves_flags, readonly))
        },
        // SAFETY: the caller's contract.
        2 => unsafe {
            asm!("movzx {:e}, word ptr [{}]", out(reg) value, in(reg) src, options(nostack, preserves_flags, readonly))
        },
        // SAFETY: the caller's contract.
        _ => unsafe {
            asm!("mov {:e}, dword ptr [{}]", out(reg) value, in(reg) src, options(nostack, preserves_flags, readonly))
        },
    }
    value
}
