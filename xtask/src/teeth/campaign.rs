//! A campaign: the sites that tests execute, and the verdict on each.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ignore::WalkBuilder;
use miette::{IntoDiagnostic, Result, WrapErr, bail};
use rayon::ThreadPoolBuilder;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};

use super::marks::{Mark, marks};
use super::packages::build;
use super::program::{Outcome, Package, Program, SITES, SUPPRESS, listed};
use super::report::{Report, Tried, Verdict, WrongMark};
use super::site::Site;

/// The number of concurrent tests.
const AT_ONCE: usize = 2;
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
}

/// A test that has passed with all sites.
#[derive(Debug)]
struct Test {
    /// The index of its program.
    program: usize,
    name: String,
    took: Duration,
    sites: Vec<Site>,
}

impl Campaign {
    /// Builds the tests of `packages` in the workspace at `root`, and runs them with all sites. The campaign has the sites in files whose path contains
    /// one of `files`, or all if that is empty.
    ///
    /// # Errors
    /// If the tests do not build or do not pass, or execute no site.
    pub fn new(root: &Path, packages: &[Package], files: &[String], progress: Progress<'_>) -> Result<Self> {
        progress("building", 0, 1);
        let root = root.canonicalize().into_diagnostic().wrap_err_with(|| root.display().to_string())?;
        let programs = build(&root, packages)?;
        let mut names = Vec::new();
        for (program, of) in programs.iter().enumerate() {
            names.extend(of.tests()?.into_iter().map(|name| (program, name)));
        }
        let mut tests = in_parallel(&names, |number, (program, name)| {
            progress("with all sites", number, names.len());
            let (sites, took) = executed_by(&programs[*program], name)?;
            Ok(Test { program: *program, name: name.clone(), took, sites })
        })?;
        tests.sort_by_key(|test| test.took);
        let is_wanted =
            |file: &str| files.is_empty() || files.iter().any(|part| file.contains(part.as_str()));
        let mut by: BTreeMap<(String, Site), Vec<usize>> = BTreeMap::new();
        for (number, test) in tests.iter().enumerate() {
            let package = &programs[test.program].package;
            for site in &test.sites {
                if belongs(&root.join(&site.file), package) && is_wanted(&site.file) {
                    by.entry((package.name.clone(), site.clone())).or_default().push(number);
                }
            }
        }
        if by.is_empty() {
            bail!("no test executes a flush or fence of the selected crates and files");
        }
        let package = |name: &str| packages.iter().find(|package| package.name == name).cloned();
        let sites = by.into_iter();
        let sites = sites.filter_map(|((name, site), tests)| Some((package(&name)?, site, tests))).collect();
        let mut campaign = Self { programs, tests, sites, marks: BTreeMap::new(), wrong_marks: Vec::new() };
        for package in packages {
            campaign.read_marks(&root, package, &is_wanted)?;
        }
        Ok(campaign)
    }

