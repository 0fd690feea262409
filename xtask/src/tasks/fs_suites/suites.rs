//! The list of suites. Each has a file system of its own, which is checked afterwards, and all run even if one fails.

use std::env;
use std::time::Instant;

use miette::{Result, bail, ensure};
use rustix::process::geteuid;
use xtask::apt::{self, Need};

use super::super::mounted::Mounted;
use super::{load, posix, sqlite, xfstests};

/// The size of each file system.
const SIZE: &str = "1G";

/// The variable with the names of the suites that run, separated by commas: by default all.
const CHOICE: &str = "PM_FS_SUITES";

/// The programs of the suites.
const NEEDS: [Need; 6] = [
    Need::new("sqlite3", "sqlite3"),
    Need::new("fio", "fio"),
    Need::new("dbench", "dbench"),
    Need::new(load::DBENCH_CALLS, "dbench"),
    Need::new("postmark", "postmark"),
    Need::new("stress-ng", "stress-ng"),
];

/// A suite, run on a file system that is mounted and empty.
struct Suite {
    name: &'static str,
    run: fn(&mut Mounted) -> Result<()>,
}

const SUITES: [Suite; 7] = [
    Suite { name: "pjdfstest", run: posix::pjdfstest },
    Suite { name: "fsx", run: posix::fsx },
    Suite { name: "fio", run: load::fio },
    Suite { name: "dbench", run: load::dbench },
    Suite { name: "postmark", run: load::postmark },
    Suite { name: "stress-ng", run: load::stress },
    Suite { name: "sqlite", run: sqlite::run },
];

/// Runs the suites.
pub(in crate::tasks) fn run() -> Result<()> {
    ensure!(geteuid().is_root(), "the suites act as several users, and mount: they must be root");
    apt::ensure(&NEEDS)?;
    let choice = env::var(CHOICE).ok();
    let mut failed = Vec::new();
    for suite in chosen(choice.as_deref())? {
        println!("\n{}", suite.name);
        let begin = Instant::now();
        let result = suite.run_on_new();
        let seconds = begin.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!("{}: passed in {seconds:.0} s", suite.name),
            Err(report) => {
                println!("{}: FAILED in {seconds:.0} s", suite.name);
                eprintln!("{report:?}");
                failed.push(suite.name);
            }
        }
    }
    if let Some(directory) = env::var_os(xfstests::DIRECTORY) {
        println!("\nxfstests");
        xfstests::run(directory.as_ref())?;
    }
    ensure!(failed.is_empty(), "these suites have failed: {}", failed.join(", "));
    Ok(())
}

impl Suite {
    fn run_on_new(&self) -> Result<()> {
        let mut mounted = Mounted::new(SIZE)?;
        mounted.start()?;
        (self.run)(&mut mounted)?;
        mounted.stop()?;
        mounted.pmfs(&["fsck"])
    }
}

/// The suites with these names.
fn chosen(names: Option<&str>) -> Result<Vec<&'static Suite>> {
    let Some(names) = names else { return Ok(SUITES.iter().collect()) };
    let find = |name: &str| match SUITES.iter().find(|suite| suite.name == name) {
        Some(suite) => Ok(suite),
        None => {
            let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
            bail!("{CHOICE} names {name:?}; there are {}", known.join(", "))
        }
    };
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_chosen_by_name() {
        let names = |choice| {
            let chosen = chosen(choice).ok()?;
            Some(chosen.iter().map(|suite| suite.name).collect::<Vec<_>>())
        };
        assert_eq!(names(None).map(|names| names.len()), Some(SUITES.len()));
        assert_eq!(names(Some("sqlite, fio")), Some(vec!["sqlite", "fio"]));
        assert_eq!(names(Some("")), Some(vec![]));
        assert_eq!(names(Some("fio,none")), None);
    }
}
