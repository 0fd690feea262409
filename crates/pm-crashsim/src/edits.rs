//! Changes to what a program asks of its region: flushes and fences taken away, and others put in.

use crate::trace::EventKind;
use crate::{Site, SourceLocation};
use core::fmt;
use std::collections::BTreeSet;

/// What is changed in the runs of an exploration, in the operation and in recoveries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    /// These do nothing.
    pub(crate) suppressed: BTreeSet<Site>,
    /// These are done though the program does not ask for them.
    pub(crate) injected: BTreeSet<Injection>,
}

/// A flush or fence that the source does not have, to see what would change if it had.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Injection {
    /// What is put in, and where.
    pub kind: InjectionKind,
    /// The place of the store or flush that it stands beside.
    pub location: SourceLocation,
}

/// What an [`Injection`] puts where. A flush is of just the range that was stored.
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

/// The kinds that are injected at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InjectedKinds(u8);

impl InjectedKinds {
    pub(crate) const fn insert(&mut self, kind: InjectionKind) {
        self.0 |= 1 << kind as u8;
    }

    /// What is done before that event.
    pub(crate) const fn before(self, event: EventKind) -> Option<EventKind> {
        if event.is_store() && self.has(InjectionKind::FenceBeforeStore) {
            return Some(EventKind::Fence);
        }
        None
    }

    /// What is done after that event: a flush, a fence, or both.
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
