//! Where a failure comes from: the test, its package, and its check.

use core::any::type_name;
use std::{env, thread};

/// What the program knows of the test that explores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// The name of the test: the test harness calls its threads so.
    pub(crate) test: Option<String>,
    /// The package that is tested: Cargo says so to what it runs.
    pub(crate) package: Option<String>,
    /// The crate that the running program was made of.
    pub(crate) program: Option<String>,
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
        Self { test, package, program: program(), check: type_name::<C>(), acked: type_name::<A>() }
    }
}

/// The name of the running crate: Cargo calls its programs so, and a hash after a hyphen.
fn program() -> Option<String> {
    let path = env::current_exe().ok()?;
    let (name, _hash) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    Some(name.replace('-', "_"))
}
