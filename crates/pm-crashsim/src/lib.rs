//! Crash testing for persistent memory: runs an operation once, then recovers from every image that a crash of it could leave.
//!
//! # A wrong program, and how it is caught
//! A mailbox has a text and a flag, on different cache lines. `send` flushes the text, but does not wait for the flush before it sets
//! the flag. A test that reads the memory passes: only a crash at the wrong moment shows the bug.
//!
//! ```
//! use pm_core::{FenceError, Pmem};
//! use pm_crashsim::{Crash, Explorer, Image, InjectionKind, Run};
//!
//! const FULL: u64 = 0; // 1 when there is a message.
//! const TEXT: u64 = 64;
//!
//! fn send(pmem: &impl Pmem, text: [u8; 16]) -> Result<(), FenceError> {
//!     pmem.store(TEXT, &text);
//!     pmem.flush(TEXT, 16);
//!     // The bug: a fence is missing here.
//!     pmem.store_u64(FULL, 1);
//!     pmem.persist(FULL, 8)
//! }
//!
//! fn receive(pmem: &impl Pmem) -> Option<String> {
//!     let mut text = [0; 16];
//!     pmem.load(TEXT, &mut text);
//!     (pmem.load_u64(FULL) == 1).then(|| String::from_utf8_lossy(&text).into_owned())
//! }
//!
//! let operation = |run: &Run<()>| {
//!     send(run.pmem(), *b"meet me at noon.")?;
//!     run.ack(()); // `send` has returned: from here on, the message must survive.
//!     Ok::<(), FenceError>(())
//! };
//! // Runs on everything that a crash can leave, and recovers from it.
//! let check = |crash: &Crash<()>| {
//!     let sent = Some("meet me at noon.".to_owned());
//!     let allowed = if crash.acked().is_empty() { vec![None, sent] } else { vec![sent] };
//!     crash.expect(receive(crash.pmem()), allowed)
//! };
//! let failure = Explorer::default().explore(&Image::zeroed(4096), operation, check).unwrap_err();
//! assert_eq!(failure.repair.unwrap().injection.kind, InjectionKind::FenceAfterFlush);
//! ```
//!
//! The failure draws the crash, and names the missing fence. The example `missing_fence` is this program, and prints
//! (`cargo run -p pm-crashsim --example missing_fence`):
//!
//! ```text
//! Some("meet me \0\0\0\0\0\0\0\0") was found, where only None or Some("meet me at noon.") is allowed
//!
//! crash right before the fence at crates/pm-crashsim/examples/missing_fence.rs:15:10
//!
//!   │ durable  ┊ pending  line 0x0     line 0x40
//!      0  store           │            ◐ torn       16 B at 0x40      …/examples/missing_fence.rs:11:10
//!      1  flush           │            ↓ flushed    16 B at 0x40      …/examples/missing_fence.rs:12:10
//!      2  store           ● kept       ┊            8 B at 0x0        …/examples/missing_fence.rs:14:10
//!      3  flush           ↓ flushed    ┊            8 B at 0x0        …/examples/missing_fence.rs:15:10
//! ━━━━━━━━ crash ━━━━━━━━━┻━━━━━━━━━━━━┻━━━━━━━━━━━━
//!
//!   1 store lost, as the failure needs; 1 store kept, as the failure needs; 1 store kept that need not be
//!
//!   found     Some("meet me \0\0\0\0\0\0\0\0")
//!   allowed   None
//!             Some("meet me at noon.")
//!   repair    a fence after the flush at crates/pm-crashsim/examples/missing_fence.rs:12:10 repairs it
//!   tried     crashes of the operation: tried 4 of 8 legal choices at 1 points, 4 recoveries
//!   trace     target/pm-crashsim/failure.pmc
//!   replay    Explorer::default().replay("px86-line:0f56059e:4-1:0.1")
//! ```
//!
//! # Model
//! A store is visible at once, but durable only after its line was flushed and the flush fenced; until then the line may reach the medium at any
//! time, or never. A crash keeps, of each line's pending stores, any prefix, and of different lines any combination of prefixes. [`SimPmem`] is a
//! region behind the seam ([`pm_core::Pmem`]) that records its run; [`Explorer`] derives from the record every image that the [`Model`] allows, and
//! runs a check on each. The check recovers, and recovery is recorded and crashed in turn.
//!
//! # A right program
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
//! assert!(Explorer::default().redundant_sites(&image, operation, check).unwrap().is_empty());
//! ```
//!
//! # Fronts
//! The fronts generate operations and compare with a reference, from the simplest to the most complete:
//!
//! - [`model`]: one scenario, the default explorer, one call. [`Explorer`] is the same with all its settings.
//! - [`Sequences`]: a structure and an [`Oracle`] for it. Every sequence of a few operations is crashed everywhere, and
//!   compared with the states that durable linearizability allows.
//! - Feature `proptest`: longer sequences, generated and shortened by proptest, by `Sequences::property`. Feature
//!   `proptest-state-machine`: by a reference state machine, with `CrashTest`.
//! - Feature `loom`: every schedule of a few threads, each crashed everywhere, by `under_loom::explore`. Feature `shuttle`:
//!   random schedules of more threads, by `under_shuttle::explore`.
//!
//! # How it searches
//! Crash points are the places where a crash can show something new: before events that make stores durable, and around
//! acknowledgements. At each point every combination of pending stores that the model allows is legal; there may be more than 2^128.
//!
//! - What recovery reads directs the search: lines that it does not read are not varied. Images that agree on everything
//!   that a recovery read are recovered from once, and count as tried.
//! - Where even that exceeds the bound ([`Explorer::choices_per_point`]), the telling choices come first: nothing
//!   survives, everything, one line alone, all but one line, one store alone, all but one store, all but two lines; then
//!   random ones, from a seed.
//! - All points are visited with 2, 16 and 256 choices before any is exhausted, so that a failure at the end of a long run is found
//!   soon; [`Explorer::recoveries`] ends the search of a run that is too long for more.
//! - The check also runs on the states before and after the operation without a crash. A failure mentions if the check rejects these.
//! - [`Explorer::time`] ends a search after 60 seconds, or `PM_CRASHSIM_SECONDS`; the coverage says what was left out. A check that takes ten times as
//!   long as any before it is reported on standard error while it runs.
//! - [`Explorer::time_per_check`] and [`Explorer::accesses_per_check`] turn a recovery that does not end into a failure.
//! - Recoveries are crashed in turn, after all single crashes: a failure has as few crashes as possible.
//! - A check that inspects states at length may call [`Crash::is_new_state`], and skip known states.
//!
//! [`Coverage`] always has the number of choices tried and the number of legal ones.
//!
//! # Kills
//! `kill -9` keeps the caches: the next process sees all stores, durable or not, relies on them, and the power fails only then.
//! [`Explorer::kills`] adds this to any exploration: the operation is killed before each of its events, the check runs as the second
//! process, and its own run is crashed everywhere. [`Explorer::explore_restarted`] runs another second process than the
//! check, one with acknowledgements. `docs/persistence-model.md` has the rules.
//!
//! # Failures
//! A [`Failure`] is shrunk before it is returned: everything that is lost in it is needed for it, line by line, and the essential kept stores are
//! distinguished from the others. Its text draws the crash, as above. It has the found and the allowed states if the check compares by
//! [`Crash::expect`]. The repair is the one flush or fence with which the check passes, if there is one. The trace is for `pmcrash`.
//!
//! A test's report has a command that repeats just this crash: `PM_CRASHSIM_REPLAY='px86-line:…' cargo test the_test`. In
//! that run every exploration without a crash of that name passes without testing anything, and reports that on standard
//! error (`-- --nocapture` shows it). [`Explorer::explore`] returns the failure with which [`Explorer::check`] panics;
//! [`Failure::to_test`] makes self-contained tests of it, and [`Failure::to_svg`] a picture.
//!
//! # Lints
//! Some mistakes show in the record alone, without recovery and check. [`Explorer::lints`] looks for them in the
//! operation and in recoveries, [`lint`] in any [`Trace`]. Each [`Finding`] names the place to blame, the other places
//! involved, and the remedy; [`Lint::explain`] has the details, and [`Lints`] sets what warns and what fails.
//!
//! | lint | finds |
//! |---|---|
//! | `unflushed-store` | a store not flushed before its thread acknowledged, or the run ended |
//! | `unfenced-flush` | a flush not fenced by then |
//! | `unfenced-store` | a store that needs only a fence, and had none by then |
//! | `early-flush` | a flush in front of the store that it was meant for |
//! | `store-in-flight` | a store to a line between its flush and the fence, not flushed again |
//! | `unpersisted-read` | something durable, or acknowledged, that depends on another thread's store before that is durable |
//! | `redundant-flush` | a flush of lines not stored to since the thread's last one |
//! | `redundant-fence` | a fence with nothing in flight |
//!
//! They are silent about code that can be right in another interleaving: a thread that persists the same lines as another one
//! has no redundant flush. They do not check order: that a record is durable before the
//! flag that publishes it is for the check to test. For allocators there is [`leaks`], which a check can call.
//!
//! ```
//! use pm_core::Pmem;
//! use pm_crashsim::{Explorer, Image, Lint, Lints, Run};
//!
//! let operation = |run: &Run<()>| {
//!     run.pmem().store_u64(0, 1);
//!     run.pmem().flush(0, 8);
//!     run.ack(()); // The fence is missing.
//! };
//! let linted = Explorer::default().lints(Lints::default());
//! let coverage = linted.check(&Image::zeroed(4096), operation, |_| ());
//! assert_eq!(coverage.findings[0].lint, Lint::UnfencedFlush);
//! ```
//!
//! # Media faults
//! A medium can also lose or change durable bytes: a line that it cannot read any more is poisoned, and a bit that flips on it or
//! on the way to it raises no error. [`Explorer::faults`] adds [`Faults`] to the images that a crash leaves, and to the
//! image of the orderly end: one set after the other, every one or a share of them, within ranges. [`Crash::faults`] returns
//! them to the check, so that it can allow a loss that recovery reports, and no other. The [`Coverage`] has the counts.
//!
//! On hardware, loading from a poisoned line raises a machine check, which Linux delivers as SIGBUS, and a scrub lists such lines
//! before anything is loaded. [`Pmem::load`](pm_core::Pmem::load) returns no error; here the line reads as bytes `0xDE`, as
//! for a program that knows the list, or that has the platform clear such lines. Storing to it heals it.
//!
//! ```
//! use pm_core::Pmem;
//! use pm_crashsim::{Crash, Explorer, Faults, Image, Run};
//!
//! // Two copies of a counter: a flipped bit is detected, but not which of them is right.
//! let operation = |run: &Run<()>| {
//!     run.pmem().store_u64(0, 7);
//!     run.pmem().store_u64(64, 7);
//!     run.pmem().persist(0, 72)
//! };
//! let check = |crash: &Crash<()>| match (crash.pmem().load_u64(0), crash.pmem().load_u64(64)) {
//!     (0 | 7, 0 | 7) => Ok(()),
//!     (first, second) if first != second && !crash.faults().is_empty() => Ok(()),
//!     found => Err(format!("{found:?}")),
//! };
//! let image = Image::zeroed(4096);
//! let one = Faults::none().flips(1).within(0..8).within(64..72);
//! assert!(Explorer::default().faults(one.clone()).check(&image, operation, check).is_exhaustive());
//! // The same bit in both: no check can detect it.
//! assert!(Explorer::default().faults(one.flips(2)).explore(&image, operation, check).is_err());
//! ```
//!
//! Sources: ACPI 6.1, 9.20.7, "NVDIMM Root Device _DSMs" (address range scrub); `ndctl-start-scrub(1)`.
//!
//! # Traces
//! A record can be kept: [`SimPmem::to_trace_file`] and [`TraceFile::from_failure`] make a [`TraceFile`], which is saved to and read from a `.pmc`
//! file (`docs/format/trace.md`), and [`Explorer::explore_trace`] crashes it again. [`import`] makes one from the log of another tool, so that code
//! without the seam can be crashed too; the command `pmcrash` (`docs/pmcrash.md`) does all of this from a shell.
//!
//! # Teeth
//! [`Explorer::redundant_sites`] tests whether one test notices the loss of any flush or fence. For all tests
//! of a program at once, two environment variables change whole test processes, without any change of the tests:
//!
//! - `PM_CRASHSIM_SITES=directory`: each process writes the sites that it exercises, once each, to a file of its own
//!   there (`PID.sites`), a line each: `flush@src/log.rs:120:14`. The directory must exist.
//! - `PM_CRASHSIM_SUPPRESS=flush@src/log.rs:120:14`: that site has no effect in any [`SimPmem`] of the process, which reports
//!   on standard error when it first reaches the site. Without that report no test reached the site, and that they pass is
//!   meaningless.
//!
//! So: list the sites, then run the tests without each in turn, and expect that some test fails. A site whose loss no
//! test notices is redundant, or a test is missing.
//!
//! ```console
//! $ mkdir /tmp/sites
//! $ PM_CRASHSIM_SITES=/tmp/sites cargo test
//! $ sort -u /tmp/sites/* | while read site; do
//! >   PM_CRASHSIM_SUPPRESS=$site cargo test >/dev/null 2>&1 </dev/null && echo "$site: not missed"
//! > done
//! ```
//!
//! A site is the place that calls the seam, or that calls a function with `#[track_caller]` that does, like the seam's
//! own methods. So a helper without the attribute, `fn persist_field(..)`, is one site for all its callers: a redundant
//! call does not show as long as another one is needed, and reports blame the helper. With `#[track_caller]` each call
//! is a site of its own. On a method of a trait the attribute belongs on the declaration; a closure cannot have it.
//!
//! A path is as the compiler was given it, which for cargo is relative to the workspace; a relative directory is resolved from the working directory
//! of the test, which for cargo is the package. Both are read when the process makes its first region. Without them they cost nothing.
//!
//! # Guarantees
//! Within the bounds set by [`Explorer`], every image that the model allows is tried; beyond them the most telling
//! ones and then random ones, and the [`Coverage`] has the counts. The same inputs try the same images
//! in the same order; a [`Failure`] has the name by which [`Explorer::replay`] repeats it.
//!
//! # Limitations
//! One execution is crashed everywhere: other interleavings of threads need other executions, which the fronts for
//! schedules make. Failing fences are not simulated, and a recovery from media faults is not crashed. Compiler transformations of
//! plain stores are out of scope, because the seam has none. And a check finds only what it checks: see Teeth.
//!
//! # What is not modelled
//! A store is visible to all threads when it is recorded, in one order over all threads. So these are not explored
//! (`docs/persistence-model.md` has the reasons, and the comparison with an independent oracle):
//!
//! - store buffers between threads: that two threads miss each other's stores. The contents of store buffers at a crash or an
//!   acknowledgement are an end of the record, over all threads;
//! - `clwb` that passes older stores of its thread to other lines;
//! - non-temporal stores that become visible late;
//! - long stores of which another thread sees one half, though a crash tears them;
//! - an order of two threads' stores to one line that differs from the record.

