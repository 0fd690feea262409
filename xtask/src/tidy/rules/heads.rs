//! Files: a head that states the purpose, a limited length, no unfinished code.

use crate::tidy::rust::{Rust, words};
use crate::tidy::tree::{File, Tree, Violation};

/// The maximum number of lines of a file in `src/`.
const MAX_LINES: usize = 700;

/// Words in comments that defer work.
const DEFERRED: [&str; 4] = ["TODO", "FIXME", "HACK", "XXX"];

/// Macros of unfinished code.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Violation> {
    tree.with_extension("rs").flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    // Misuse tests have a plain comment, because the compiler's messages about them are compared.
    let head = if file.path().contains("/tests/misuse/") { "//" } else { "//!" };
    if !file.text().starts_with(&format!("{head} ")) {
        violations.push(Violation::new(
            file.path(),
            1,
            format!("the first line must be {head} and the purpose of the file"),
        ));
    }
    let rust = Rust::new(file.text());
    for word in DEFERRED {
        let message = format!("{word}: complete it, or document the limitation");
        violations.extend(words(&rust.comments, word).map(|at| Violation::at(file, at, message.as_str())));
    }
    for name in UNFINISHED {
        let message = format!("{name}! is unfinished code");
        let called = words(&rust.code, name).filter(|at| rust.code[at + name.len()..].starts_with('!'));
        violations.extend(called.map(|at| Violation::at(file, at, message.as_str())));
    }
    let ignored = rust.code.match_indices("#[ignore");
    violations.extend(ignored.map(|(at, _)| Violation::at(file, at, "no test is ignored")));
    let lines = file.text().lines().count();
    if file.path().contains("/src/") && lines > MAX_LINES {
        let message = format!("{lines} lines, more than {MAX_LINES}: split it by purpose");
        violations.push(Violation::new(file.path(), MAX_LINES + 1, message));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::places;

    fn places_in(path: &str, text: &str) -> Vec<String> {
        places(&check(&Tree::of(&[(path, text)])))
    }

    #[test]
    fn file_starts_with_its_purpose() {
        assert_eq!(places_in("a.rs", "//! A.\n"), [""; 0]);
        assert_eq!(places_in("a/tests/misuse/b.rs", "// B.\n"), [""; 0]);
        for head in ["", "//!\n", "// A.\n", "#![forbid(unsafe_code)]\n//! A.\n"] {
            assert_eq!(places_in("a.rs", head), ["a.rs:1"], "{head:?}");
        }
        assert_eq!(places_in("a/tests/misuse/b.rs", "fn b() {}\n"), ["a/tests/misuse/b.rs:1"]);
    }

    #[test]
    fn deferred_and_unfinished_code_is_a_violation() {
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
    fn long_source_file_is_a_violation() {
        let text = "//! A.\n".to_owned() + &"\n".repeat(MAX_LINES);
        assert_eq!(places_in("a/src/b.rs", &text), [format!("a/src/b.rs:{}", MAX_LINES + 1)]);
        assert_eq!(places_in("a/tests/b.rs", &text), [""; 0]);
        assert_eq!(places_in("a/src/b.rs", text.trim_end()), [""; 0]);
    }
}
