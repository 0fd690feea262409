//! The instructions that move stores to persistent memory, and the choice between them.
//!
//! [`Insns::detect`] detects once what the CPU supports. Tests and studies can force any supported alternative. Support is checked when the
//! choice is made, so that later uses need no check.
//!
//! The functions here work on raw addresses and are `unsafe`; [`Region`](crate::Region) is the safe interface.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod choice;
mod copy;
mod kinds;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub(crate) use arch::{CarrylessMultiply, Crc32c};
pub use arch::{fence, full_fence, prefetch, prefetch_read, ticks, ticks_after_loads};
pub use choice::{Insns, UnsupportedInsn};
pub use copy::{copy_from_pmem, copy_to_pmem, copy_to_pmem_nt};
pub use kinds::{FlushInsn, NtWidth, PairInsn};
