//! The instructions to choose from: flushes, non-temporal stores, and atomic stores of pairs of words.

/// How lines are written back from the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlushInsn {
    /// `clwb`: writes the line back and may keep it cached. Ordered by fences only.
    Clwb,
    /// `clflushopt`: writes the line back and evicts it. Ordered by fences only.
    ClflushOpt,
    /// `clflush`: writes the line back and evicts it; ordered with other `clflush` instructions. Every x86_64 CPU has it.
    Clflush,
    /// `dc cvap`: aarch64's clean to the point of persistence (FEAT_DPB).
    DcCvap,
    /// No instruction: only for caches inside the persistence domain (eADR).
    Nothing,
}

impl FlushInsn {
    /// The mnemonic, lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvap => "dc cvap",
            Self::Nothing => "no flush",
        }
    }
}

/// The length of one non-temporal store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NtWidth {
    /// 16 bytes: `movntdq xmm` (SSE2), on every x86_64 CPU; on aarch64 plain stores and `dc cvap`.
    B16,
    /// 32 bytes: `vmovntdq ymm` (AVX).
    B32,
    /// 64 bytes, a whole line: `vmovntdq zmm` (AVX-512F).
    B64,
}

impl NtWidth {
    /// `nt16`, `nt32` or `nt64`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::B16 => "nt16",
            Self::B32 => "nt32",
            Self::B64 => "nt64",
        }
    }
}

/// How an aligned pair of words, 16 bytes, is stored atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PairInsn {
    /// `vmovdqa xmm`: atomic on Intel and AMD CPUs with AVX, according to their manuals.
    Vmovdqa,
    /// `lock cmpxchg16b`, retried until it succeeds: on every x86_64 CPU except the first AMD models.
    Cmpxchg16b,
    /// `ldxp` and `stlxp`, retried until they succeed: on every aarch64 CPU.
    Stlxp,
}

impl PairInsn {
    /// The mnemonic, lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vmovdqa => "vmovdqa",
            Self::Cmpxchg16b => "cmpxchg16b",
            Self::Stlxp => "stlxp",
        }
    }
}
