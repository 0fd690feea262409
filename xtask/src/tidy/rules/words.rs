//! Words: the subject of a sentence is a component, a thread, a record or the caller, not a person.

use crate::tidy::rust::{Rust, words};
use crate::tidy::tree::{File, Tree, Violation};

/// Words for persons, which do not name the component.
const PERSONS: &str =
    "who whoever whomever somebody someone nobody anyone anybody everyone everybody he she his him";

/// At most ten exceptions, by file and a part of the line.
const ALLOWED: [(&str, &str); 0] = [];

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let texts = tree
        .files()
        .filter(|file| ["c", "md", "rs", "sh", "toml"].iter().any(|kind| has_extension(file, kind)));
    for file in texts {
        let prose = prose(file).to_ascii_lowercase();
        let mut line_start = 0;
        for (number, line) in (1..).zip(prose.split_inclusive('\n')) {
            let whole = &file.text()[line_start..line_start + line.len()];
            line_start += line.len();
            let mut persons = PERSONS.split(' ');
            let Some(person) = persons.find(|person| words(line, person).next().is_some()) else { continue };
            let is_allowed = ALLOWED.iter().any(|(path, part)| *path == file.path() && whole.contains(part));
            if !is_allowed {
                let message = format!("{person:?}: name the component, thread, record or caller");
                violations.push(Violation::new(file.path(), number, message));
            }
        }
    }
    violations
}

fn has_extension(file: &File, extension: &str) -> bool {
    file.path().rsplit_once('.').is_some_and(|(_, found)| found == extension)
}

/// The prose of a file, at its offsets: for Rust the comments and the names of functions, in which `_` separates words.
fn prose(file: &File) -> String {
    if !has_extension(file, "rs") {
        return file.text().to_owned();
    }
    let rust = Rust::new(file.text());
    let mut prose = rust.comments.clone().into_bytes();
    for at in words(&rust.code, "fn") {
        let name = rust.code[at..].split(['(', '<', '{', ';']).next().unwrap_or_default();
        prose[at..at + name.len()].copy_from_slice(name.replace('_', " ").as_bytes());
    }
    String::from_utf8_lossy(&prose).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::places;

    #[test]
    fn persons_in_comments_documents_and_names_are_violations() {
        let good =
            "//! The owner; the shell.\nlet who = \"nobody\"; // the caller waits\nfn whole_heap() {}\n";
        let bad =
            "//! Whoever has it.\n/// It is nobody's.\nfn somebody_waits() { he() } // who\nstruct Who;\n";
        let tree = Tree::of(&[("a.rs", good), ("b.rs", bad), ("c.md", "the\nman who\n"), ("d.png", "who")]);
        assert_eq!(places(&check(&tree)), ["b.rs:1", "b.rs:2", "b.rs:3", "c.md:2"]);
    }

    #[test]
    fn exceptions_are_at_most_ten() {
        assert!(ALLOWED.len() <= 10);
    }
}
