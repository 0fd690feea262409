//! Cache-line counters, after NVMalloc: they tell when a group of stores is durable, so that it need not be flushed and fenced by itself.
//!
//! A thread's stores belong to its current *group*, until it [ends](LineCounters::sgroup) the group. A *counter* has the number of lines of the group that may
//! not be durable. When it is [zero](LineCounters::scheck), all stores of the group are. Ended groups are written back together: many groups share one fence,
//! and lines that several groups have stored to are flushed once.
//!
//! NVMalloc proposes this as a part of the CPU, which sees each line that leaves its cache. [`LineCounters`] is a wrapper of the seam, which sees stores, flushes
//! and fences only. So its counts are upper bounds: a line that the cache has evicted counts until it is written back explicitly.
//!
//! # What is durable when
//!
//! | state of a group | a power failure leaves |
//! |---|---|
//! | current, or ended with a count above 0 | each word of its stores old or new |
//! | count 0 | all its stores, or later ones to the same bytes |
//!
//! Groups of different threads, and in general all groups, become durable in any order, unless [`CounterOptions::in_order`] is set: then what is known to be durable
//! is a prefix of the groups in the order in which they ended. The power may fail right before a count becomes zero, with the group durable in part: software
//! must not refer to a group's data by a durable pointer before, which [actions](LineCounters::on_durable) make easy. After a `kill`, the stores are in the
//! caches, and the groups are forgotten: a new process must flush what it builds upon.
//!
//! # Example
//! A log whose records are acknowledged when they are durable, without a fence for each:
//! ```
//! use pm_core::counters::{CounterOptions, LineCounters};
//! use pm_core::{Counting, Pmem, Region};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pmem = LineCounters::new(Counting::new(Region::anonymous(1 << 20)?), &CounterOptions::new().lag(32));
//! let acknowledged = Arc::new(AtomicU64::new(0));
//! for record in 0..128 {
//!     pmem.store(record * 4096, &[7; 4096]);
//!     let (group, acknowledged) = (pmem.sgroup()?, Arc::clone(&acknowledged));
//!     pmem.on_durable(group, move || _ = acknowledged.fetch_add(1, Ordering::Relaxed));
//! }
//! pmem.write_back()?;
//! assert_eq!(acknowledged.load(Ordering::Relaxed), 128);
//! assert!(pmem.get_ref().counts().fences <= 5);
//! # Ok(())
//! # }
//! ```
//!
//! # Source
//! NVMalloc (TRIOS 2013), section 5.

mod actions;
mod current;
mod groups;
mod line_counters;
mod options;

pub use groups::Group;
pub use line_counters::LineCounters;
pub use options::CounterOptions;
