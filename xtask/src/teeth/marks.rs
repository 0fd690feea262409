//! Marks: comments that set a flush or fence aside.
//!
//! `// teeth: reason`, after the code or on its own line above, sets aside all flushes and fences of that line; `// teeth(flush): reason` only
//! flushes, and `// teeth(fence): reason` only fences.

use super::site::{Kind, Site};

/// A mark.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The number of its line of code, from 1.
    pub line: usize,
    /// The kind that it sets aside; `None` for both.
    pub kind: Option<Kind>,
    /// The reason.
    pub reason: String,
}

impl Mark {
    /// Whether it sets aside `site`, which is in the same file.
    #[must_use]
    pub fn is_about(&self, site: &Site) -> bool {
        self.line == site.line && self.kind.is_none_or(|kind| kind == site.kind)
    }
}

/// Every mark in the text of a file.
///
/// # Errors
/// The line and the error of the first mark without a reason or with an unknown kind.
pub fn marks(text: &str) -> Result<Vec<Mark>, (usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut marks = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((before, comment)) = line.split_once("// teeth") else { continue };
        // In a string or a comment about marks.
        if before.contains("//") || before.ends_with(['"', '`', '/']) {
            continue;
        }
        let (kind, reason) = parse(comment).map_err(|wrong| (at + 1, wrong))?;
        let is_above = before.trim().is_empty();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let about = if is_above {
            let below = lines[at..].iter().position(is_code);
            below.map(|lines| at + lines).ok_or_else(|| (at + 1, "no code follows".to_owned()))?
        } else {
            at
        };
        marks.push(Mark { line: about + 1, kind, reason });
    }
    Ok(marks)
}

/// Parses the text after `// teeth`.
fn parse(comment: &str) -> Result<(Option<Kind>, String), String> {
    let (which, reason) = comment.split_once(':').ok_or("a mark is // teeth: with a reason")?;
    let kind = match which {
        "" => None,
        _ => {
            let name = which.strip_prefix('(').and_then(|which| which.strip_suffix(')'));
            let kind =
                name.and_then(Kind::named).ok_or(format!("teeth{which} is neither flush nor fence"))?;
            Some(kind)
        }
    };
    match reason.trim() {
        "" => Err("a mark needs a reason".to_owned()),
        reason => Ok((kind, reason.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_applies_to_its_line_or_the_next() {
        let text = "
a.persist(0, 8)?; // teeth: both
// teeth(fence): the second alone
// and a comment between

b.persist(0, 8)?;
";
        let mark = |line, kind, reason: &str| Mark { line, kind, reason: reason.to_owned() };
        let expected = vec![mark(2, None, "both"), mark(6, Some(Kind::Fence), "the second alone")];
        assert_eq!(marks(text), Ok(expected.clone()));
        let site = |name: &str| name.parse::<Site>().expect("a site");
        assert!(expected[0].is_about(&site("flush@a.rs:2:3")));
        assert!(!expected[0].is_about(&site("flush@a.rs:3:3")));
        assert!(expected[1].is_about(&site("fence@a.rs:6:3")));
        assert!(!expected[1].is_about(&site("flush@a.rs:6:3")));
    }

    #[test]
    fn text_about_marks_is_not_a_mark() {
        for text in
            ["//! `// teeth: reason`", "/// // teeth: a", "let a = \"// teeth: a\";", "// has teeth: sharp"]
        {
            assert_eq!(marks(text), Ok(vec![]), "{text}");
        }
    }

    #[test]
    fn mark_needs_a_reason() {
        for comment in
            ["// teeth", "// teeth:", "// teeth: ", "// teeth(sync): a", "// teeth flush: a", "// teeth: a"]
        {
            let text = format!("\n{comment}\n");
            assert_eq!(marks(&text).map_err(|(line, _)| line), Err(2), "{comment}");
        }
    }
}
