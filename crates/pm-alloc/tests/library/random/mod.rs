//! Random programs on heaps, against shadow models: `PM_CRASH_SEQUENCES` is the number of programs of each test, `PM_CRASH_FIRST` the first seed.

mod discard;
mod growth;
mod log_corruption;
mod modes;
mod roots;
mod shadow;
mod stray;
mod tx;
mod words;

/// Imports of most of these tests.
mod prelude {
    pub(crate) use crate::harness::{Transact as _, assert_clean};
    pub(crate) use crate::links::link_to;
    pub(crate) use crate::sim::SimHeap;
    pub(crate) use crate::sim::programs::{content, each_seed, is_refusal, stopped_recoveries};
    pub(crate) use pm_alloc::{Heap, HeapError, HeapOptions, RecoverError, Tx, TxError};
    pub(crate) use pm_core::{Link, Pmem};
    pub(crate) use pm_testkit::{AnyPmem, Rng, SampledPmem, State, any, seeds};
    pub(crate) use std::collections::{BTreeMap, BTreeSet};
    pub(crate) use std::sync::Arc;
}
