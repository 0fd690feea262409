//! Crash testing for persistent memory: run an operation once, then recover from every image that a crash of it
//! could leave.
//!
//! # Model
//! A store is visible at once, but durable only after its line was flushed and the flush fenced; until then the
//! line may reach the medium at any time, or never. A crash keeps, of each line's pending stores, any prefix, and
//! of different lines in any combination. [`SimPmem`] is a region behind the seam ([`pm_core::Pmem`]) that
//! records what a program does to it; [`Explorer`] makes from the record every image that the [`Model`] allows,
//! and runs a check on each. The check recovers, and recovery is recorded and crashed in turn.
//!
//! # Example
//! A slot is filled first and then published by a flag. Recovery trusts the flag.
//!
//! ```
//! use pm_core::{FenceError, Pmem};
//! use pm_crashsim::{Crash, Explorer, Image, Model, Run};
//!
//! const FLAG: u64 = 0;
//! const SLOT: u64 = 64;
//!
//! fn publish(pmem: &impl Pmem, value: u64) -> Result<(), FenceError> {
//!     pmem.store_u64(SLOT, value);
//!     pmem.persist(SLOT, 8)?;
//!     pmem.store_u64(FLAG, 1);
//!     pmem.persist(FLAG, 8)
//! }
//!
//! fn recover(pmem: &impl Pmem) -> Option<u64> {
//!     (pmem.load_u64(FLAG) == 1).then(|| pmem.load_u64(SLOT))
//! }
//!
//! let operation = |run: &Run<u64>| {
//!     publish(run.pmem(), 7)?;
//!     run.ack(7); // From here on, a crash must not lose the value.
//!     Ok::<(), FenceError>(())
//! };
//! let check = |crash: &Crash<u64>| match (recover(crash.pmem()), crash.acked()) {
//!     (Some(7), _) | (None, []) => Ok(()),
//!     (found, acked) => Err(format!("{found:?} was found after {acked:?} was acknowledged")),
//! };
//!
//! let image = Image::zeroed(4096);
//! let coverage = Explorer::new(Model::Px86Line).check(&image, operation, check);
//! assert!(coverage.is_exhaustive());
//! // Each of the two flushes and two fences is needed, and this test would notice its loss.
//! assert!(Explorer::default().needless_sites(&image, operation, check).unwrap().is_empty());
//! ```
//!
//! # Guarantees
//! Within the bounds set by [`Explorer`], every image that the model allows is tried; beyond them the most telling
//! ones and then random ones, and the [`Coverage`] says how many of how many. The same inputs try the same images
//! in the same order; a [`Failure`] carries the name by which [`Explorer::replay`] repeats it.
//!
//! # Traces
//! What was recorded can be kept: [`SimPmem::to_trace_file`] and [`TraceFile::from_failure`] make a [`TraceFile`], which
//! is saved to and read from a `.pmc` file (`docs/format/trace.md`), and [`Explorer::explore_trace`] crashes it again.
//! [`import`] makes one of what another tool logged, so that code which does not use the seam can be crashed too; the
//! command `pmcrash` does all of this from a shell.
//!
//! # Limitations
//! One execution is crashed everywhere: other interleavings of threads need other executions. Store buffers are
//! not modelled, as what they hold is lost like what the caches hold; so a bug that needs two threads to see each
//! other's stores late is not found. Media errors and failing fences are not simulated.

#![forbid(unsafe_code)]

mod branch;
mod choices;
mod chunk;
mod explore;
mod file;
mod image;
pub mod import;
mod lines;
mod location;
mod machine;
mod memo;
mod model;
mod plan;
mod random;
mod recording;
mod sim;
mod site;
mod span;
mod trace;

pub use explore::{
    Coverage, Crash, CrashPoint, CrashRecord, CrashReport, Explorer, Failure, IllegalCrash, LevelCoverage,
    Moment, PendingStore, Run, Survivor, Verdict,
};
pub use file::{TraceError, TraceFile};
pub use image::Image;
pub use location::SourceLocation;
pub use model::Model;
pub use sim::SimPmem;
pub use site::{Site, SiteKind};
pub use trace::{DataSpan, Event, EventKind, LocationId, Trace};
