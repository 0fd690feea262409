//! Sites: places in the source that flush or fence, as named by `pm-crashsim`.

use std::fmt;
use std::str::FromStr;

use miette::{Report, miette};

/// The kind of a [`Site`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A flush.
    Flush,
    /// A fence.
    Fence,
}

/// A place that flushes or fences: `flush@crates/a/src/log.rs:120:14`. Sorted by place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The path of the source file, relative to the workspace's root or absolute, as passed to the compiler.
    pub file: String,
    /// The line number, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The kind. A `persist` is two sites at one place.
    pub kind: Kind,
}

impl Kind {
    /// The name, `flush` or `fence`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Fence => "fence",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Flush, Self::Fence].into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}:{}", self.kind.name(), self.file, self.line, self.column)
    }
}

impl FromStr for Site {
    type Err = Report;

    fn from_str(name: &str) -> Result<Self, Report> {
        let parse = || {
            let (kind, place) = name.split_once('@')?;
            let (place, column) = place.rsplit_once(':')?;
            let (file, line) = place.rsplit_once(':')?;
            let (line, column) = (line.parse().ok()?, column.parse().ok()?);
            Some(Self { file: file.to_owned(), line, column, kind: Kind::named(kind)? })
        };
        parse().ok_or_else(|| miette!("{name:?} is not a site of pm-crashsim"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_names_round_trip() {
        for name in ["flush@crates/a/src/log.rs:120:14", "fence@/a b/c:d.rs:1:2"] {
            assert_eq!(name.parse::<Site>().expect("a site").to_string(), name);
        }
        for wrong in ["", "flush", "flash@a.rs:1:2", "flush@a.rs:1", "flush@a.rs:one:2"] {
            assert!(wrong.parse::<Site>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sites_are_sorted_as_they_stand_in_the_file() {
        let sites = ["flush@a.rs:9:1", "fence@a.rs:9:1", "flush@a.rs:10:1", "flush@b.rs:1:1"];
        let mut sorted = sites.map(|site| site.parse::<Site>().expect("a site"));
        sorted.reverse();
        sorted.sort();
        assert_eq!(sorted.map(|site| site.to_string()), sites);
    }
}
