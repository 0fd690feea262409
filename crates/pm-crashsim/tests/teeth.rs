//! The environment variables that list a process's sites and take one away, tried on processes of this very program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Crash, Explorer, Image, Run};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs, thread};

const SITES: &str = "PM_CRASHSIM_SITES";
const SUPPRESS: &str = "PM_CRASHSIM_SUPPRESS";
const PROGRAM: &str = "publication_survives";

/// The program whose flushes and fences are taken away below.
#[test]
fn publication_survives() {
    let operation = |run: &Run<()>| {
        run.pmem().store_u64(64, 7);
        run.pmem().persist(64, 8)?;
        run.pmem().store_u64(0, 1);
        run.pmem().persist(0, 8)?;
        run.ack(());
        Ok::<(), FenceError>(())
    };
    let check = |crash: &Crash<'_, ()>| {
        let (flag, value) = (crash.pmem().load_u64(0), crash.pmem().load_u64(64));
        assert!(flag == 0 && crash.acked().is_empty() || (flag, value) == (1, 7));
    };
    Explorer::default().check(&Image::zeroed(128), operation, check);
}

/// Runs the test above alone, in a process with these variables and no others of the kind.
fn program_with(variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", PROGRAM, "--nocapture"]).env_remove(SITES).env_remove(SUPPRESS);
    command.envs(variables.iter().copied()).output().unwrap()
}

/// A directory that goes when it is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("pm-crashsim-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> Vec<String> {
        fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
            .collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nothing depends on it.
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn each_site_is_listed_once_and_its_loss_is_noticed() {
    let directory = Directory::new("sites");
    let path = directory.0.to_str().unwrap();
    assert!(program_with(&[(SITES, path)]).status.success());
    let listed = directory.files().concat();
    let sites: BTreeSet<&str> = listed.lines().collect();
    assert_eq!((listed.lines().count(), sites.len()), (4, 4), "{listed}");
    for site in sites {
        assert!(site.contains("@crates/pm-crashsim/tests/teeth.rs:"), "{site}");
        let without = program_with(&[(SUPPRESS, site)]);
        assert!(!without.status.success(), "{site} was not missed");
        let reports = String::from_utf8_lossy(&without.stderr).matches("does nothing here").count();
        assert_eq!(reports, 1, "the suppression is reported once");
    }
    let elsewhere = "flush@crates/pm-crashsim/tests/teeth.rs:1:1";
    let nowhere = program_with(&[(SUPPRESS, elsewhere)]);
    let report = String::from_utf8_lossy(&nowhere.stderr);
    assert!(nowhere.status.success() && !report.contains("does nothing here"), "{report}");
}

#[test]
fn processes_list_sites_concurrently() {
    let directory = Directory::new("many");
    let path = directory.0.to_str().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(program_with(&[(SITES, path)]).status.success()));
        }
    });
    let files: Vec<BTreeSet<String>> =
        directory.files().iter().map(|file| file.lines().map(str::to_owned).collect()).collect();
    assert_eq!(files.len(), 4);
    assert!(files.iter().all(|file| *file == files[0]), "{files:?}");
}

#[test]
fn invalid_variables_are_errors() {
    for (variable, value) in [(SUPPRESS, "flush at a.rs:1:2"), (SITES, "/no/such/directory")] {
        let output = program_with(&[(variable, value)]);
        let report = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && report.contains(variable) && report.contains(value), "{report}");
    }
}
