//! The report as it is read: the crash drawn, on a terminal and as a picture.

use crate::common::*;
use crate::programs::*;
use insta::assert_snapshot;

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

#[test]
fn each_kind_of_failure_is_drawn() {
    type Operation = fn(&Run<()>) -> Done;
    type Check = fn(&Crash<'_, ()>) -> Result<(), String>;
    let failures: [(&str, Image, Operation, Check); 5] = [
        ("missing_order", region(), unordered, published),
        ("forgotten_flush", region(), one_forgotten, all_there),
        ("short_flush", region(), straddling, whole),
        ("crash_in_recovery", two_accounts(), transfer, recovers_carelessly),
        ("failure_without_loss", region(), wrong_value, published),
    ];
    for (name, image, operation, check) in failures {
        let failure = Explorer::default().explore(&image, operation, check).unwrap_err();
        assert_snapshot!(name, report(&failure));
    }
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
