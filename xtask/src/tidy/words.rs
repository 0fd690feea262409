//! The project speaks of itself only: not of the place where it is made.

use super::tree::{Tree, Violation};

/// What does not belong into the repository. A text counts where it is no part of a longer word or path.
const FOREIGN: &[(&str, &str)] = &[
    ("/work/", "a path of one machine"),
    ("/tmp/w/", "a path of one machine"),
    ("../shared/", "a path outside of the repository"),
    ("issue #", "say what it is, not its number"),
    ("issues #", "say what it is, not its number"),
    ("this session", "who worked on it, and when, is for the history"),
    ("previous session", "who worked on it, and when, is for the history"),
    ("the founder", "who worked on it, and when, is for the history"),
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    // This file has to name them.
    let files = tree.files().filter(|file| !file!().ends_with(file.path()));
    let mut violations = Vec::new();
    for file in files {
        let text = file.text().to_ascii_lowercase();
        for (foreign, why) in FOREIGN {
            let found = text.match_indices(foreign).filter(|(at, _)| starts_word(&text, *at));
            violations.extend(found.map(|(at, _)| Violation::at(file, at, format!("{foreign:?}: {why}"))));
        }
    }
    violations
}

/// Whether a word or a path begins at `at`.
fn starts_word(text: &str, at: usize) -> bool {
    let before = text[..at].chars().next_back();
    !before.is_some_and(|character| character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | '/'))
}

#[cfg(test)]
mod tests {
    use super::super::tree::places;
    use super::*;

    #[test]
    fn only_foreign_words_are_violations() {
        let good = "docs/work/a, ./tmp/w/, a session of NBD, tissue #1, shared/exclusive, working\n";
        let bad = "\nsee /work/a\nas in Issue #3\n(../shared/a.md)\n";
        let tree = Tree::of(&[("good.md", good), ("bad.rs", bad)]);
        assert_eq!(places(&check(&tree)), ["bad.rs:2", "bad.rs:4", "bad.rs:3"]);
    }

    #[test]
    fn the_list_itself_is_exempt() {
        assert_eq!(places(&check(&Tree::of(&[("xtask/src/tidy/words.rs", "/work/")]))), [""; 0]);
    }
}
