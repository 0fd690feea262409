//! The repository satisfies its house rules.

use std::path::Path;

use xtask::tidy::{RULES, Tree, Violation, check};

fn repository() -> Tree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Tree::read(&root).expect("the repository is readable")
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(|violation| format!("{violation}\n")).collect()
}

#[test]
fn repository_has_no_violations() {
    let tree = repository();
    assert!(tree.get("xtask/tests/tidy.rs").is_some(), "this is the repository");
    assert!(tree.get("target").is_none() && !tree.has("target"), "build output is not part of it");
    let violations = check(&tree);
    assert!(violations.is_empty(), "\n{}", list(&violations));
}

/// A rule that checks the wrong files would find no violations. Each must find one in a plausible file of this repository.
#[test]
fn every_rule_finds_a_violation_in_this_repository() {
    let examples = [
        ("unsafe", "crates/pm-core/src/new.rs", "//! New.\nunsafe {}\n"),
        (
            "durability",
            "crates/pm-core/src/new.rs",
            "//! New.\nfn a() {\n    // DURABILITY POINT\n    b();\n}\n",
        ),
        ("folders", "xtask/src/vm/zone.rs", "//! New.\n"),
        ("heads", "xtask/src/new.rs", "fn new() {}\n"),
        ("imports", "xtask/src/tidy/mod.rs", "//! New.\nfn a() {}\n"),
        ("links", "docs/new.md", "[gone](gone.md)\n"),
        ("words", "docs/new.md", "for whoever reads it\n"),
    ];
    assert_eq!(
        examples.map(|(rule, ..)| rule).as_slice(),
        RULES.iter().map(|rule| rule.name).collect::<Vec<_>>()
    );
    let repository = repository();
    for (rule, (_, path, text)) in RULES.iter().zip(examples) {
        let files = repository.files().map(|file| (file.path(), file.text()));
        let with_violation = Tree::of(&files.chain([(path, text)]).collect::<Vec<_>>());
        let found = list(&(rule.check)(&with_violation));
        assert!(found.lines().any(|line| line.starts_with(&format!("{path}:"))), "{}: {found:?}", rule.name);
        assert!(!list(&(rule.check)(&repository)).contains(&format!("{path}:")), "{}", rule.name);
    }
}
