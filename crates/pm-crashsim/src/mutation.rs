//! Whole processes without one flush or fence, by environment variables: what a tool for mutation testing needs.

use crate::Site;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, process};

/// A directory, where each process lists the sites that it exercised.
const SITES: &str = "PM_CRASHSIM_SITES";
/// The site that no region of the process has.
const SUPPRESS: &str = "PM_CRASHSIM_SUPPRESS";

/// What the environment asked for when the process first flushed or fenced.
struct Mutation {
    suppressed: Option<SiteName>,
    record: Option<Mutex<Record>>,
}

/// The file of this process.
struct Record {
    seen: BTreeSet<Site>,
    file: File,
}

/// A site as it is written: `flush@src/log.rs:120:14`.
#[derive(Debug, PartialEq, Eq)]
struct SiteName {
    kind: String,
    file: String,
    line: u32,
    column: u32,
}

/// Notes that the program came by `site`, where that is asked for. Says whether it is to do nothing.
pub(crate) fn exercise(site: Site) -> bool {
    let Some(mutation) = mutation() else { return false };
    if let Some(record) = &mutation.record {
        record.lock().unwrap_or_else(PoisonError::into_inner).note(site);
    }
    mutation.suppresses(site)
}

/// Whether `site` is missing in the whole process.
pub(crate) fn suppresses(site: Site) -> bool {
    mutation().is_some_and(|mutation| mutation.suppresses(site))
}

/// Read once, so that an ordinary run pays for one load and one branch.
fn mutation() -> Option<&'static Mutation> {
    static MUTATION: OnceLock<Option<Mutation>> = OnceLock::new();
    MUTATION.get_or_init(|| Mutation::new(env::var_os(SITES), env::var_os(SUPPRESS))).as_ref()
}

impl Mutation {
    /// Panics when asked for what it cannot do: a misspelt site would be one that every test passes without.
    fn new(sites: Option<OsString>, suppress: Option<OsString>) -> Option<Self> {
        let suppressed = suppress.map(|name| {
            let parsed = name.to_str().and_then(SiteName::parse);
            parsed
                .unwrap_or_else(|| panic!("{SUPPRESS} is {name:?}, not a site like flush@src/log.rs:120:14"))
        });
        let record = sites.map(|directory| Mutex::new(Record::create(&directory)));
        (suppressed.is_some() || record.is_some()).then_some(Self { suppressed, record })
    }

    fn suppresses(&self, site: Site) -> bool {
        self.suppressed.as_ref().is_some_and(|name| name.is_of(site))
    }
}

impl Record {
    /// One file a process: any number of them may run at once.
    fn create(directory: &OsStr) -> Self {
        let path = Path::new(directory).join(format!("{}.sites", process::id()));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{SITES}: cannot write {}: {error}", path.display()));
        Self { seen: BTreeSet::new(), file }
    }

    fn note(&mut self, site: Site) {
        if self.seen.insert(site) {
            let line = format!("{}@{}\n", site.kind, site.location);
            self.file.write_all(line.as_bytes()).unwrap_or_else(|error| panic!("{SITES}: {error}"));
        }
    }
}

impl SiteName {
    fn parse(name: &str) -> Option<Self> {
        let (kind, place) = name.split_once('@')?;
        let (place, column) = place.rsplit_once(':')?;
        let (file, line) = place.rsplit_once(':')?;
        if !matches!(kind, "flush" | "fence") || file.is_empty() {
            return None;
        }
        let (line, column) = (line.parse().ok()?, column.parse().ok()?);
        Some(Self { kind: kind.to_owned(), file: file.to_owned(), line, column })
    }

    fn is_of(&self, site: Site) -> bool {
        let (line, column) = (site.location.line(), site.location.column());
        (self.line, self.column) == (line, column)
            && self.file == site.location.file()
            && self.kind == site.kind.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_read_as_it_is_written() {
        let read = SiteName::parse("flush@src/a:b.rs:120:14");
        let (kind, file) = ("flush".to_owned(), "src/a:b.rs".to_owned());
        assert_eq!(read, Some(SiteName { kind, file, line: 120, column: 14 }));
        for wrong in
            ["", "flush", "flush@a.rs", "flush@a.rs:1", "flush@:1:2", "flash@a.rs:1:2", "fence@a.rs:1:x"]
        {
            assert_eq!(SiteName::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nothing_asked_is_nothing_to_do() {
        assert!(Mutation::new(None, None).is_none());
    }
}
