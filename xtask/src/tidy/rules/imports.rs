//! Modules: no import cycles, no imports of siblings by `format` and `error`, only declarations and re-exports in `mod.rs`.

use crate::tidy::modules::{Modules, Parts, items_of};
use crate::tidy::tree::{File, Tree, Violation};
use syn::Item;
use syn::spanned::Spanned as _;

/// Modules that their siblings import, and that import no siblings.
const LEAVES: [&str; 2] = ["format", "error"];

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<_> = Modules::of_all(tree).iter().flat_map(check_crate).collect();
    let declaring = |path: &str| path.contains("/src/") && path.ends_with("/mod.rs");
    violations.extend(tree.files().filter(|file| declaring(file.path())).flat_map(check_declaring));
    violations
}

fn check_crate(modules: &Modules<'_>) -> Vec<Violation> {
    let parts = Parts::of(&modules.imports());
    let mut violations = Vec::new();
    for cycle in parts.cycles() {
        let steps = cycle
            .iter()
            .map(|import| format!("{}:{} imports {}", import.from.path(), import.line, import.to.path()));
        let message = format!("a cycle of imports: {}", steps.collect::<Vec<_>>().join("; "));
        violations.push(Violation::new(cycle[0].from.path(), cycle[0].line, message));
    }
    for (&leaf, imported) in parts.levels.values().flatten().filter(|(part, _)| LEAVES.contains(part)) {
        for (part, import) in imported.iter().filter(|(part, _)| !part.is_empty()) {
            let message = format!("`{leaf}` must not import its sibling `{part}`");
            violations.push(Violation::new(import.from.path(), import.line, message));
        }
    }
    violations
}

