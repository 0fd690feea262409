//! A campaign: the sites that tests execute, and the verdict on each.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ignore::WalkBuilder;
use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};

use super::baseline::{Baseline, Blobs, blobs};
use super::marks::{Mark, marks};
use super::records::{Executed, Killer, Records};
use super::report::{Report, Tried, Verdict, WrongMark};
use super::site::Site;
use crate::programs::{Outcome, Package, Program, SUPPRESS, build, in_parallel};

/// The time limit of a test, in addition to ten times its duration with all sites.
const PATIENCE: Duration = Duration::from_secs(30);
/// The number of a file's killers that run before the other tests.
const FIRST: usize = 3;
/// The folders with a crate's own sites.
const FOLDERS: [&str; 3] = ["src", "examples", "tests"];

/// A site of a crate, and the tests that execute it.
#[derive(Debug)]
pub struct Listed<'a> {
    /// The crate.
    pub package: &'a Package,
    /// The site.
    pub site: &'a Site,
    /// The program and the name of each test that executes it, quick ones first.
    pub tests: Vec<(&'a Program, &'a str)>,
    /// The reason, if the site is set aside.
    pub set_aside: Option<&'a str>,
}

/// Called with the current work, the number of finished items, and the number of items.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// The sites of a campaign. All tests have passed with all sites.
#[derive(Debug)]
pub struct Campaign {
    programs: Vec<Program>,
    tests: Vec<Test>,
    /// Sorted by crate and place, with the indices of the tests that execute each, quick ones first.
    sites: Vec<(Package, Site, Vec<usize>)>,
    marks: BTreeMap<String, Vec<Mark>>,
    wrong_marks: Vec<WrongMark>,
    records: Records,
    files: Blobs,
    /// The tests that have passed with all sites during this campaign. A record only says that a test once did; a file that it reads may have changed.
    confirmed: Mutex<BTreeSet<usize>>,
}

/// A test that has passed with all sites.
#[derive(Debug)]
struct Test {
    /// The index of its program.
    program: usize,
    executed: Executed,
}

/// Which sites a campaign has.
#[derive(Debug, Clone)]
pub enum Selection {
    /// All.
    All,
    /// Those in files whose path contains one of these.
    Containing(Vec<String>),
    /// Those in files whose contents the [`Baseline`] does not have.
    Changed,
}

impl Campaign {
    /// Builds the tests of `packages`, and runs with all sites those that have not run since they were built. The campaign has the selected sites.
    ///
    /// # Errors
    /// If the tests do not build or do not pass, or execute none of the sites that are named.
    pub fn new(
        root: &Path,
        packages: &[Package],
        selection: &Selection,
        progress: Progress<'_>,
    ) -> Result<Self> {
        progress("building", 0, 1);
        let root = root.canonicalize().into_diagnostic().wrap_err_with(|| root.display().to_string())?;
        // Before the build: what is edited from now on is not tried.
        let blobs = blobs(&root, &sources(&root, packages)?)?;
        let records = Records::of(&root)?;
        let mut programs = Vec::new();
        for program in build(&root, packages)? {
            if program.has_simulator()? {
                programs.push(program);
            }
        }
        let mut tests = executed(&programs, &records, progress)?;
        tests.sort_by_key(|test| test.executed.took);
        let mut by: BTreeMap<(String, Site), Vec<usize>> = BTreeMap::new();
        for (number, test) in tests.iter().enumerate() {
            let package = &programs[test.program].package;
            for site in &test.executed.sites {
                if belongs(&root.join(&site.file), package) {
                    by.entry((package.name.clone(), site.clone())).or_default().push(number);
                }
            }
        }
        let files: BTreeSet<&String> = by.keys().map(|(_, site)| &site.file).collect();
        let mut files: Blobs = blobs.into_iter().filter(|(file, _)| files.contains(file)).collect();
        let wanted = selection.of(&root, &files)?;
        files.retain(|file, _| wanted.contains(file));
        let package = |name: &str| packages.iter().find(|package| package.name == name).cloned();
        let sites = by.into_iter().filter(|((_, site), _)| wanted.contains(&site.file));
        let sites = sites.filter_map(|((name, site), tests)| Some((package(&name)?, site, tests))).collect();
        let (marks, wrong_marks, confirmed) = (BTreeMap::new(), Vec::new(), Mutex::default());
        let mut campaign = Self { programs, tests, sites, files, marks, wrong_marks, records, confirmed };
        // A mark in a file without a site is wrong too.
        let is_wanted = |file: &str| wanted.contains(file) || selection.has(file) == Some(true);
        for package in packages {
            campaign.read_marks(&root, package, &is_wanted)?;
        }
        Ok(campaign)
    }