#![forbid(unsafe_code)]

mod checked_windows;
mod explore;
mod faults;
mod file;
mod image;
pub mod import;
mod line;
mod lint;
mod location;
mod model;
mod outcome;
mod report;
#[cfg(any(feature = "loom", feature = "shuttle"))]
mod schedule;
mod sequence;
mod setters;
mod sim;
mod site;
mod time_budget;
mod trace;
mod watchdog;

pub use checked_windows::{CheckedWindows, Windowed};
pub use explore::{Crash, Explorer, Run, Verdict, model};
pub use faults::{Fault, Faults};
pub use file::{TraceError, TraceFile};
pub use image::Image;
pub use lint::{Finding, Leak, Level, Lint, Lints, Role, leaks, lint};
pub use location::{LocationId, SourceLocation};
pub use model::{CrashPoint, IllegalCrash, Model, Survivor};
pub use outcome::{
    Coverage, CrashRecord, CrashReport, Failure, FaultCoverage, KillCoverage, LevelCoverage, Mismatch,
    Moment, PendingStore, Repair,
};
#[cfg(feature = "loom")]
pub use schedule::loom as under_loom;
#[cfg(feature = "shuttle")]
pub use schedule::shuttle as under_shuttle;
#[cfg(any(feature = "loom", feature = "shuttle"))]
pub use schedule::{ScheduleCoverage, ScheduleFailure};
#[cfg(feature = "proptest-state-machine")]
pub use sequence::{CrashTest, StateMachineSubject, Transitions};
pub use sequence::{Durability, Oracle, SequenceFailure, Sequences, SequencesCoverage, Subject};
pub use sim::SimPmem;
pub use site::{Injection, InjectionKind, Site, SiteKind};
pub use trace::{DataSpan, Event, EventKind, Trace};
