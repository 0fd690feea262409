//! The whole of it: what the tests exercise, and what they miss.

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

/// How many tests run at once.
const AT_ONCE: usize = 2;
/// A test may take this long, and ten times what it takes with nothing missing.
const PATIENCE: Duration = Duration::from_secs(30);
/// So many of a file's killers go before the other tests.
const FIRST: usize = 3;
/// Where a crate's code is, for which its tests answer.
const FOLDERS: [&str; 3] = ["src", "examples", "tests"];

/// A site of a crate, and the tests that exercise it.
#[derive(Debug)]
pub struct Listed<'a> {
    /// The crate that it belongs to.
    pub package: &'a Package,
    /// The site.
    pub site: &'a Site,
    /// The tests that come by it, quick ones first: the program, and the test's name.
    pub tests: Vec<(&'a Program, &'a str)>,
    /// Why it is set aside, if it is.
    pub set_aside: Option<&'a str>,
}

/// Told how far it is: what is being done, how many are done, of how many.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// Sites to be tried, after the tests were seen to pass with all of them.
#[derive(Debug)]
pub struct Campaign {
    programs: Vec<Program>,
    tests: Vec<Test>,
    /// Sorted by crate and place, with the numbers of the tests that exercise each, quick ones first.
    sites: Vec<(Package, Site, Vec<usize>)>,
    marks: BTreeMap<String, Vec<Mark>>,
    wrong_marks: Vec<WrongMark>,
}

/// A test that was seen to pass.
#[derive(Debug)]
struct Test {
    /// The number of its program.
    program: usize,
    name: String,
    took: Duration,
    sites: Vec<Site>,
}

impl Campaign {
    /// Builds the tests of `packages` in the workspace at `root` and runs them with nothing missing. What is to be tried
    /// are the sites in files whose path contains one of `files`; with none given, all.
    ///
    /// # Errors
    /// When the tests do not build or do not pass, or exercise nothing.
    pub fn new(root: &Path, packages: &[Package], files: &[String], progress: Progress<'_>) -> Result<Self> {
        progress("building", 0, 1);
        let root = root.canonicalize().into_diagnostic().wrap_err_with(|| root.display().to_string())?;
        let programs = build(&root, packages)?;
        let mut names = Vec::new();
        for (program, of) in programs.iter().enumerate() {
            names.extend(of.tests()?.into_iter().map(|name| (program, name)));
        }
        let mut tests = in_parallel(&names, |number, (program, name)| {
            progress("with nothing missing", number, names.len());
            let (sites, took) = exercised_by(&programs[*program], name)?;
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
            bail!("no test exercises a flush or fence of what was asked for");
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

    /// What there is to try.
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

    /// Runs, without each site in turn, the tests that exercise it, until one fails. First those that missed other sites of the same
    /// file, and then quick ones.
    ///
    /// # Errors
    /// When a test cannot be run, or breaks down instead of failing.
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

    /// What becomes of a site's absence, and the test that missed it.
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

    /// Reads the marks in the sources of a crate, and finds those that are wrong.
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
                    wrong(mark.line, "what is shipped is never set aside".to_owned());
                } else if !self.sites.iter().any(sets_aside) {
                    wrong(mark.line, "sets aside what no test exercises".to_owned());
                }
            }
            self.marks.insert(file, marks);
        }
        Ok(())
    }
}

/// The tests that failed without a flush or fence, by the file in which that stands: they are likely to fail without its neighbours,
/// too. Tests are known by their numbers.
#[derive(Debug, Default)]
struct Killers {
    /// The latest is the last.
    by_file: Mutex<BTreeMap<String, Vec<usize>>>,
}

impl Killers {
    /// The tests in the order in which they are to be asked about a site of `file`: the file's latest killers among them, and then the
    /// others as they stand.
    fn first(&self, file: &str, tests: &[usize]) -> Vec<usize> {
        let by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        let killers = by_file.get(file).into_iter().flatten().rev();
        let mut order: Vec<usize> =
            killers.filter(|test| tests.contains(test)).take(FIRST).copied().collect();
        let others: Vec<usize> = tests.iter().filter(|test| !order.contains(test)).copied().collect();
        order.extend(others);
        order
    }

    /// Remembers that a test failed without a flush or fence of `file`.
    fn remember(&self, file: &str, killer: usize) {
        let mut by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        let tests = by_file.entry(file.to_owned()).or_default();
        tests.retain(|test| *test != killer);
        tests.push(killer);
    }
}

/// Runs a test with nothing missing: the sites that it exercises, and how long it takes.
fn exercised_by(program: &Program, test: &str) -> Result<(Vec<Site>, Duration)> {
    let directory = tempfile::tempdir().into_diagnostic()?;
    let start = Instant::now();
    let outcome = program.run(test, (SITES, directory.path().as_os_str()), Duration::MAX)?;
    let took = start.elapsed();
    if outcome != Outcome::Passed {
        let (package, source) = (&program.package.name, &program.source);
        bail!("with nothing missing, {source} of {package} fails: {test}");
    }
    let mut sites = listed(&directory)?.lines().map(str::parse).collect::<Result<Vec<Site>>>()?;
    sites.sort();
    sites.dedup();
    Ok((sites, took))
}

/// Whether the crate's tests answer for the file.
fn belongs(file: &Path, package: &Package) -> bool {
    FOLDERS.iter().any(|folder| file.starts_with(package.directory.join(folder)))
}

/// Every `.rs` below a folder, which need not exist, in order.
fn sources_below(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut walk = WalkBuilder::new(folder);
    let walk = walk.standard_filters(false).sort_by_file_path(Path::cmp).build();
    let paths = walk.map(|entry| entry.into_diagnostic().map(ignore::DirEntry::into_path));
    let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    paths.filter(|path| path.as_ref().map_or(true, is_source)).collect()
}

/// Runs `work` on each item, a few at a time; the results in the items' order, or an error.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let pool = ThreadPoolBuilder::new().num_threads(AT_ONCE).build().into_diagnostic()?;
    // One item at a time: an item takes from milliseconds to minutes.
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
    fn crate_answers_for_its_own_sources() {
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