    /// The files with the campaign's sites, as they were when it began.
    #[must_use]
    pub const fn files(&self) -> &Blobs {
        &self.files
    }

    /// All sites.
    pub fn list(&self) -> impl Iterator<Item = Listed<'_>> {
        let test = |&number: &usize| {
            let test = &self.tests[number];
            (&self.programs[test.program], test.executed.test.as_str())
        };
        self.sites.iter().map(move |(package, site, tests)| Listed {
            package,
            site,
            tests: tests.iter().map(test).collect(),
            set_aside: self.mark(site).map(|mark| mark.reason.as_str()),
        })
    }

    /// Without each site in turn, runs the tests that execute it until one fails: first the one that failed in an earlier campaign, then those that
    /// failed without other sites of the same file, then quick ones.
    pub fn run(&self, progress: Progress<'_>) -> Result<Report> {
        let mut known = self.records.killers()?;
        let (done, killers) = (AtomicUsize::new(0), Killers::default());
        let tried = in_parallel(&self.sites, |_, (package, site, tests)| {
            let earlier = known.get(&site.to_string()).and_then(|killer| self.number(killer, tests));
            let tests = killers.first(&site.file, earlier, tests);
            let (verdict, killer) = self.judge(site, &tests).wrap_err_with(|| format!("without {site}"))?;
            if let Some(killer) = killer {
                killers.remember(&site.file, killer);
            }
            progress(&site.to_string(), done.fetch_add(1, Ordering::Relaxed) + 1, self.sites.len());
            Ok((Tried { package: package.name.clone(), site: site.clone(), verdict }, killer))
        })?;
        for (Tried { site, .. }, killer) in &tried {
            if let Some(test) = killer.map(|number| &self.tests[number]) {
                let program = self.programs[test.program].describe();
                known.insert(site.to_string(), (program, test.executed.test.clone()));
            }
        }
        self.records.keep_killers(&known)?;
        let tried = tried.into_iter().map(|(tried, _)| tried).collect();
        Ok(Report { tried, wrong_marks: self.wrong_marks.clone() })
    }

    /// The number of a killer among `tests`.
    fn number(&self, (program, name): &Killer, tests: &[usize]) -> Option<usize> {
        tests.iter().copied().find(|&number| {
            let test = &self.tests[number];
            test.executed.test == *name && self.programs[test.program].describe() == *program
        })
    }

    /// The verdict on a site, and the test that failed.
    fn judge(&self, site: &Site, tests: &[usize]) -> Result<(Verdict, Option<usize>)> {
        let mark = self.mark(site);
        let suppressed = site.to_string();
        for &number in tests {
            let Test { program, executed: Executed { test, took, .. } } = &self.tests[number];
            let program = &self.programs[*program];
            let ran = program.run(test, (SUPPRESS, OsStr::new(&suppressed)), PATIENCE + *took * 10)?;
            let missed = match ran.outcome {
                Outcome::Passed => continue,
                Outcome::Failed | Outcome::TimedOut if mark.is_some() => Verdict::MarkedButMissed,
                Outcome::Failed => Verdict::Killed,
                Outcome::TimedOut => Verdict::TimedOut,
                Outcome::Crashed(status) => {
                    bail!("{test} of {} ended with {status}:\n{}", program.describe(), ran.output)
                }
            };
            self.confirm(number)?;
            return Ok((missed(test.clone()), Some(number)));
        }
        Ok((mark.map_or(Verdict::Survived, |mark| Verdict::SetAside(mark.reason.clone())), None))
    }

    /// Runs a test that has failed without a site with all sites, once.
    fn confirm(&self, number: usize) -> Result<()> {
        let confirmed = || self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = confirmed().contains(&number);
        if !is_known {
            let Test { program, executed } = &self.tests[number];
            passed(&self.programs[*program], &executed.test)?;
            confirmed().insert(number);
        }
        Ok(())
    }

    fn mark(&self, site: &Site) -> Option<&Mark> {
        self.marks.get(&site.file)?.iter().find(|mark| mark.is_about(site))
    }

    /// Reads the marks in the sources of a crate, and checks them.
    fn read_marks(&mut self, root: &Path, package: &Package, is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        let sources = FOLDERS.map(|folder| sources_below(&package.directory.join(folder)));
        for path in sources.into_iter().collect::<Result<Vec<_>>>()?.concat() {
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            if !is_wanted(&file) {
                continue;
            }
            let text = fs::read_to_string(&path).into_diagnostic().wrap_err_with(|| file.clone())?;
            let mut wrong = |line: usize, message: String| {
                self.wrong_marks.push(WrongMark { file: file.clone(), line, message });
            };
            let marks = marks(&text).unwrap_or_else(|(line, message)| {
                wrong(line, message);
                Vec::new()
            });
            for mark in &marks {
                let sets_aside = |(_, site, _): &(_, Site, _)| site.file == file && mark.is_about(site);
                if !path.starts_with(package.directory.join("tests")) {
                    wrong(mark.line, "only sites in tests can be set aside".to_owned());
                } else if !self.sites.iter().any(sets_aside) {
                    wrong(mark.line, "no test executes the site that is set aside".to_owned());
                }
            }
            self.marks.insert(file, marks);
        }
        Ok(())
    }
}

