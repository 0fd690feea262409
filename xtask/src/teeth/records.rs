//! What earlier runs have shown, kept in the target directory: the flushes and fences that each test executes, and the test that failed without each.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use miette::{IntoDiagnostic, Result, WrapErr};
use serde_json::{Value, json};

use super::site::Site;
use crate::cargo;
use crate::programs::{Outcome, Program, Ran, SITES};

/// The folder in the target directory.
const FOLDER: &str = "teeth";
/// The file with the killers.
const KILLERS: &str = "killers.json";

/// A test that has passed with all sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// The name of the test.
    pub test: String,
    /// How long it took.
    pub took: Duration,
    /// The sites that it executes, sorted.
    pub sites: Vec<Site>,
    /// The build of the program, and the environment, with which it ran.
    build: Build,
}

/// Identifies a build of a program, by its size and modification time, and the variables that change what its tests do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Build(Value);

impl Executed {
    /// Runs a test with all sites. The record is `None` if it has not passed.
    ///
    /// # Errors
    /// If the test cannot be run, or has listed what is not a site.
    pub fn by(program: &Program, test: &str) -> Result<(Ran, Option<Self>)> {
        let directory = tempfile::tempdir().into_diagnostic()?;
        let build = Build::of(program)?;
        let ran = program.run(test, (SITES, directory.path().as_os_str()), Duration::MAX)?;
        if ran.outcome != Outcome::Passed {
            return Ok((ran, None));
        }
        let executed =
            Self { test: test.to_owned(), took: ran.took, sites: listed(directory.path())?, build };
        Ok((ran, Some(executed)))
    }
}

/// The records of a workspace.
#[derive(Debug)]
pub struct Records {
    directory: PathBuf,
}

/// The test that failed without a site: the program's description, and the test's name.
pub(super) type Killer = (String, String);

impl Records {
    /// The records of the workspace in `root`.
    ///
    /// # Errors
    /// If cargo does not name the target directory, or it cannot be written.
    pub fn of(root: &Path) -> Result<Self> {
        let directory = cargo::target_directory(root)?.join(FOLDER);
        fs::create_dir_all(&directory).into_diagnostic().wrap_err_with(|| directory.display().to_string())?;
        Ok(Self { directory })
    }

    /// The tests of a program, if all have been recorded since it was built.
    ///
    /// # Errors
    /// If the program or the record cannot be read.
    pub fn executed(&self, program: &Program) -> Result<Option<Vec<Executed>>> {
        let Some(record) = read(&self.file(program))? else { return Ok(None) };
        let build = Build::of(program)?;
        if record["build"] != build.0 {
            return Ok(None);
        }
        let tests = record["tests"].as_array().into_iter().flatten();
        Ok(tests.map(|test| executed_of(test, &build)).collect())
    }

    /// Records all tests of a program, unless it was built again since one of them began.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn record(&self, program: &Program, tests: &[Executed]) -> Result<()> {
        let build = Build::of(program)?;
        if tests.iter().any(|executed| executed.build != build) {
            return Ok(());
        }
        let test = |executed: &Executed| {
            let sites: Vec<String> = executed.sites.iter().map(Site::to_string).collect();
            json!({"test": executed.test, "micros": micros(executed.took), "sites": sites})
        };
        let tests: Vec<Value> = tests.iter().map(test).collect();
        write(&self.file(program), &json!({"build": build.0, "tests": tests}))
    }

    /// The last test that failed without each site, by the site's name.
    pub(super) fn killers(&self) -> Result<BTreeMap<String, Killer>> {
        let killers = read(&self.directory.join(KILLERS))?.unwrap_or_default();
        let killer = |(site, killer): (&String, &Value)| {
            Some((site.clone(), (killer[0].as_str()?.to_owned(), killer[1].as_str()?.to_owned())))
        };
        Ok(killers.as_object().into_iter().flatten().filter_map(killer).collect())
    }

    /// Adds to the killers, of which another campaign may have found others meanwhile.
    pub(super) fn keep_killers(&self, killers: &BTreeMap<String, Killer>) -> Result<()> {
        let mut all = self.killers()?;
        all.extend(killers.iter().map(|(site, killer)| (site.clone(), killer.clone())));
        write(&self.directory.join(KILLERS), &json!(all))
    }

    fn file(&self, program: &Program) -> PathBuf {
        let name = program.executable.file_name().unwrap_or_default();
        self.directory.join(name).with_extension("json")
    }
}

impl Build {
    fn of(program: &Program) -> Result<Self> {
        let metadata =
            program.executable.metadata().into_diagnostic().wrap_err_with(|| program.describe())?;
        let modified = metadata.modified().into_diagnostic()?;
        let since = modified.duration_since(SystemTime::UNIX_EPOCH).into_diagnostic()?;
        let is_for_tests = |name: &str| name.starts_with("PM_") || name.starts_with("PROPTEST_");
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok().filter(|name| is_for_tests(name))?, value.display().to_string()))
        });
        let variables: BTreeMap<String, String> = variables.collect();
        Ok(Self(json!([metadata.len(), since.as_secs(), since.subsec_nanos(), variables])))
    }
}

fn executed_of(record: &Value, build: &Build) -> Option<Executed> {
    let sites = record["sites"].as_array()?.iter();
    Some(Executed {
        test: record["test"].as_str()?.to_owned(),
        took: Duration::from_micros(record["micros"].as_u64()?),
        sites: sites.map(|site| site.as_str()?.parse().ok()).collect::<Option<_>>()?,
        build: build.clone(),
    })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A file's JSON; `None` if there is no such file, or it is not JSON: a record that was written in part is made again.
fn read(path: &Path) -> Result<Option<Value>> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).into_diagnostic().wrap_err_with(|| path.display().to_string()),
    }
}

