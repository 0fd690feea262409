//! Folders: storeys of at most a dozen files, so that a reader sees at once what a folder holds.

use std::collections::BTreeMap;

use crate::tidy::tree::{Tree, Violation};

/// The maximum number of source files of a folder, besides `mod.rs`, `lib.rs` and `main.rs`.
const MAX_FILES: usize = 12;

/// Folders with more files, the number that each may have, and the reason.
const LARGER: &[(&str, usize, &str)] = &[
    (
        "crates/pm-alloc/src/space",
        18,
        "the parts of an arena, each a data structure that the arena alone uses",
    ),
    ("crates/pm-core/src", 13, "single types of the seam, which no module but pmem joins"),
    ("crates/pm-core/src/region", 15, "one file for each way of mapping a file or a device"),
    ("crates/pmbd-ublk/src/cli", 13, "one file for each subcommand"),
    ("crates/pmbd-ublk/src/ublk", 13, "one file for each command of the driver"),
    ("xtask/src/vm", 13, "one file for each part of a guest"),
];

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Violation> {
    against(tree, LARGER)
}

fn against(tree: &Tree, larger: &[(&str, usize, &str)]) -> Vec<Violation> {
    let mut folders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in tree.with_extension("rs") {
        let Some((folder, name)) = file.path().rsplit_once('/') else { continue };
        let is_source = format!("{folder}/").contains("/src/") && !folder.ends_with("/tests");
        if is_source && !["mod.rs", "lib.rs", "main.rs"].contains(&name) {
            folders.entry(folder).or_default().push(file.path());
        }
    }
    let mut violations = Vec::new();
    for (folder, files) in &folders {
        let max = larger.iter().find(|(of, ..)| of == folder).map_or(MAX_FILES, |(_, max, _)| *max);
        let (count, last) = (files.len(), files.last().unwrap_or(folder));
        if count > max {
            let message = format!(
                "{folder} has {count} files, more than {max}: group them by what they know of each other"
            );
            violations.push(Violation::new(last, 1, message));
        }
    }
    for (folder, max, _) in larger {
        let count = folders.get(folder).map_or(0, Vec::len);
        if count < *max {
            let message = format!("{folder} has {count} files: the exception of {max} is not needed");
            violations.push(Violation::new("xtask/src/tidy/rules/folders.rs", 1, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::places;

    fn places_of(folder: &str, count: usize, larger: &[(&str, usize, &str)]) -> Vec<String> {
        let files: Vec<String> = (0..count).map(|number| format!("{folder}/f{number}.rs")).collect();
        let mut files: Vec<(&str, &str)> = files.iter().map(|path| (path.as_str(), "")).collect();
        let root = format!("{folder}/mod.rs");
        files.push((&root, ""));
        places(&against(&Tree::of(&files), larger))
    }

    #[test]
    fn folder_has_at_most_a_dozen_files() {
        assert_eq!(places_of("crates/a/src/b", MAX_FILES, &[]), [""; 0]);
        assert_eq!(places_of("crates/a/src/b", MAX_FILES + 1, &[]), ["crates/a/src/b/f9.rs:1"]);
        assert_eq!(places_of("crates/a/src", MAX_FILES + 1, &[]), ["crates/a/src/f9.rs:1"]);
        for folder in ["crates/a/tests/library", "crates/a/src/b/tests"] {
            assert_eq!(places_of(folder, MAX_FILES + 1, &[]), [""; 0], "{folder}");
        }
    }

    #[test]
    fn exception_is_exact() {
        let larger = [("a/src/b", 20, "reason")];
        assert_eq!(places_of("a/src/b", 20, &larger), [""; 0]);
        assert_eq!(places_of("a/src/b", 21, &larger), ["a/src/b/f9.rs:1"]);
        assert_eq!(places_of("a/src/b", 19, &larger), ["xtask/src/tidy/rules/folders.rs:1"]);
    }
}
