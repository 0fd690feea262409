//! Random programs on heaps over the sampling simulator.

pub(crate) mod programs;
pub(crate) mod unlogged;

use pm_alloc::Heap;
use pm_testkit::AnyPmem;

/// A heap over the sampling simulator.
pub(crate) type SimHeap = Heap<AnyPmem<'static>>;
