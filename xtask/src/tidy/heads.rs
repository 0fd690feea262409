//! Files: a head that says what they are for, one purpose each, and no loose ends.

use super::rule::Violation;
use super::rust::{Rust, words};
use super::tree::{File, Tree};

/// More lines than this are more than one purpose.
const MAX_LINES: usize = 700;

/// Longer files, and why each is better whole.
const LONGER: &[(&str, &str)] = &[];

/// Words in comments that put something off.
const PUT_OFF: [&str; 4] = ["TODO", "FIXME", "HACK", "XXX"];

/// Macros that a finished program has none of.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<_> = tree.with_extension("rs").flat_map(check_file).collect();
    violations.extend(too_long(tree, LONGER));
    violations
}

fn check_file(file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    // Files of misuse are not crates' own, and the compiler's words about them are compared: a plain comment.
    let head = if file.path().contains("/tests/misuse/") { "//" } else { "//!" };
    if !file.text().starts_with(&format!("{head} ")) {
        violations.push(Violation::new(
            file.path(),
            1,
            format!("starts with {head} and what the file is for"),
        ));
    }
    let rust = Rust::new(file.text());
    for word in PUT_OFF {
        let message = format!("{word}: do it, or say what is missing and why");
        violations.extend(words(&rust.comments, word).map(|at| Violation::at(file, at, message.as_str())));
    }
    for name in UNFINISHED {
        let message = format!("{name}! is not a finished program");
        let called = words(&rust.code, name).filter(|at| rust.code[at + name.len()..].starts_with('!'));
        violations.extend(called.map(|at| Violation::at(file, at, message.as_str())));
    }
    let ignored = rust.code.match_indices("#[ignore");
    violations
        .extend(ignored.map(|(at, _)| Violation::at(file, at, "a test that does not run proves nothing")));
    violations
}

/// Files of `src/` that are too long, and entries of the list that nothing needs.
fn too_long(tree: &Tree, longer: &[(&str, &str)]) -> Vec<Violation> {
    let lines = |file: &File| file.text().lines().count();
    let is_longer = |file: &&File| file.path().contains("/src/") && lines(file) > MAX_LINES;
    let long: Vec<&File> = tree.with_extension("rs").filter(is_longer).collect();
    let unlisted = long.iter().filter(|file| !longer.iter().any(|(path, _)| *path == file.path()));
    let unlisted = unlisted.map(|file| {
        let message = format!("{} lines, more than {MAX_LINES}: split it by purpose", lines(file));
        Violation::new(file.path(), MAX_LINES + 1, message)
    });
    let unused = longer.iter().filter(|(path, _)| !long.iter().any(|file| file.path() == *path));
    let unused = unused.map(|(path, _)| {
        Violation::new(path, 1, format!("is not that long any more: take it off the list in {}", file!()))
    });
    unlisted.chain(unused).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rule::places;
    use super::*;

    fn places_in(path: &str, text: &str) -> Vec<String> {
        places(&check(&Tree::of(&[(path, text)])))
    }

    #[test]
    fn a_file_starts_with_what_it_is_for() {
        assert_eq!(places_in("a.rs", "//! A.\n"), [""; 0]);
        assert_eq!(places_in("a/tests/misuse/b.rs", "// B.\n"), [""; 0]);
        for head in ["", "//!\n", "// A.\n", "#![forbid(unsafe_code)]\n//! A.\n"] {
            assert_eq!(places_in("a.rs", head), ["a.rs:1"], "{head:?}");
        }
        assert_eq!(places_in("a/tests/misuse/b.rs", "fn b() {}\n"), ["a/tests/misuse/b.rs:1"]);
    }

    #[test]
    fn loose_ends_are_violations() {
        for line in
            ["// TODO: later", "/* FIXME */", "/// A HACK.", "todo!()", "dbg!(a)", "#[ignore = \"slow\"]"]
        {
            assert_eq!(places_in("a.rs", &format!("//! A.\n\n{line}\n")), ["a.rs:3"], "{line}");
        }
        for line in ["let a = \"TODO\";", "// HACKER", "let todo = !a;", "// dbg!(a)", "\"#[ignore]\""] {
            assert_eq!(places_in("a.rs", &format!("//! A.\n\n{line}\n")), [""; 0], "{line}");
        }
    }

    #[test]
    fn a_long_file_is_split_or_listed() {
        let text = "//! A.\n".to_owned() + &"\n".repeat(MAX_LINES);
        let tree = Tree::of(&[("a/src/b.rs", &text), ("a/tests/b.rs", &text), ("a/src/c.rs", "//! C.\n")]);
        assert_eq!(places(&too_long(&tree, &[])), [format!("a/src/b.rs:{}", MAX_LINES + 1)]);
        assert_eq!(places(&too_long(&tree, &[("a/src/b.rs", "why")])), [""; 0]);
        assert_eq!(
            places(&too_long(&tree, &[("a/src/b.rs", "why"), ("a/src/c.rs", "why")])),
            ["a/src/c.rs:1"]
        );
    }
}
