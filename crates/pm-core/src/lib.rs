//! Persistent memory for Rust: instructions, mappings, persistence domains, one trait for all accesses, and durability checked by the type system.
//!
//! Persistent memory keeps its contents when the power fails. A store is visible at once, but durable only after its cache line is *flushed* and
//! the flush is *fenced*; before that, a crash may keep any part of it. This crate provides the parts that all software for such memory needs,
//! from single instructions to typed values:
//!
//! | | |
//! |---|---|
//! | [`Region`] | a file or device mapped into the process, with its [persistence domain](Domain) |
//! | [`Pmem`] | the *seam*, the trait for store, flush and fence; implemented by the hardware, by a counting wrapper, and by a crash simulator |
//! | [`Pool`] | a region with an identity, a header with a backup, and named roots |
//! | [`Scope`] | typed reads and writes, with durability as a type |
//! | [`insn`] | the bare instructions |
//! | [`counters`] | groups of stores that share their fences, and tell when they are durable |
//! | [`emulation`] | the speed of memories that the machine does not have |
//!
//! # An example
//!
//! ```
//! use pm_core::{Persist, Pool, PoolError, PoolOptions, RegionOptions, field};
//!
//! #[derive(Clone, Copy, Persist)]
//! #[repr(C)]
//! struct Visits { count: u64 }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("visits.pm");
//! // A crash during this call leaves no file, or a complete pool with the root.
//! Pool::create_with(&path, 1 << 20, &RegionOptions::new(), &PoolOptions::new(), |pool| {
//!     pool.scope(|pm| {
//!         let visits = pm.write(pm.claim(pool.data().start)?, &Visits { count: 0 }); // Dirty
//!         let visits = pm.flush(visits); // InFlight
//!         let visits = pm.fence(visits)?; // Durable: only now can it be a root
//!         pm.set_root("visits", &visits)
//!     })
//!     .map_err(Box::<dyn std::error::Error>::from)
//! })?;
//!
//! let pool = Pool::open(&path, &RegionOptions::new())?;
//! pool.scope(|pm| {
//!     let visits = pm.root::<Visits>("visits")?.ok_or("no root")?;
//!     let count = pm.read(visits)?.count;
//!     // One line, one fence. A crash leaves the old count or the new one.
//!     let written = pm.store_u64(visits.field(field!(Visits, count)), count + 1)?;
//!     pm.fence(pm.flush(written))?;
//!     assert_eq!(pm.read(visits)?.count, 1);
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # What is guaranteed after a crash
//!
//! * When a fence has returned, everything that its thread flushed before it is durable, within the limits of the [domain](Domain).
//! * Data that was stored but not flushed, or flushed but not fenced, may be durable in part: each aligned 8-byte word is old or new. On x86, words
//!   of one 64-byte line that were stored one after the other become durable in that order.
//! * A crash during [`Pool::create`] leaves no file, or the complete pool. A crash while a pool grows or a root changes leaves the old state or the
//!   new one. A corrupted header is restored from its backup; [`Pool::header_state`] reports it.
//!
//! # Limitations
//!
//! It does not allocate: the caller or an allocator decides where each value lies. It has no transactions: data that must change together must fit
//! into one 8-byte word or one aligned 16-byte pair, or be reachable through one such word. An access to memory with a media error, or past the end
//! of a file that another program has truncated, raises SIGBUS, which ends the process unless the access is [guarded](fault).
//!
//! # Platforms
//!
//! Linux on x86_64, and aarch64 with FEAT_DPB.

pub mod counters;
pub mod emulation;
pub mod fault;
pub mod insn;
pub mod line;

pub mod pool;
pub mod protection;

mod counting;
mod crc;
mod dirty_pages;
mod domain;
mod line_counting;
mod line_writes;
mod persist;
mod pmem;
mod region;
mod stopwatch;
mod timed;
mod typed;
mod writer;

// The derive refers to this crate by its full path, even inside this crate.
extern crate self as pm_core;

pub use counting::{Counting, Counts};
pub use crc::{crc32c_append, crc32c_bytes, crc32c_words};
pub use dirty_pages::DirtyPages;
pub use domain::Domain;
pub use line_counting::LineCounting;
pub use line_writes::{CdfPoint, Coalescing, LineWrites};
pub use persist::{
    FieldLayout, InPool, Persist, bytes_of, bytes_of_slice, bytes_of_slice_mut, from_bytes,
    from_bytes_unchecked,
};
pub use pm_core_derive::Persist;
pub use pmem::{FenceError, GrowError, Pmem};
pub use pool::{
    HeaderCorruption, HeaderState, PlaceError, Pool, PoolError, PoolOptions, Root, RootChange, RootDirectory,
    RootError, RootWrite,
};
pub use region::{HugePages, Medium, OpenError, ProcessId, Region, RegionOptions};
pub use timed::{Timed, Times};
pub use typed::{Dirty, Durable, Fenceable, Field, InFlight, Link, Place, Scope};
pub use uuid::Uuid;
pub use writer::{WriterGuard, WriterLock};
