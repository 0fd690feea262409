//! The behaviour of a heap: calls, refusals, costs, corrupted and discarded log entries, failed fences.

mod calls;
mod discard;
mod discard_hidden;
mod discard_idle;
mod failed_fence;
mod failed_fence_race;
mod failed_fence_threads;
mod growth;
mod open_transactions;
mod prices;
mod quarantine;
mod refusals;
mod roots;
mod stopped_recovery;
mod unlogged_full;
mod unlogged_modes;
mod visibility;

/// Imports of most of these tests.
mod prelude {
    pub(crate) use crate::harness::{Transact as _, assert_clean, bytes};
    pub(crate) use crate::links::link_to;
    pub(crate) use pm_alloc::{
        CommitError, Heap, HeapOptions, SpaceError, TxError, UnloggedError, UnloggedHeap,
    };
    pub(crate) use pm_core::{FenceError, Link, Pmem, Region};
    pub(crate) use pm_testkit::{AnyPmem, Hook, Hooked, Rng, SampledPmem, any};
    pub(crate) use std::sync::Arc;
}
