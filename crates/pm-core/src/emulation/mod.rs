//! Emulation of slow memories: latency, bandwidth and barriers of a memory that the machine does not have.
//!
//! [`Emulated`] wraps another implementation of [`Pmem`](crate::Pmem), and delays each access until the time that a [`Speed`] asks for has passed.
//! The access itself takes a part of that time, so the delay is the rest. A memory that is faster than the machine's own is refused, unless time is
//! [simulated](Speed::simulated): then no access is delayed, and the calling thread's [`SimulatedInstant`] advances by the time asked for, instead of
//! the time that the access took.
//!
//! ```
//! use pm_core::emulation::{Emulated, Preset};
//! use pm_core::{Pmem, Region};
//! use std::time::{Duration, Instant};
//!
//! let speed = Preset::Pcm.speed().write_latency(Duration::from_micros(1));
//! let pmem = Emulated::new(Region::anonymous(1 << 20)?, &speed)?;
//! let begin = Instant::now();
//! pmem.store_nt(0, &[7; 4096]); // 64 lines
//! assert!(begin.elapsed() >= Duration::from_micros(60));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//! * A *read* is a load, of the lines that hold its bytes. A *write* is a line sent towards the medium: by a non-temporal store, or by a flush. A store
//!   through the cache is not delayed, and its flush is, also if the line is clean.
//! * An access of `n` lines takes `access + latency + (n - 1) * latency / overlap`: latency of the first line, and of the others as far as the memory
//!   cannot serve them at the same time. Accesses of a thread do not overlap with each other.
//! * *Bandwidth* is shared by all threads: the device serves one access after the other, each for `64 * n / bandwidth`. An access ends when its latency
//!   has passed and the device has served it.
//! * A fence takes the *barrier latency*.
//! * CPU caches are not part of the model: a line that was just loaded is delayed again, as in a device that is read in blocks. For a structure that
//!   profits from caches, [`Speed::cache_bytes`] adds a cache of that size, whose lines cost nothing.
//!
//! # Accuracy
//! Time is that of the CPU's time stamp counter. What a wait overshoots by is taken from the thread's next access, so that the sum is exact although
//! reading the counter takes a tenth of the latency of DRAM. An access that takes longer than asked for, because of a page fault or a busy machine, is
//! counted in [`EmulationCounts::late`].
//!
//! # Source
//! PMBD (MSST 2014), IV-B and V-C: delays by polling the time stamp counter; `rdsx` and `wrsx`. PMFS (EuroSys 2014), 4.1: latency and bandwidth of PMEP.

mod cache;
mod clock;
mod cost;
mod emulated;
mod error;
mod machine;
mod preset;
mod speed;

pub use clock::SimulatedInstant;
pub use emulated::{Emulated, EmulationCounts};
pub use error::EmulationError;
pub use preset::{Preset, UnknownPreset};
pub use speed::Speed;
