//! The report of a campaign, as text and JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::site::Site;

/// The result of removing a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// This test failed.
    Killed(String),
    /// This test exceeded its time limit, which counts as a failure.
    TimedOut(String),
    /// Every test passed.
    Survived,
    /// Every test passed, as a mark with this reason expects.
    SetAside(String),
    /// This test failed, contrary to a mark.
    MarkedButMissed(String),
}

/// A site and its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The crate.
    pub package: String,
    /// The site.
    pub site: Site,
    /// The verdict.
    pub verdict: Verdict,
}

/// An invalid mark.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WrongMark {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The error.
    pub message: String,
}

/// The result of a campaign. Displayed as a list of errors, and a line for each crate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Every site, in order.
    pub tried: Vec<Tried>,
    /// Invalid marks.
    pub wrong_marks: Vec<WrongMark>,
}

impl Verdict {
    const fn name(&self) -> &'static str {
        match self {
            Self::Killed(_) => "killed",
            Self::TimedOut(_) => "timed out",
            Self::Survived => "survived",
            Self::SetAside(_) => "set aside",
            Self::MarkedButMissed(_) => "marked but missed",
        }
    }
}

impl Report {
    /// Whether tests detect the removal of each site that is not rightly set aside, and all marks are valid.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let is_bad = |tried: &Tried| matches!(tried.verdict, Verdict::Survived | Verdict::MarkedButMissed(_));
        self.wrong_marks.is_empty() && !self.tried.iter().any(is_bad)
    }

    /// The report as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let tried = self.tried.iter().map(|tried| {
            let mut entry = json!({
                "package": tried.package, "site": tried.site.to_string(), "verdict": tried.verdict.name(),
            });
            match &tried.verdict {
                Verdict::Killed(test) | Verdict::TimedOut(test) | Verdict::MarkedButMissed(test) => {
                    entry["test"] = json!(test);
                }
                Verdict::SetAside(reason) => entry["reason"] = json!(reason),
                Verdict::Survived => {}
            }
            entry
        });
        let marks = self.wrong_marks.iter();
        let marks = marks.map(|mark| json!({"file": mark.file, "line": mark.line, "message": mark.message}));
        let counts = self.counts(|_| true);
        json!({
            "sites": tried.collect::<Vec<_>>(), "wrong_marks": marks.collect::<Vec<_>>(), "good": self.is_good(),
            "killed": counts.killed(), "timed_out": counts.of("timed out"),
            "total": counts.total(), "set_aside": counts.of("set aside"),
        })
    }

    /// The number of sites with each verdict, by [`Verdict::name`].
    fn counts(&self, wanted: impl Fn(&Tried) -> bool) -> Counts {
        let mut counts = BTreeMap::new();
        for tried in self.tried.iter().filter(|tried| wanted(tried)) {
            *counts.entry(tried.verdict.name()).or_default() += 1;
        }
        Counts(counts)
    }
}

struct Counts(BTreeMap<&'static str, usize>);

impl Counts {
    fn of(&self, verdict: &str) -> usize {
        self.0.get(verdict).copied().unwrap_or_default()
    }

    fn killed(&self) -> usize {
        self.of("killed") + self.of("timed out")
    }

    /// All sites except those that are rightly set aside.
    fn total(&self) -> usize {
        self.0.values().sum::<usize>() - self.of("set aside")
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} killed", self.killed(), self.total())?;
        for (verdict, what) in [
            ("timed out", "of them by a timeout"),
            ("survived", "survived"),
            ("marked but missed", "wrongly set aside"),
            ("set aside", "set aside, with reasons"),
        ] {
            match self.of(verdict) {
                0 => {}
                count => write!(f, ", {count} {what}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Tried { site, verdict, .. } in &self.tried {
            let Site { file, line, column, kind } = site;
            let (place, kind) = (format!("{file}:{line}:{column}"), kind.name());
            match verdict {
                Verdict::Killed(_) | Verdict::SetAside(_) => {}
                Verdict::Survived => writeln!(f, "{place}: no test fails without this {kind}")?,
                Verdict::TimedOut(by) => writeln!(f, "{place}: without this {kind}, {by} does not end")?,
                Verdict::MarkedButMissed(by) => {
                    writeln!(f, "{place}: this {kind} is set aside, but {by} fails without it")?;
                }
            }
        }
        for WrongMark { file, line, message } in &self.wrong_marks {
            writeln!(f, "{file}:{line}: {message}")?;
        }
        let mut packages: Vec<&str> = self.tried.iter().map(|tried| tried.package.as_str()).collect();
        packages.dedup();
        for package in packages {
            writeln!(f, "{package}: {}", self.counts(|tried| tried.package == package))?;
        }
        write!(f, "teeth: {}", self.counts(|_| true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdicts: Vec<Verdict>) -> Report {
        let tried = verdicts.into_iter().enumerate().map(|(at, verdict)| {
            let site = format!("flush@a/src/b.rs:{}:5", at + 1).parse().expect("a site");
            Tried { package: "a".to_owned(), site, verdict }
        });
        Report { tried: tried.collect(), wrong_marks: Vec::new() }
    }

    #[test]
    fn report_lists_survivors_and_timeouts() {
        let killed = || Verdict::Killed("t".to_owned());
        let report = report(vec![
            killed(),
            Verdict::Survived,
            Verdict::SetAside("r".to_owned()),
            Verdict::MarkedButMissed("u".to_owned()),
            Verdict::TimedOut("p".to_owned()),
        ]);
        assert!(!report.is_good());
        assert_eq!(
            report.to_string(),
            "a/src/b.rs:2:5: no test fails without this flush\n\
             a/src/b.rs:4:5: this flush is set aside, but u fails without it\n\
             a/src/b.rs:5:5: without this flush, p does not end\n\
             a: 2 of 4 killed, 1 of them by a timeout, 1 survived, 1 wrongly set aside, 1 set aside, with reasons\n\
             teeth: 2 of 4 killed, 1 of them by a timeout, 1 survived, 1 wrongly set aside, 1 set aside, with reasons"
        );
        let json = report.to_json();
        assert_eq!((&json["killed"], &json["total"], &json["good"]), (&json!(2), &json!(4), &json!(false)));
        assert_eq!(json["sites"][2]["reason"], "r");
    }

    #[test]
    fn report_fails_on_wrong_marks() {
        let mut report = report(vec![Verdict::Killed("t".to_owned()), Verdict::SetAside("r".to_owned())]);
        assert!(report.is_good());
        assert!(report.to_string().ends_with("teeth: 1 of 1 killed, 1 set aside, with reasons"));
        report.wrong_marks.push(WrongMark { file: "a.rs".to_owned(), line: 3, message: "no".to_owned() });
        assert!(!report.is_good() && report.to_string().starts_with("a.rs:3: no\n"));
    }
}
