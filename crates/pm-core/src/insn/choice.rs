//! A set of instructions, all supported by this CPU.

use super::{FlushInsn, NtWidth, PairInsn, arch};
use core::fmt;
use std::sync::OnceLock;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("pm-core supports the persistence instructions of x86_64 and aarch64 only");
#[cfg(target_endian = "big")]
compile_error!("pm-core's formats are little-endian and typed access reads them in place");

/// The CPU lacks a requested instruction.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("this CPU does not support {wanted}; the best it supports is {available}+{}", .available.pair.name())]
pub struct UnsupportedInsn {
    wanted: &'static str,
    available: Insns,
}

/// A set of instructions, all supported by this CPU.
///
/// ```
/// use pm_core::insn::{FlushInsn, Insns};
/// let detected = Insns::detect();
/// println!("this CPU uses {detected}");
/// # #[cfg(target_arch = "x86_64")]
/// let forced = detected.with_flush(FlushInsn::Clflush)?;
/// # Ok::<(), pm_core::insn::UnsupportedInsn>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Insns {
    flush: FlushInsn,
    nt_width: NtWidth,
    pair: PairInsn,
}

impl Insns {
    /// The best instructions that this CPU supports: for flushes `clwb`, `clflushopt` or `clflush` in this order, or `dc cvap` on aarch64; for
    /// non-temporal stores the greatest width; for pairs of words a plain store, if that is atomic. Detected once per process, because under a
    /// hypervisor each `cpuid` costs thousands of cycles.
    ///
    /// # Panics
    /// On aarch64 without FEAT_DPB, where user space cannot clean to the point of persistence; on x86_64 without `cmpxchg16b`, which only CPUs from
    /// before 2006 lack.
    #[must_use]
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Insns> = OnceLock::new();
        *DETECTED.get_or_init(Self::ask_cpu)
    }

    fn ask_cpu() -> Self {
        let flush = [FlushInsn::Clwb, FlushInsn::ClflushOpt, FlushInsn::Clflush, FlushInsn::DcCvap]
            .into_iter()
            .find(|&insn| arch::has_flush(insn))
            .expect("the CPU can write lines back from user space");
        let nt_width = [NtWidth::B64, NtWidth::B32, NtWidth::B16]
            .into_iter()
            .find(|&width| arch::has_nt_width(width))
            .expect("16-byte non-temporal stores are part of every supported architecture");
        let pair = [PairInsn::Vmovdqa, PairInsn::Cmpxchg16b, PairInsn::Stlxp]
            .into_iter()
            .find(|&insn| arch::has_pair(insn))
            .expect("the CPU can store 16 bytes atomically");
        Self { flush, nt_width, pair }
    }

    /// The same set, with flushes forced to `insn`. [`FlushInsn::Nothing`] is always supported, and makes data durable under eADR only.
    ///
    /// # Errors
    /// When this CPU lacks `insn`.
    pub fn with_flush(self, insn: FlushInsn) -> Result<Self, UnsupportedInsn> {
        if insn == FlushInsn::Nothing || arch::has_flush(insn) {
            Ok(Self { flush: insn, ..self })
        } else {
            Err(UnsupportedInsn { wanted: insn.name(), available: Self::detect() })
        }
    }

    /// The same set, with non-temporal stores forced to `width`.
    ///
    /// # Errors
    /// When this CPU lacks `width`.
    pub fn with_nt_width(self, width: NtWidth) -> Result<Self, UnsupportedInsn> {
        if arch::has_nt_width(width) {
            Ok(Self { nt_width: width, ..self })
        } else {
            Err(UnsupportedInsn { wanted: width.name(), available: Self::detect() })
        }
    }

    /// The same set, with pairs of words stored by `insn`.
    ///
    /// # Errors
    /// When this CPU lacks `insn`, or does not document it as atomic.
    pub fn with_pair(self, insn: PairInsn) -> Result<Self, UnsupportedInsn> {
        if arch::has_pair(insn) {
            Ok(Self { pair: insn, ..self })
        } else {
            Err(UnsupportedInsn { wanted: insn.name(), available: Self::detect() })
        }
    }

    /// The instruction that writes lines back.
    #[must_use]
    pub const fn flush(self) -> FlushInsn {
        self.flush
    }

    /// The width of non-temporal stores.
    #[must_use]
    pub const fn nt_width(self) -> NtWidth {
        self.nt_width
    }

    /// The instruction that stores pairs of words atomically.
    #[must_use]
    pub const fn pair(self) -> PairInsn {
        self.pair
    }

    /// Stores 16 bytes through the cache atomically, little-endian, with release ordering.
    ///
    /// # Safety
    /// `dst` must be a multiple of 16 and writable for 16 bytes of ordinary, cacheable memory. Other code accesses this memory only through atomics
    /// or assembly, and no Rust reference to it exists.
    #[inline]
    pub unsafe fn store_u128(self, dst: *mut u8, value: u128) {
        // SAFETY: the caller's contract; the support of `self` was checked when it was created.
        unsafe { arch::store_u128(self.pair, dst, value) }
    }

    /// Writes back every line that holds a byte of the `len` bytes at `start`, with the chosen instruction. Does not order any accesses.
    ///
    /// # Safety
    /// The range must lie inside one live mapping. (A write-back changes no bytes, so other threads may use the range during the call; but the
    /// addresses must not fault.)
    #[inline]
    pub unsafe fn flush_range(self, start: *const u8, len: usize) {
        // SAFETY: the caller's range is inside a mapping, and mappings hold whole lines, so each line of the range can be written back; the support
        // of `self` was checked when it was created.
        unsafe { arch::flush_range(self.flush, start, len) }
    }
}

impl fmt::Display for Insns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.flush.name(), self.nt_width.name())
    }
}
