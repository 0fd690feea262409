//! Places in the source that flush or fence.

use crate::SourceLocation;
use core::fmt;

/// What a [`Site`] does.
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

    /// Its place in [`ALL`](Self::ALL).
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Flush => 0,
            Self::Fence => 1,
        }
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

/// A place in the source that flushed or fenced: what a test suppresses to show that the place is needed.
///
/// The location is that of the nearest caller that is not `#[track_caller]`, so one helper that everybody calls is
/// one site, and one `persist` is two: a flush and a fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// What it does.
    pub kind: SiteKind,
    /// Where it stands.
    pub location: SourceLocation,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.kind, self.location)
    }
}