impl Selection {
    /// Whether it has a file of this path; `None` if that depends on the contents.
    fn has(&self, file: &str) -> Option<bool> {
        match self {
            Self::All => Some(true),
            Self::Containing(parts) => Some(parts.iter().any(|part| file.contains(part.as_str()))),
            Self::Changed => None,
        }
    }

    /// Those of `files` that it has.
    fn of(&self, root: &Path, files: &Blobs) -> Result<BTreeSet<String>> {
        if matches!(self, Self::Changed) {
            return Ok(Baseline::read(root)?.changed(files).into_iter().map(str::to_owned).collect());
        }
        let had: BTreeSet<String> =
            files.keys().filter(|file| self.has(file) == Some(true)).cloned().collect();
        if had.is_empty() {
            bail!("no test executes a flush or fence of the selected crates and files");
        }
        Ok(had)
    }
}

/// The indices of tests that failed without a site, by the site's file: they are likely to fail without other sites of the file.
#[derive(Debug, Default)]
struct Killers {
    /// The latest killer is the last.
    by_file: Mutex<BTreeMap<String, Vec<usize>>>,
}

impl Killers {
    /// `tests` in the order in which they run for a site of `file`: first `earlier`, then the file's latest killers, then the others in their order.
    fn first(&self, file: &str, earlier: Option<usize>, tests: &[usize]) -> Vec<usize> {
        let by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        let killers = by_file.get(file).into_iter().flatten().rev();
        let killers = killers.filter(|test| tests.contains(test) && earlier != Some(**test));
        let mut order: Vec<usize> = earlier.into_iter().chain(killers.take(FIRST).copied()).collect();
        let others: Vec<usize> = tests.iter().filter(|test| !order.contains(test)).copied().collect();
        order.extend(others);
        order
    }

    /// Records that a test failed without a site of `file`.
    fn remember(&self, file: &str, killer: usize) {
        let mut by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        let tests = by_file.entry(file.to_owned()).or_default();
        tests.retain(|test| *test != killer);
        tests.push(killer);
    }
}

