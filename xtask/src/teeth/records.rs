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
}

impl Executed {
    /// Runs a test with all sites. The record is `None` if it has not passed.
    ///
    /// # Errors
    /// If the test cannot be run, or has listed what is not a site.
    pub fn by(program: &Program, test: &str) -> Result<(Ran, Option<Self>)> {
        let directory = tempfile::tempdir().into_diagnostic()?;
        let ran = program.run(test, (SITES, directory.path().as_os_str()), Duration::MAX)?;
        if ran.outcome != Outcome::Passed {
            return Ok((ran, None));
        }
        let executed = Self { test: test.to_owned(), took: ran.took, sites: listed(directory.path())? };
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
        if record["build"] != build(program)? {
            return Ok(None);
        }
        let tests = record["tests"].as_array().into_iter().flatten();
        Ok(tests.map(executed_of).collect())
    }

    /// Records all tests of a program.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn record(&self, program: &Program, tests: &[Executed]) -> Result<()> {
        let test = |executed: &Executed| {
            let sites: Vec<String> = executed.sites.iter().map(Site::to_string).collect();
            json!({"test": executed.test, "micros": micros(executed.took), "sites": sites})
        };
        let tests: Vec<Value> = tests.iter().map(test).collect();
        write(&self.file(program), &json!({"build": build(program)?, "tests": tests}))
    }

    /// The last test that failed without each site, by the site's name.
    pub(super) fn killers(&self) -> Result<BTreeMap<String, Killer>> {
        let killers = read(&self.directory.join(KILLERS))?.unwrap_or_default();
        let killer = |(site, killer): (&String, &Value)| {
            Some((site.clone(), (killer[0].as_str()?.to_owned(), killer[1].as_str()?.to_owned())))
        };
        Ok(killers.as_object().into_iter().flatten().filter_map(killer).collect())
    }

    pub(super) fn keep_killers(&self, killers: &BTreeMap<String, Killer>) -> Result<()> {
        write(&self.directory.join(KILLERS), &json!(killers))
    }

    fn file(&self, program: &Program) -> PathBuf {
        let name = program.executable.file_name().unwrap_or_default();
        self.directory.join(name).with_extension("json")
    }
}

/// Identifies a build of a program: its size and modification time.
fn build(program: &Program) -> Result<Value> {
    let metadata = program.executable.metadata().into_diagnostic().wrap_err_with(|| program.describe())?;
    let modified = metadata.modified().into_diagnostic()?;
    let since = modified.duration_since(SystemTime::UNIX_EPOCH).into_diagnostic()?;
    Ok(json!([metadata.len(), since.as_secs(), since.subsec_nanos()]))
}

fn executed_of(record: &Value) -> Option<Executed> {
    let sites = record["sites"].as_array()?.iter();
    Some(Executed {
        test: record["test"].as_str()?.to_owned(),
        took: Duration::from_micros(record["micros"].as_u64()?),
        sites: sites.map(|site| site.as_str()?.parse().ok()).collect::<Option<_>>()?,
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

fn write(path: &Path, value: &Value) -> Result<()> {
    fs::write(path, value.to_string()).into_diagnostic().wrap_err_with(|| path.display().to_string())
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
        let tests = [Executed { test: "m::t".to_owned(), took: Duration::from_millis(3), sites }];
        records.record(&program, &tests).expect("written");
        assert_eq!(records.executed(&program).expect("readable").as_deref(), Some(&tests[..]));
        fs::write(&program.executable, "another").expect("written");
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
