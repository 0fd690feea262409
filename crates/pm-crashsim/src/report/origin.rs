//! Where a failure comes from: the test, its package, and its check.

use std::{env, thread};

/// What the program knows of the test that explores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// The name of the test: the test harness calls its threads so.
    pub(crate) test: Option<String>,
    /// The package that is tested: Cargo says so to what it runs.
    pub(crate) package: Option<String>,
    /// The type of the check. That of a function is its path.
    pub(crate) check: &'static str,
    /// The type of what is acknowledged.
    pub(crate) acked: &'static str,
}

impl Origin {
    /// Of the test that runs on this thread.
    pub(crate) fn here<A, C>(_check: &C) -> Self {
        let test = thread::current().name().filter(|&name| name != "main").map(str::to_owned);
        let package = env::var("CARGO_PKG_NAME").ok();
        Self { test, package, check: core::any::type_name::<C>(), acked: core::any::type_name::<A>() }
    }
}
