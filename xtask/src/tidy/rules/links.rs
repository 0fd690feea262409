//! Targets of links in documents exist, headings included, and so do Rust files that documents name.

use crate::tidy::markdown::{Document, anchor};
use crate::tidy::tree::{File, Tree, Violation};

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Violation> {
    tree.with_extension("md").flat_map(|file| check_file(tree, file)).collect()
}

fn check_file(tree: &Tree, file: &File) -> Vec<Violation> {
    let document = Document::of(file.text());
    let relative =
        document.links.iter().filter(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"));
    let mut violations = Vec::new();
    let is_there = |source: &str| tree.with_extension("rs").any(|file| is_named(file.path(), source));
    // The changelog names files that no longer exist.
    for (line, source) in document.sources.iter().filter(|_| file.path() != "CHANGELOG.md") {
        if !is_there(source) {
            violations.push(Violation::new(file.path(), *line, format!("there is no file {source}")));
        }
    }
    for (line, target) in relative {
        let (path, heading) =
            target.split_once('#').map_or((target.as_str(), None), |(path, rest)| (path, Some(rest)));
        let Some(path) = resolve(file.path(), path).filter(|path| tree.has(path)) else {
            violations.push(Violation::new(file.path(), *line, format!("{target} does not exist")));
            continue;
        };
        let document = tree.get(&path).filter(|file| file.path().ends_with(".md"));
        if let (Some(heading), Some(document)) = (heading, document)
            && !Document::of(document.text()).headings.into_iter().any(|text| anchor(text) == heading)
        {
            violations.push(Violation::new(
                file.path(),
                *line,
                format!("{path} has no heading for #{heading}"),
            ));
        }
    }
    violations
}

/// Whether `name` is `path` or its end.
fn is_named(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// The path of a link's target in the document `from`; `None` outside of the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::places;

    fn places_of(text: &str) -> Vec<String> {
        let other = ("docs/b/c.md", "# One `two`\n");
        places(&check(&Tree::of(&[("docs/a.md", text), other, ("x.rs", "// # one")])))
    }

    #[test]
    fn existing_link_targets_pass() {
        let good = "[a](b/c.md) [b](b) [c](./b/) [d](../x.rs#L3) [e](b/c.md#one-two) [f](#here) [g](https://x/y)\n# Here\n";
        assert_eq!(places_of(good), [""; 0]);
    }

    #[test]
    fn files_that_a_document_names_exist() {
        assert_eq!(
            places_of("`x.rs`\n`ax.rs`\n```\n`y.rs`\n```\n`src/x.rs` `tests/*.rs`\n"),
            ["docs/a.md:2", "docs/a.md:6"]
        );
    }

    #[test]
    fn missing_link_targets_are_violations() {
        for bad in ["c.md", "../../x.rs", "/x.rs", "b/c.md#two", "#there", "b/c"] {
            assert_eq!(places_of(&format!("\n[a]({bad})\n")), ["docs/a.md:2"], "{bad}");
            assert_eq!(places_of(&format!("\n[a]: {bad}\n")), ["docs/a.md:2"], "{bad}");
        }
    }
}