/// The first item of a `mod.rs` other than declarations of modules and imports.
fn check_declaring(file: &File) -> Vec<Violation> {
    let items = items_of(file);
    let is_code = |item: &&Item| match item {
        Item::Mod(module) => module.content.is_some(),
        item => !matches!(item, Item::Use(_)),
    };
    let line = |item: &Item| item.span().start().line;
    let message = "mod.rs only declares and re-exports: move the code to another file";
    let code = items.iter().find(is_code);
    code.map(|item| Violation::new(file.path(), line(item), message)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::places;

    fn places_of(files: &[(&str, &str)]) -> Vec<String> {
        places(&check(&Tree::of(files)))
    }

    #[test]
    fn imports_in_one_direction_pass() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;\npub use a::A;\npub use other::Thing;\n"),
            (
                "c/src/a.rs",
                "use crate::b::{B, inner::C};\nuse crate::{Thing, a_macro};\npub struct A(B);\nfn f() -> super::b::B { std::mem::take() }\n",
            ),
            ("c/src/b/mod.rs", "//! B.\nmod inner;\nmod own;\npub use own::*;\n"),
            ("c/src/b/inner.rs", "use super::B;\npub struct C(B);\n"),
            ("c/src/b/own.rs", "pub struct B;\n#[cfg(test)]\nmod tests { use crate::A; }\n"),
        ];
        assert_eq!(places_of(&files), [""; 0]);
    }

    #[test]
    fn file_cycle_through_re_exports_is_found() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;\npub use b::B;\n"),
            ("c/src/a.rs", "\nuse crate::B as Other;\npub struct A;\n"),
            ("c/src/b.rs", "pub struct B(super::a::A);\n"),
        ];
        assert_eq!(places_of(&files), ["c/src/a.rs:2"]);
    }

    #[test]
    fn folder_cycle_without_file_cycle_is_found() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;\n"),
            ("c/src/a/mod.rs", "mod x;\nmod y;\n"),
            ("c/src/a/x.rs", "use crate::b::x::X;\n"),
            ("c/src/a/y.rs", "pub struct Y;\n"),
            ("c/src/b/mod.rs", "mod x;\nmod y;\n"),
            ("c/src/b/x.rs", "pub struct X;\n"),
            ("c/src/b/y.rs", "fn f() { crate::a::y::Y }\n"),
        ];
        assert_eq!(places_of(&files), ["c/src/a/x.rs:1"]);
    }

    #[test]
    fn cycle_of_calls_through_impl_blocks_is_found() {
        let files = |back: &str| {
            [
                ("c/src/lib.rs", "mod get;\nmod put;\nmod tree;\n".to_owned()),
                ("c/src/tree.rs", "pub struct Tree;\n".to_owned()),
                (
                    "c/src/get.rs",
                    format!(
                        "use crate::tree::Tree;\nimpl Tree {{\n    fn find_leaf(&self) {{\n        {back}\n    }}\n}}\n"
                    ),
                ),
                (
                    "c/src/put.rs",
                    "use crate::tree::Tree;\nimpl Tree {\n    fn put_entry(&self) { self.find_leaf() }\n}\n"
                        .to_owned(),
                ),
            ]
        };
        let places = |files: [(&str, String); 4]| {
            places_of(&files.each_ref().map(|(path, text)| (*path, text.as_str())))
        };
        assert_eq!(places(files("")), [""; 0]);
        assert_eq!(places(files("self.put_entry();")), ["c/src/get.rs:4"]);
        assert_eq!(places(files("#[cfg(test)] mod tests { fn f() { a.put_entry() } }")), [""; 0]);
    }

    /// What must not happen: two types of one name, in different modules, are taken for one, so that their calls of their own methods make a cycle that
    /// does not exist.
    #[test]
    fn types_of_one_name_are_not_one_type() {
        let both = "pub struct End;\nimpl End {\n    fn new() -> Self { Self }\n    fn again() -> Self { Self::new() }\n}\n";
        let files = [
            ("c/src/lib.rs", "mod scan;\nmod pop;\n"),
            ("c/src/pop.rs", both),
            ("c/src/scan.rs", &format!("use crate::pop::Pop;\n{both}")),
        ];
        assert_eq!(places_of(&files), [""; 0]);
        // One that imports the other.
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;\n"),
            ("c/src/a.rs", &format!("use crate::b::Other;\n{both}")),
            ("c/src/b.rs", &format!("pub struct Other;\n{both}")),
        ];
        assert_eq!(places_of(&files), [""; 0]);
        let files = [
            ("c/src/lib.rs", "mod a;\nmod b;\n"),
            ("c/src/a.rs", both),
            ("c/src/b.rs", &format!("use crate::a::End as First;\n{both}")),
        ];
        assert_eq!(places_of(&files), [""; 0]);
    }

    /// What must not happen: calls through `impl` blocks make a cycle that is not found: behind an inner `impl` block, by the name of the type, and through
    /// a dereference.
    #[test]
    fn cycle_of_calls_is_found_however_they_are_written() {
        let places = |back: &str| {
            let get = format!(
                "use crate::tree::Tree;\nimpl Tree {{\n    fn find_leaf(&self) {{\n        {back}\n    }}\n}}\n"
            );
            let put =
                "use crate::tree::Tree;\nimpl Tree {\n    fn put_entry(&self) { self.find_leaf() }\n}\n";
            let files = [
                ("c/src/lib.rs", "mod get;\nmod put;\nmod tree;\n"),
                ("c/src/tree.rs", "pub struct Tree;\n"),
                ("c/src/get.rs", &get),
                ("c/src/put.rs", put),
            ];
            places_of(&files)
        };
        let ways = [
            "self.put_entry();",
            "struct S; impl S { fn f() {} } self.put_entry();",
            "Tree::put_entry(self);",
            "(*self).put_entry();",
        ];
        let missed: Vec<&str> = ways.into_iter().filter(|back| places(back).is_empty()).collect();
        assert_eq!(missed, [""; 0]);
    }

    #[test]
    fn formats_and_errors_import_no_siblings() {
        let files = [
            ("c/src/lib.rs", "mod a;\nmod format;\nmod line;\n"),
            ("c/src/line.rs", "pub struct Line;\n"),
            ("c/src/format.rs", "use crate::line::Line;\n"),
            ("c/src/a/mod.rs", "mod error;\nmod b;\n"),
            ("c/src/a/b.rs", "pub struct B;\n"),
            ("c/src/a/error.rs", "use crate::line::Line;\nuse super::b::B;\n"),
        ];
        assert_eq!(places_of(&files), ["c/src/format.rs:1", "c/src/a/error.rs:2"]);
    }

    #[test]
    fn mod_rs_has_no_code() {
        let file = |text: &str| places_of(&[("c/src/a/mod.rs", text)]);
        assert_eq!(file("//! A.\n#![forbid(unsafe_code)]\n#[cfg(test)]\nmod b;\npub use b::B;\n"), [""; 0]);
        for code in ["fn f() {}", "const A: u8 = 1;", "mod tests {}", "pub struct A;"] {
            let text = format!("//! A.\nmod b;\n{code}\n");
            assert_eq!(file(&text), ["c/src/a/mod.rs:3"], "{code}");
        }
        assert_eq!(places_of(&[("c/tests/a/mod.rs", "fn f() {}\n")]), [""; 0]);
    }
}
