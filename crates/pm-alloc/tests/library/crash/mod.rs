//! Crashes at every point of an operation, and inside recovery.

mod corrupted_log;
mod discard;
mod heap;
mod restore;
mod trim;
mod tx;
mod uninit;
mod word_in_tx;

/// Imports and helpers of most of these tests.
mod prelude {
    pub(crate) use crate::harness::{Transact as _, assert_clean};
    pub(crate) use crate::links::link_to;
    pub(crate) use pm_alloc::{Heap, HeapError, HeapInspection, HeapOptions, RecoverError, TxError};
    pub(crate) use pm_core::{Link, Pmem, Pool};
    pub(crate) use pm_crashsim::{Crash, Explorer, Image, Lint, Lints, Model, Run, SimPmem};
    pub(crate) use pm_testkit::{AnyPmem, any};
    pub(crate) use std::sync::Arc;

    pub(crate) type SimHeap = Heap<AnyPmem<'static>>;

    /// Opens the heap that a crash has left.
    pub(crate) fn recovered_heap<A>(crash: &Crash<A>, options: &HeapOptions) -> Result<SimHeap, String> {
        Heap::attach(any(Arc::clone(crash.pmem())), options).map_err(|error| error.to_string())
    }

    /// All lints except six. The targets of a transaction are not flushed before the lane's next commit, because the log has their contents.
    /// An open flushes and fences lines that are durable already, unless a process was killed.
    pub(crate) fn lints() -> Lints {
        let allowed = [
            Lint::UnflushedStore,
            Lint::UnfencedFlush,
            Lint::UnfencedStore,
            Lint::EarlyFlush,
            Lint::RedundantFlush,
            Lint::RedundantFence,
        ];
        allowed.into_iter().fold(Lints::all_denied(), Lints::allow)
    }
}
