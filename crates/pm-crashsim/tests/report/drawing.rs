//! The report as it is read: the crash drawn, on a terminal and as a picture.

use crate::programs::*;
use insta::assert_snapshot;
use pm_core::{FenceError, Pmem};
use pm_crashsim::{Crash, Explorer, Failure, Image, Model, Run};

/// The report without what depends on how the search goes: how much was tried, and the name of the crash.
fn report(failure: &Failure) -> String {
    let report = failure.to_string();
    let (story, search) = report.split_once("\n  tried ").unwrap();
    let (coverage, replay) = search.split_once("\n  replay ").unwrap();
    assert!(coverage.contains("legal choices at"), "{report}");
    let id = failure.replay.as_deref().unwrap();
    assert!(
        replay.contains(&format!("PM_CRASHSIM_REPLAY='{id}' cargo test -p pm-crashsim drawing::")),
        "{report}"
    );
    let coverage = coverage.split("\n  trace ").next().unwrap();
    for line in story.lines().chain(coverage.lines()) {
        assert!(line.chars().count() <= 110, "too wide: {line}");
    }
    assert!(!report.contains('\x1b'), "colours in plain text");
    story.to_owned()
}

fn explore(
    image: &Image,
    operation: fn(&Run<()>) -> Result<(), FenceError>,
    check: fn(&Crash<'_, ()>) -> Result<(), String>,
) -> Box<Failure> {
    Explorer::default().explore(image, operation, check).unwrap_err()
}

#[test]
fn missing_order() {
    assert_snapshot!(report(&explore(&region(), unordered, published)));
}

#[test]
fn forgotten_flush() {
    assert_snapshot!(report(&explore(&region(), one_forgotten, all_there)));
}

#[test]
fn short_flush() {
    assert_snapshot!(report(&explore(&region(), straddling, whole)));
}

#[test]
fn crash_in_recovery() {
    assert_snapshot!(report(&explore(&two_accounts(), transfer, recovers_carelessly)));
}

#[test]
fn failure_without_loss() {
    assert_snapshot!(report(&explore(&region(), wrong_value, published)));
}

/// Two threads, five lines, a torn store, and more events than fit.
#[test]
fn long_run_is_abridged() {
    let operation = |run: &Run<()>| {
        run.pmem().store(256, &[7; 16]);
        let pmem = run.pmem();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..5).for_each(|line| pmem.store_u64(512 + 64 * line, 1)));
        });
        for value in 0..60 {
            pmem.store_u64(512, value);
            pmem.flush(512, 8);
        }
    };
    let check = |crash: &Crash<'_, ()>| {
        let torn = crash.pmem().load_u64(256) == crash.pmem().load_u64(264);
        let lost = (1..5).any(|line| crash.pmem().load_u64(512 + 64 * line) == 1);
        if torn || lost || crash.pmem().load_u64(512) > 20 { Ok(()) } else { Err("nothing else".to_owned()) }
    };
    let failure = Explorer::new(Model::Px86Line).explore(&region(), operation, check).unwrap_err();
    assert_snapshot!(report(&failure));
}

#[test]
fn picture_is_well_formed_and_stable() {
    let failure = Explorer::default().explore(&region(), unordered, published).unwrap_err();
    let picture = failure.to_svg();
    for tag in ["text", "title", "style", "svg"] {
        let (opened, closed) = (format!("<{tag}"), format!("</{tag}>"));
        assert_eq!(picture.matches(&opened).count(), picture.matches(&closed).count(), "{tag}");
    }
    assert!(picture.starts_with("<svg xmlns=") && picture.contains("prefers-color-scheme:dark"));
    assert_snapshot!(picture);
}