/// The tests of `programs`, from the records or by running them with all sites.
fn executed(programs: &[Program], records: &Records, progress: Progress<'_>) -> Result<Vec<Test>> {
    let (mut tests, mut names) = (Vec::new(), Vec::new());
    for (number, program) in programs.iter().enumerate() {
        match records.executed(program)? {
            Some(executed) => {
                tests.extend(executed.into_iter().map(|executed| Test { program: number, executed }));
            }
            None => names.extend(program.tests()?.into_iter().map(|name| (number, name))),
        }
    }
    let ran = in_parallel(&names, |at, (number, name)| {
        progress("with all sites", at, names.len());
        Ok(Test { program: *number, executed: passed(&programs[*number], name)? })
    })?;
    for (number, program) in programs.iter().enumerate() {
        let of_program = ran.iter().filter(|test| test.program == number);
        let of_program: Vec<Executed> = of_program.map(|test| test.executed.clone()).collect();
        if !of_program.is_empty() {
            records.record(program, &of_program)?;
        }
    }
    tests.extend(ran);
    Ok(tests)
}

/// Runs a test with all sites, which must pass.
fn passed(program: &Program, test: &str) -> Result<Executed> {
    let (ran, executed) = Executed::by(program, test)?;
    executed.ok_or_else(|| {
        let (program, outcome) = (program.describe(), ran.outcome);
        miette!("with all sites, {program}: {test} ends with {outcome:?}:\n{}", ran.output)
    })
}

/// The paths in the repository of all source files of these crates that may have sites.
fn sources(root: &Path, packages: &[Package]) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for package in packages {
        for folder in FOLDERS {
            let below = sources_below(&package.directory.join(folder))?;
            files.extend(
                below.iter().map(|path| path.strip_prefix(root).unwrap_or(path).display().to_string()),
            );
        }
    }
    Ok(files)
}

/// Whether the file is one of the crate's own.
fn belongs(file: &Path, package: &Package) -> bool {
    FOLDERS.iter().any(|folder| file.starts_with(package.directory.join(folder)))
}

/// Every `.rs` file below a folder, sorted; none if the folder does not exist.
fn sources_below(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let walk = WalkBuilder::new(folder).standard_filters(false).sort_by_file_path(Path::cmp).build();
    let paths = walk.map(|entry| entry.into_diagnostic().map(ignore::DirEntry::into_path));
    let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    paths.filter(|path| path.as_ref().map_or(true, is_source)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_belong_to_their_crate() {
        let package = Package { name: "a".to_owned(), directory: "/w/a".into(), can_simulate: true };
        for (file, is_own) in [
            ("/w/a/src/b/c.rs", true),
            ("/w/a/tests/d.rs", true),
            ("/w/a/benches/d.rs", false),
            ("/w/ab/src/c.rs", false),
            ("/rustc/src/c.rs", false),
        ] {
            assert_eq!(belongs(Path::new(file), &package), is_own, "{file}");
        }
    }

    #[test]
    fn latest_killers_of_a_file_run_first() {
        let killers = Killers::default();
        for killer in [5, 6, 7, 8, 5] {
            killers.remember("src/log.rs", killer);
        }
        assert_eq!(killers.first("src/log.rs", None, &[1, 2, 5, 7]), [5, 7, 1, 2]);
        assert_eq!(killers.first("src/log.rs", Some(2), &[1, 2, 5, 7]), [2, 5, 7, 1]);
        assert_eq!(killers.first("src/log.rs", Some(7), &[1, 2, 5, 7]), [7, 5, 1, 2]);
        assert_eq!(
            killers.first("src/log.rs", None, &[8, 7, 6, 5]),
            [5, 8, 7, 6],
            "no more than three of them"
        );
        assert_eq!(killers.first("src/log.rs", None, &[1, 2]), [1, 2]);
        assert_eq!(killers.first("src/heap.rs", None, &[5, 1]), [5, 1]);
    }
}