/// Replaces a file at once: another process may read it.
fn write(path: &Path, value: &Value) -> Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let written = fs::write(&new, value.to_string()).and_then(|()| fs::rename(&new, path));
    written.into_diagnostic().wrap_err_with(|| path.display().to_string())
}

/// The sites in the files of a directory where processes have listed them, sorted.
fn listed(directory: &Path) -> Result<Vec<Site>> {
    let mut sites = Vec::new();
    for entry in fs::read_dir(directory).into_diagnostic()? {
        let path = entry.into_diagnostic()?.path();
        let text =
            fs::read_to_string(&path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        for line in text.lines() {
            sites.push(line.parse()?);
        }
    }
    sites.sort();
    sites.dedup();
    Ok(sites)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Package;

    fn records(directory: &tempfile::TempDir) -> (Records, Program) {
        let executable = directory.path().join("library-1");
        fs::write(&executable, "first").expect("written");
        let package = Package { name: "a".to_owned(), directory: "/w/a".into(), can_simulate: true };
        let program = Program { package, source: "tests/b.rs".to_owned(), executable };
        (Records { directory: directory.path().to_owned() }, program)
    }

    #[test]
    fn record_holds_until_the_program_is_built_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let (records, program) = records(&directory);
        assert_eq!(records.executed(&program).expect("readable"), None);
        let site = |name: &str| name.parse().expect("a site");
        let sites = vec![site("flush@a/src/b.rs:1:2"), site("fence@a/src/b.rs:1:2")];
        let build = Build::of(&program).expect("it is there");
        let tests = [Executed { test: "m::t".to_owned(), took: Duration::from_millis(3), sites, build }];
        records.record(&program, &tests).expect("written");
        assert_eq!(records.executed(&program).expect("readable").as_deref(), Some(&tests[..]));
        fs::write(&program.executable, "another").expect("written");
        assert_eq!(records.executed(&program).expect("readable"), None);
    }

    /// What must not happen: `./x test` runs a property test without the failing inputs that earlier runs have saved for it, in `proptest-regressions`. A
    /// mistake that comes back is then found by chance only. proptest neither saves nor reads them if this variable is set.
    #[test]
    fn saved_inputs_are_tried_with_all_sites() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let (_, program) = records(&directory);
        let script = "#!/bin/sh\n[ -z \"$PROPTEST_DISABLE_FAILURE_PERSISTENCE\" ] || { echo 'test result: FAILED'; exit 101; }\n\
            echo 'test result: ok. 1 passed'\n";
        let package = Package { directory: directory.path().to_owned(), ..program.package };
        let program = Program { package, executable: directory.path().join("script"), ..program };
        fs::write(&program.executable, script).expect("written");
        fs::set_permissions(&program.executable, fs::Permissions::from_mode(0o755)).expect("executable");
        let (ran, _) = Executed::by(&program, "a").expect("it runs");
        assert_eq!(ran.outcome, Outcome::Passed, "saved inputs are not read: {}", ran.output);
    }

    /// What must not happen: what a program has executed is taken for what another build of it executes, because it was built again while its tests ran:
    /// the record has the build of its end.
    #[test]
    fn program_that_is_built_while_its_tests_run_has_no_record() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let (records, program) = records(&directory);
        let package = Package { directory: directory.path().to_owned(), ..program.package };
        let program = Program { package, executable: directory.path().join("script"), ..program };
        // Its test replaces it, as another cargo would.
        let script = "#!/bin/sh\necho 'test result: ok. 1 passed'\necho new > new && mv new script\n";
        fs::write(&program.executable, script).expect("written");
        fs::set_permissions(&program.executable, fs::Permissions::from_mode(0o755)).expect("executable");
        let (_, executed) = Executed::by(&program, "a").expect("it runs");
        // As the suite and a campaign do after the last test.
        records.record(&program, &[executed.expect("it passes")]).expect("written");
        assert_eq!(records.executed(&program).expect("readable"), None);
    }

    #[test]
    fn incomplete_record_is_no_record() {
        let directory = tempfile::tempdir().expect("a directory");
        let (records, program) = records(&directory);
        for text in ["", "{\"build\":", "{\"tests\":[]}"] {
            fs::write(records.file(&program), text).expect("written");
            assert_eq!(records.executed(&program).expect("readable"), None, "{text}");
        }
    }

    /// What must not happen: of two campaigns at the same time, as the tests of teeth and teeth themselves are, in one target directory, one forgets what the
    /// other has found. That costs time only.
    #[test]
    fn killers_of_two_campaigns_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let (records, _) = records(&directory);
        let mut known = [(); 2].map(|()| records.killers().expect("readable"));
        for (number, known) in known.iter_mut().enumerate() {
            known.insert(format!("flush@a.rs:{number}:2"), ("a tests/b.rs".to_owned(), "t".to_owned()));
            records.keep_killers(known).expect("written");
        }
        assert_eq!(records.killers().expect("readable").len(), 2);
    }

    #[test]
    fn killers_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let (records, _) = records(&directory);
        assert!(records.killers().expect("readable").is_empty());
        let killers = [("flush@a.rs:1:2".to_owned(), ("a tests/b.rs".to_owned(), "t".to_owned()))].into();
        records.keep_killers(&killers).expect("written");
        assert_eq!(records.killers().expect("readable"), killers);
    }
}
