//! Whole processes without one flush or fence, by environment variables: what a tool for mutation testing needs.

use crate::{Site, SiteKind, SourceLocation};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::panic::Location;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, process};

/// A directory, where each process lists the sites that it exercised.
const SITES: &str = "PM_CRASHSIM_SITES";
/// The site that no region of the process has.
const SUPPRESS: &str = "PM_CRASHSIM_SUPPRESS";

/// What the environment asked for when the process made its first region.
struct Mutation {
    suppressed: Option<Site>,
    record: Option<Mutex<Record>>,
    /// Whether the program came by the site that is suppressed.
    is_met: AtomicBool,
}

/// The file of this process.
struct Record {
    seen: BTreeSet<Site>,
    file: File,
}

/// The site that the whole process does without, if there is one.
pub(crate) fn suppressed() -> Option<&'static Site> {
    mutation().suppressed.as_ref()
}

/// To be told what a region exercises, once for each site. Lists it, where that is asked for.
pub(crate) fn exercised(kind: SiteKind, location: &'static Location<'static>) {
    let Mutation { suppressed, record, is_met } = mutation();
    if let Some(site) = suppressed
        && !is_met.load(Ordering::Relaxed)
        && *site == (Site { kind, location: SourceLocation::from(location) })
        && !is_met.swap(true, Ordering::Relaxed)
    {
        // Not by a macro, which would be captured in a test that passes.
        let told = writeln!(
            io::stderr(),
            "pm-crashsim: {SUPPRESS}={}@{} does nothing here",
            site.kind,
            site.location
        );
        // Nobody is there to hear of it, and the site does nothing all the same.
        drop(told);
    }
    if let Some(record) = record {
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        record.note(Site { kind, location: SourceLocation::from(location) });
    }
}

/// Read once.
fn mutation() -> &'static Mutation {
    static MUTATION: OnceLock<Mutation> = OnceLock::new();
    MUTATION.get_or_init(|| Mutation::new(env::var_os(SITES), env::var_os(SUPPRESS)))
}

impl Mutation {
    /// Panics when asked for what it cannot do: a misspelt site would be one that every test passes without.
    fn new(sites: Option<OsString>, suppress: Option<OsString>) -> Self {
        let suppressed = suppress.map(|name| {
            let site = name.to_str().and_then(parse);
            site.unwrap_or_else(|| panic!("{SUPPRESS} is {name:?}, not a site like flush@src/log.rs:120:14"))
        });
        let record = sites.map(|directory| Mutex::new(Record::create(&directory)));
        Self { suppressed, record, is_met: AtomicBool::new(false) }
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
        if !self.seen.contains(&site) {
            self.file.write_all(written(&site).as_bytes()).unwrap_or_else(|error| panic!("{SITES}: {error}"));
            self.seen.insert(site);
        }
    }
}

/// A line with a site: `flush@src/log.rs:120:14`.
fn written(site: &Site) -> String {
    format!("{}@{}\n", site.kind, site.location)
}

/// What was written so, without the line's end.
fn parse(name: &str) -> Option<Site> {
    let (kind, place) = name.split_once('@')?;
    let (place, column) = place.rsplit_once(':')?;
    let (file, line) = place.rsplit_once(':')?;
    let kind = SiteKind::ALL.into_iter().find(|known| known.to_string() == kind)?;
    let (line, column) = (line.parse().ok()?, column.parse().ok()?);
    (!file.is_empty()).then(|| Site { kind, location: SourceLocation::new(file, line, column) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_read_as_it_is_written() {
        for kind in SiteKind::ALL {
            for location in
                [SourceLocation::from(Location::caller()), SourceLocation::new("src/a:b.rs", 120, 14)]
            {
                let site = Site { kind, location };
                assert_eq!(parse(written(&site).trim_end()), Some(site));
            }
        }
        for wrong in
            ["", "flush", "flush@a.rs", "flush@a.rs:1", "flush@:1:2", "flash@a.rs:1:2", "fence@a.rs:1:x"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nothing_asked_is_nothing_to_do() {
        let nothing = Mutation::new(None, None);
        assert!(nothing.suppressed.is_none() && nothing.record.is_none());
    }
}
