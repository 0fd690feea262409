//! The command of a report repeats the one crash, in a test that knows nothing of it.

use crate::common::*;
use crate::programs::*;
use std::env;
use std::process::{Command, Output};

const ID_GIVEN_BY: &str = "PM_CRASHSIM_REPLAY";
/// In the environment of the test's child, that tells it from the parent.
const CHILD: &str = "PM_CRASHSIM_TEST_CHILD";

/// Runs the test of that name in a process of its own, with the variable set.
fn run_with(id: &str, test: &str) -> Output {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(ID_GIVEN_BY, id).env(CHILD, "1").output().unwrap()
}

/// Explores two programs under two models, and says how often the check ran.
fn explorations() -> bool {
    let mut all_passed = true;
    for model in [Model::Px86Line, Model::Chunk8] {
        let runs = AtomicUsize::new(0);
        let check = |crash: &Crash<'_, ()>| {
            runs.fetch_add(1, Ordering::Relaxed);
            published(crash)
        };
        let explored = Explorer::new(model).explore(&region(), |run: &Run<()>| unordered(run), check);
        println!("{model} ran {}", runs.into_inner());
        all_passed &= explored.is_ok();
        // What many a test asserts must not keep it from coming to the crash that is wanted.
        assert!(explored.is_err() || explored.is_ok_and(|coverage| coverage.is_exhaustive()));
    }
    all_passed
}

#[test]
fn variable_replays_one_crash_and_skips_other_explorations() {
    if env::var_os(CHILD).is_some() {
        assert!(explorations(), "a crash was not recovered from");
        return;
    }
    let failure = Explorer::default().explore(&region(), unordered, published).unwrap_err();
    let id = failure.replay.as_deref().unwrap();
    let test = "replaying::variable_replays_one_crash_and_skips_other_explorations";

    let output = run_with(id, test);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success(), "the crash was not repeated: {out}{err}");
    assert!(out.contains("px86-line ran 1\n") && out.contains("chunk8 ran 0\n"), "{out}");
    assert!(err.contains("is not replayed here: it is of another model"), "{err}");

    let elsewhere = run_with("px86-line:00000000:99+", test);
    let err = String::from_utf8_lossy(&elsewhere.stderr);
    assert!(elsewhere.status.success() && err.contains("no crash of this run"), "{err}");

    let nothing = run_with("", test);
    let out = String::from_utf8_lossy(&nothing.stdout);
    assert!(!nothing.status.success() && !out.contains("ran 1\n"), "an empty one is none: {out}");

    let nonsense = run_with("nonsense", test);
    assert!(!nonsense.status.success());
    assert!(String::from_utf8_lossy(&nonsense.stderr).contains("names no crash"));
}
