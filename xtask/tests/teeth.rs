//! `cargo xtask teeth` on a small crate with all kinds of verdicts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::{env, fs};

use miette::Result;
use xtask::programs::packages;
use xtask::teeth::{Baseline, Blobs, Campaign, Report, Selection, Site, Verdict, blobs};

/// Copies the crate out of the workspace, and uses the workspace's target directory. The path of a test's copy is always the same, so that a second run
/// builds nothing.
fn fixture(test: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let original = root.join("xtask/tests/fixtures/teeth");
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let target = env::current_exe().unwrap().ancestors().nth(3).map(PathBuf::from).unwrap();
    let write = |path: &str, text: &str| {
        let path = copy.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for path in ["Cargo.toml", "src/lib.rs", "tests/crash.rs"] {
        let text = fs::read_to_string(original.join(path)).unwrap();
        let text = text.replace("../../../..", root.to_str().unwrap());
        // Cargo would treat two crates of one name as the same crate.
        write(path, &text.replace("name = \"fixture\"\nversion", &format!("name = \"{test}\"\nversion")));
    }
    write("Cargo.lock", &fs::read_to_string(root.join("Cargo.lock")).unwrap());
    write(".cargo/config.toml", &format!("[build]\ntarget-dir = {target:?}\n"));
    copy
}

fn campaign(fixture: &Path, selection: &Selection) -> Result<Campaign> {
    let packages = packages(fixture)?;
    assert_eq!(packages.len(), 1);
    Campaign::new(fixture, &packages, selection, &|_, _, _| ())
}

/// The verdicts on the sites of a file, with the line's text and the kind.
fn verdicts(fixture: &Path, report: &Report, file: &str) -> Vec<(String, &'static str, Verdict)> {
    let text = fs::read_to_string(fixture.join(file)).unwrap();
    let line = |site: &Site| text.lines().nth(site.line - 1).unwrap().trim().to_owned();
    let tried = report.tried.iter().filter(|tried| tried.site.file == file);
    tried.map(|tried| (line(&tried.site), tried.site.kind.name(), tried.verdict.clone())).collect()
}

#[test]
fn verdict_of_each_site() {
    let fixture = fixture("teeth-verdicts");
    let report = campaign(&fixture, &Selection::All).unwrap().run(&|_, _, _| ()).unwrap();
    let test = || "slot_is_published_atomically".to_owned();
    let killed = || Verdict::Killed(test());
    let expected = [
        ("pmem.persist(64, 8)?;", "flush", killed()),
        ("pmem.persist(64, 8)?;", "fence", killed()),
        // Each of these two makes the other redundant.
        ("pmem.flush(0, 8); // needed", "flush", Verdict::Survived),
        ("pmem.flush(0, 16); // redundant", "flush", Verdict::Survived),
        ("pmem.fence()", "fence", killed()),
    ];
    let expected = expected.map(|(line, kind, verdict)| (line.to_owned(), kind, verdict));
    assert_eq!(verdicts(&fixture, &report, "src/lib.rs"), expected);

    let in_tests = verdicts(&fixture, &report, "tests/crash.rs");
    let in_tests: Vec<Verdict> = in_tests.into_iter().map(|(_, _, verdict)| verdict).collect();
    let reason = "nothing was stored there".to_owned();
    assert_eq!(in_tests, [Verdict::SetAside(reason), Verdict::MarkedButMissed(test()), killed()]);

    let wrong: Vec<(&str, &str)> =
        report.wrong_marks.iter().map(|mark| (mark.file.as_str(), mark.message.as_str())).collect();
    let shipped = ("src/lib.rs", "only sites in tests can be set aside");
    assert_eq!(wrong, [shipped, ("tests/crash.rs", "no test executes the site that is set aside")]);
    assert!(!report.is_good());
    let (killed, total) = (&report.to_json()["killed"], &report.to_json()["total"]);
    assert_eq!((killed.as_u64(), total.as_u64()), (Some(4), Some(7)));
}

#[test]
fn list_names_tests_and_filters_by_file() {
    let fixture = fixture("teeth-list");
    let campaign = campaign(&fixture, &Selection::Containing(vec!["src/".to_owned()])).unwrap();
    let listed: Vec<_> = campaign.list().collect();
    assert_eq!(listed.len(), 5);
    for listed in listed {
        assert_eq!((listed.package.name.as_str(), listed.site.file.as_str()), ("teeth-list", "src/lib.rs"));
        let tests = listed.tests.iter().map(|(program, name)| (program.source.as_str(), *name));
        assert_eq!(tests.collect::<Vec<_>>(), [("tests/crash.rs", "slot_is_published_atomically")]);
    }
}

#[test]
fn changed_files_alone_are_tried() {
    let fixture = fixture("teeth-changed");
    fs::create_dir_all(fixture.join(".ci")).unwrap();
    let files = || {
        let campaign = campaign(&fixture, &Selection::Changed).unwrap();
        campaign.files().keys().cloned().collect::<Vec<_>>()
    };
    Baseline::write(&fixture, &Blobs::new()).unwrap();
    let all = ["src/lib.rs", "tests/crash.rs"].map(str::to_owned);
    assert_eq!(files(), all);
    Baseline::write(&fixture, &blobs(&fixture, &all).unwrap()).unwrap();
    assert_eq!(files(), [""; 0]);
    let report = campaign(&fixture, &Selection::Changed).unwrap().run(&|_, _, _| ()).unwrap();
    assert!(report.is_good() && report.tried.is_empty(), "{report}");
    // A redundant flush is added to one of them.
    let source = fs::read_to_string(fixture.join(&all[0])).unwrap();
    fs::write(fixture.join(&all[0]), source.replace("pmem.fence()", "pmem.flush(0, 8);\n    pmem.fence()"))
        .unwrap();
    assert_eq!(files(), all[..1]);
}

#[test]
fn failing_test_is_an_error() {
    let fixture = fixture("teeth-broken");
    let test = fixture.join("tests/crash.rs");
    let broken = fs::read_to_string(&test).unwrap().replace("Some(7), 0 | 1", "Some(8), 0 | 1");
    fs::write(&test, broken).unwrap();
    let error = campaign(&fixture, &Selection::All).unwrap_err();
    assert_eq!(
        error.to_string().lines().next().unwrap().trim_end_matches(':'),
        "with all sites, teeth-broken tests/crash.rs: slot_is_published_atomically ends with Failed"
    );
}

/// What must not happen: a test that fails with all sites, because of a file that it reads and not of its program, "kills" the sites that it executes.
/// Its program is as it was when the test passed, so the record of that is taken for valid, and a campaign finds teeth where there are none:
/// the redundant flush and the mark.
#[test]
fn test_that_fails_since_it_was_recorded_kills_nothing() {
    let fixture = fixture("teeth-stale");
    let test = fixture.join("tests/crash.rs");
    let text = fs::read_to_string(&test).unwrap();
    let reads = "Explorer::default().check(&Image::zeroed(256), operation, check);\n    \
        assert_eq!(std::fs::read(\"golden\").unwrap(), b\"right\");";
    let text = text.replace("Explorer::default().check(&Image::zeroed(256), operation, check);", reads);
    fs::write(&test, text).unwrap();
    fs::write(fixture.join("golden"), "right").unwrap();
    let selection = Selection::Containing(vec!["src/".to_owned()]);
    let report = campaign(&fixture, &selection).unwrap().run(&|_, _, _| ()).unwrap();
    assert!(report.tried.iter().any(|tried| tried.verdict == Verdict::Survived), "{report}");
    // The program stays.
    fs::write(fixture.join("golden"), "wrong").unwrap();
    match campaign(&fixture, &selection).and_then(|campaign| campaign.run(&|_, _, _| ())) {
        Err(_) => {}
        Ok(report) => {
            let killed = report.tried.iter().filter(|tried| matches!(tried.verdict, Verdict::Killed(_)));
            assert_eq!(killed.count(), 0, "a broken test has killed sites:\n{report}");
        }
    }
}

/// What must not happen: a file that is edited while a campaign runs, for an hour, is listed in `.ci/teeth` with its new contents, whose sites nothing has
/// tried.
#[test]
fn file_that_is_edited_during_a_campaign_is_not_listed_as_tried() {
    let fixture = fixture("teeth-edited");
    fs::create_dir_all(fixture.join(".ci")).unwrap();
    // As `./x test --deep` does.
    let campaign = campaign(&fixture, &Selection::All).unwrap();
    let files: Vec<String> = campaign.files().keys().cloned().collect();
    let source = fs::read_to_string(fixture.join("src/lib.rs")).unwrap();
    let edited = source.replace("pmem.fence()", "pmem.flush(0, 8);\n    pmem.fence()");
    fs::write(fixture.join("src/lib.rs"), edited).unwrap();
    campaign.run(&|_, _, _| ()).unwrap();
    Baseline::write(&fixture, campaign.files()).unwrap();
    let now = blobs(&fixture, &files).unwrap();
    assert_eq!(Baseline::read(&fixture).unwrap().changed(&now), ["src/lib.rs"]);
}