    /// All sites.
    pub fn list(&self) -> impl Iterator<Item = Listed<'_>> {
        let test = |&number: &usize| {
            let test = &self.tests[number];
            (&self.programs[test.program], test.name.as_str())
        };
        self.sites.iter().map(move |(package, site, tests)| Listed {
            package,
            site,
            tests: tests.iter().map(test).collect(),
            set_aside: self.mark(site).map(|mark| mark.reason.as_str()),
        })
    }

    /// Without each site in turn, runs the tests that execute it until one fails: first those that failed without other sites of the same file, then
    /// quick ones.
    pub fn run(&self, progress: Progress<'_>) -> Result<Report> {
        let (done, killers) = (AtomicUsize::new(0), Killers::default());
        let tried = in_parallel(&self.sites, |_, (package, site, tests)| {
            let tests = killers.first(&site.file, tests);
            let (verdict, killer) = self.judge(site, &tests).wrap_err_with(|| format!("without {site}"))?;
            if let Some(killer) = killer {
                killers.remember(&site.file, killer);
            }
            progress(&site.to_string(), done.fetch_add(1, Ordering::Relaxed) + 1, self.sites.len());
            Ok(Tried { package: package.name.clone(), site: site.clone(), verdict })
        })?;
        Ok(Report { tried, wrong_marks: self.wrong_marks.clone() })
    }

    /// The verdict on a site, and the test that failed.
    fn judge(&self, site: &Site, tests: &[usize]) -> Result<(Verdict, Option<usize>)> {
        let mark = self.mark(site);
        let name = site.to_string();
        for &number in tests {
            let test = &self.tests[number];
            let limit = PATIENCE + test.took * 10;
            let missed =
                match self.programs[test.program].run(&test.name, (SUPPRESS, OsStr::new(&name)), limit)? {
                    Outcome::Passed => continue,
                    Outcome::Failed | Outcome::TimedOut if mark.is_some() => Verdict::MarkedButMissed,
                    Outcome::Failed => Verdict::Killed,
                    Outcome::TimedOut => Verdict::TimedOut,
                };
            return Ok((missed(test.name.clone()), Some(number)));
        }
        Ok((mark.map_or(Verdict::Survived, |mark| Verdict::SetAside(mark.reason.clone())), None))
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

/// The indices of tests that failed without a site, by the site's file: they are likely to fail without other sites of the file.
#[derive(Debug, Default)]
struct Killers {
    /// The latest killer is the last.
    by_file: Mutex<BTreeMap<String, Vec<usize>>>,
}

impl Killers {
    /// `tests` in the order in which they run for a site of `file`: first the file's latest killers, then the others in their order.
    fn first(&self, file: &str, tests: &[usize]) -> Vec<usize> {
        let by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        let killers = by_file.get(file).into_iter().flatten().rev();
        let mut order: Vec<usize> =
            killers.filter(|test| tests.contains(test)).take(FIRST).copied().collect();
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

/// Runs a test with all sites, and returns the executed sites and the duration.
fn executed_by(program: &Program, test: &str) -> Result<(Vec<Site>, Duration)> {
    let directory = tempfile::tempdir().into_diagnostic()?;
    let start = Instant::now();
    let outcome = program.run(test, (SITES, directory.path().as_os_str()), Duration::MAX)?;
    let took = start.elapsed();
    if outcome != Outcome::Passed {
        let (package, source) = (&program.package.name, &program.source);
        bail!("with all sites, {source} of {package}: {test} ends with {outcome:?}");
    }
    let mut sites = listed(&directory)?.lines().map(str::parse).collect::<Result<Vec<Site>>>()?;
    sites.sort();
    sites.dedup();
    Ok((sites, took))
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

/// Runs `work` on the items in parallel, and returns the results in the items' order.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let pool = ThreadPoolBuilder::new().num_threads(AT_ONCE).build().into_diagnostic()?;
    // Items are not batched, because one takes from milliseconds to minutes.
    let work = |(number, item)| work(number, item);
    pool.install(|| items.par_iter().enumerate().with_max_len(1).map(work).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use miette::miette;

    #[test]
    fn parallel_results_keep_their_order() {
        let items: Vec<usize> = (0..50).collect();
        let doubled = in_parallel(&items, |number, item| Ok(number + item)).expect("nothing fails");
        assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        let fails = |_, &item: &usize| if item == 7 { Err(miette!("seven")) } else { Ok(item) };
        assert_eq!(in_parallel(&items, fails).expect_err("one fails").to_string(), "seven");
        assert_eq!(in_parallel(&[0_u8; 0], |_, _| Ok(())).expect("nothing to do"), []);
    }

    #[test]
    fn sources_belong_to_their_crate() {
        let package = Package { name: "a".to_owned(), directory: "/w/a".into() };
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
        assert_eq!(killers.first("src/log.rs", &[1, 2, 5, 7]), [5, 7, 1, 2]);
        assert_eq!(killers.first("src/log.rs", &[8, 7, 6, 5]), [5, 8, 7, 6], "no more than three of them");
        assert_eq!(killers.first("src/log.rs", &[1, 2]), [1, 2]);
        assert_eq!(killers.first("src/heap.rs", &[5, 1]), [5, 1]);
    }
}
