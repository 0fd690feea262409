//! A trial repeated at each call with each fault.

use std::any::Any;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Fault, Injection, Outcome};

/// If set, every call is hit, and not only some.
const EXHAUSTIVE: &str = "PM_FAULTS_EXHAUSTIVE";
/// If set, the one injection that is tried, as `EIO@17`.
const ONLY: &str = "PM_FAULTS_ONLY";
/// More calls than any program under test makes.
const CALLS_MAX: usize = 10_000;
/// The number of failures after which the sweep ends.
const FAILURES_MAX: usize = 20;

/// Runs `trial` with each fault at every `step`-th call until there are no more, and then once with no call hit. Each fault
/// starts at another call. With `PM_FAULTS_EXHAUSTIVE=1` every call is hit; with `PM_FAULTS_ONLY=EIO@17` one.
///
/// `trial` returns the outcome of the traced run, and panics if it, or the state that the run left, is wrong.
///
/// # Panics
/// With all injections that failed, and for each how to run it alone. `test` is the name of the calling test.
pub fn sweep(test: &str, faults: &[Fault], step: usize, trial: impl Fn(Injection) -> Outcome) {
    let tried = |injection| catch_unwind(AssertUnwindSafe(|| trial(injection)));
    if let Some(only) = env::var_os(ONLY) {
        let only = only.to_string_lossy().parse().unwrap_or_else(|error| panic!("{ONLY}: {error}"));
        let outcome = trial(only);
        assert!(outcome.hit.is_some(), "{test} with {only}: {outcome}: nothing was hit");
        println!("{test} with {only}: {outcome}");
        return;
    }
    let step = if env::var_os(EXHAUSTIVE).is_some() { 1 } else { step };
    let mut failed = Vec::new();
    'faults: for (index, &fault) in faults.iter().enumerate() {
        for call in (index % step..CALLS_MAX).step_by(step) {
            let injection = Injection { fault, call };
            match tried(injection) {
                Ok(outcome) if outcome.hit.is_some() => {}
                Ok(_) => {
                    assert!(call >= step, "{test} with {injection}: no call was hit");
                    break;
                }
                Err(panic) => {
                    failed.push(format!("{injection}: {}\n    {}", message(&*panic), replay(test, injection)))
                }
            }
            assert!(call + step < CALLS_MAX, "{test} with {injection}: the calls do not end");
            if failed.len() == FAILURES_MAX {
                break 'faults;
            }
        }
    }
    assert!(failed.is_empty(), "{} injections failed:\n{}", failed.len(), failed.join("\n"));
}

/// The command that tries one injection alone.
fn replay(test: &str, injection: Injection) -> String {
    // Cargo sets it. A program that was started by hand does not know its package, and the command works without it.
    let package =
        env::var("CARGO_PKG_NAME").map_or_else(|_| String::new(), |name| format!(" --package {name}"));
    // Cargo appends a hash to the name of a test program.
    let program = env::current_exe().ok().and_then(|path| path.file_stem()?.to_str().map(str::to_owned));
    let program =
        program.as_deref().and_then(|name| name.rsplit_once('-')).map(|(name, _)| format!(" --test {name}"));
    format!("{ONLY}={injection} cargo test{package}{} {test} -- --exact", program.unwrap_or_default())
}

/// The message of a panic.
fn message(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}
