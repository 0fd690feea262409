//! Places in the source that flush or fence: named, suppressed, injected, and listed for mutation testing.

use crate::SourceLocation;
use crate::trace::EventKind;
use core::fmt;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::panic::Location;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, process};

/// The effect of a [`Site`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SiteKind {
    /// Writes lines back: `flush`, or the flush of `persist`.
    Flush,
    /// Orders and waits: `fence`, or the fence of `persist`.
    Fence,
}

impl SiteKind {
    pub(crate) const ALL: [Self; 2] = [Self::Flush, Self::Fence];

    /// Its index in [`ALL`](Self::ALL).
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for SiteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flush => "flush",
            Self::Fence => "fence",
        })
    }
}

/// A place in the source that flushed or fenced. Suppressing it shows whether a test needs it.
///
/// The location is that of the nearest caller that is not `#[track_caller]`, so one helper with many callers is
/// one site, and one `persist` is two: a flush and a fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Its effect.
    pub kind: SiteKind,
    /// Its place.
    pub location: SourceLocation,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.kind, self.location)
    }
}

/// The edits of all runs of an exploration, of the operation and of recoveries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    /// These have no effect.
    pub(crate) suppressed: BTreeSet<Site>,
    /// These are added.
    pub(crate) injected: BTreeSet<Injection>,
}

/// A flush or fence that the source lacks, added to see its effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Injection {
    /// The added events, and on which side.
    pub kind: InjectionKind,
    /// The place of the store or flush before or after which they are added.
    pub location: SourceLocation,
}

/// The effect of an [`Injection`]. A flush covers just the stored range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum InjectionKind {
    /// A fence after each flush at that place.
    FenceAfterFlush,
    /// A fence after each store at that place.
    FenceAfterStore,
    /// A fence before each store at that place.
    FenceBeforeStore,
    /// A flush after each store at that place.
    FlushAfterStore,
    /// A flush and then a fence after each store at that place.
    PersistAfterStore,
}

/// The kinds injected at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InjectedKinds(u8);

impl InjectedKinds {
    pub(crate) const fn insert(&mut self, kind: InjectionKind) {
        self.0 |= 1 << kind as u8;
    }

    /// The event added before that one.
    pub(crate) const fn before(self, event: EventKind) -> Option<EventKind> {
        if event.is_store() && self.has(InjectionKind::FenceBeforeStore) {
            return Some(EventKind::Fence);
        }
        None
    }

    /// The events added after that one: a flush, a fence, or both.
    pub(crate) const fn after(self, event: EventKind) -> [Option<EventKind>; 2] {
        match event.extent() {
            Some((offset, len_bytes)) if event.is_store() => {
                let persists = self.has(InjectionKind::PersistAfterStore);
                let flushes = persists || self.has(InjectionKind::FlushAfterStore);
                let fences = persists || self.has(InjectionKind::FenceAfterStore);
                let flush = if flushes { Some(EventKind::Flush { offset, len_bytes }) } else { None };
                [flush, if fences { Some(EventKind::Fence) } else { None }]
            }
            Some(_) if self.has(InjectionKind::FenceAfterFlush) && event.is_flush() => {
                [None, Some(EventKind::Fence)]
            }
            _ => [None, None],
        }
    }

    const fn has(self, kind: InjectionKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            InjectionKind::FenceAfterFlush => "a fence after the flush",
            InjectionKind::FenceAfterStore => "a fence after the store",
            InjectionKind::FenceBeforeStore => "a fence before the store",
            InjectionKind::FlushAfterStore => "a flush after the store",
            InjectionKind::PersistAfterStore => "a flush and a fence after the store",
        };
        write!(f, "{what} at {}", self.location)
    }
}

/// The directory in which each process lists the sites that it exercised.
const SITES: &str = "PM_CRASHSIM_SITES";
/// The site that is suppressed in all regions of the process.
const SUPPRESS: &str = "PM_CRASHSIM_SUPPRESS";

/// The mutation of this process, from its environment when it makes its first region.
struct Mutation {
    suppressed: Option<Site>,
    record: Option<Mutex<Record>>,
    /// Whether the program reached the suppressed site.
    is_met: AtomicBool,
}

/// The file of this process.
struct Record {
    seen: BTreeSet<Site>,
    file: File,
}

/// The site that is suppressed for the whole process.
pub(crate) fn suppressed() -> Option<&'static Site> {
    mutation().suppressed.as_ref()
}

/// Called by a region once for each site that it exercises. Lists the site, if that is wanted.
pub(crate) fn exercised(kind: SiteKind, location: &'static Location<'static>) {
    let Mutation { suppressed, record, is_met } = mutation();
    if let Some(site) = suppressed
        && !is_met.load(Ordering::Relaxed)
        && *site == (Site { kind, location: SourceLocation::from(location) })
        && !is_met.swap(true, Ordering::Relaxed)
    {
        // Not by a macro, whose output the test harness captures in a test that passes.
        let printed = writeln!(
            io::stderr(),
            "pm-crashsim: {SUPPRESS}={}@{} does nothing here",
            site.kind,
            site.location
        );
        // Without standard error the message is lost, and the site is suppressed anyway.
        drop(printed);
    }
    if let Some(record) = record {
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        record.note(Site { kind, location: SourceLocation::from(location) });
    }
}

fn mutation() -> &'static Mutation {
    static MUTATION: OnceLock<Mutation> = OnceLock::new();
    MUTATION.get_or_init(|| Mutation::new(env::var_os(SITES), env::var_os(SUPPRESS)))
}

impl Mutation {
    /// Panics on invalid input: every test would pass without a misspelt site.
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
    /// One file for each process, because several may run at once.
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

/// Reads the output of [`written`], without the line's end.
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
    fn sites_roundtrip() {
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
    fn empty_environment_is_no_mutation() {
        let nothing = Mutation::new(None, None);
        assert!(nothing.suppressed.is_none() && nothing.record.is_none());
    }
}
