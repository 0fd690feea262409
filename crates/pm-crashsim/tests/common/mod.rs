//! What these test programs share: the names that most tests use, and the steps that they repeat.

#![allow(dead_code, unused_imports, reason = "each program uses some")]

pub(crate) use pm_core::{FenceError, Pmem};
pub(crate) use pm_crashsim::{
    Coverage, Crash, Explorer, Failure, Image, Lints, Model, Run, SimPmem, TraceFile, Verdict,
};
pub(crate) use std::collections::{BTreeMap, BTreeSet};
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex};
pub(crate) use std::time::{Duration, Instant};

/// The result of operations, recoveries and checks that fail only as a fence does.
pub(crate) type Done = Result<(), FenceError>;
pub(crate) const DONE: Done = Ok(());

/// Stores a word and persists it. The store, the flush and the fence have the place of the call.
pub(crate) trait Put {
    #[track_caller]
    fn put(&self, offset: u64, value: u64) -> Done;
}

impl Put for SimPmem {
    #[track_caller]
    fn put(&self, offset: u64, value: u64) -> Done {
        self.store_u64(offset, value);
        self.persist(offset, 8)
    }
}

/// The values that the checks of an exploration saw.
pub(crate) struct Seen<T>(Mutex<BTreeSet<T>>);

impl<T: Ord> Seen<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    pub(crate) fn add(&self, value: T) {
        self.0.lock().unwrap().insert(value);
    }

    /// Takes the values out.
    pub(crate) fn take(&self) -> BTreeSet<T> {
        core::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// The name of the crash of a failure.
pub(crate) fn name(failure: &Failure) -> &str {
    failure.replay.as_deref().expect("a failure with a crash has a name")
}

/// Explores twice: until a failure is found, and then by its name. The messages must be the same. Returns both failures.
#[track_caller]
pub(crate) fn fails_and_replays<A: Sync, O: Verdict, V: Verdict>(
    explorer: &Explorer,
    image: &Image,
    operation: impl Fn(&Run<A>) -> O,
    check: impl Fn(&Crash<'_, A>) -> V + Sync,
) -> [Box<Failure>; 2] {
    let found = explorer.explore(image, &operation, &check).unwrap_err();
    let again = explorer.clone().replay(name(&found)).explore(image, &operation, &check).unwrap_err();
    assert_eq!(again.message, found.message);
    [found, again]
}
