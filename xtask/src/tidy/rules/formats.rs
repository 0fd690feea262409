//! Format documents equal the code: the fields, their offsets and their sizes.
//!
//! Not one of the [`RULES`](crate::tidy::RULES): the layouts come from the compiled code, on which this crate does not depend. A test has the list of them.

use crate::tidy::markdown::{Document, Row};
use crate::tidy::modules::items_of;
use crate::tidy::tree::{Tree, Violation};

const COLUMNS: [&str; 3] = ["offset", "bytes", "field"];

/// A struct on media.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// The path of its source.
    pub source: &'static str,
    /// The path of the document with its table.
    pub document: &'static str,
    /// Its fields, in their order.
    pub fields: Vec<Field>,
}

/// A field of a [`Layout`].
#[derive(Debug, Clone)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its offset in the struct.
    pub offset_bytes: usize,
    /// Its size.
    pub size_bytes: usize,
}

/// The differences between the documents and the code, whose structs on media are `layouts`, and the structs that `layouts` lacks.
#[must_use]
pub fn check(tree: &Tree, layouts: &[Layout]) -> Vec<Violation> {
    let mut violations = unlisted(tree, layouts);
    violations.extend(undescribed(tree, layouts));
    violations.extend(layouts.iter().flat_map(|layout| against_table(tree, layout)));
    violations
}

/// Structs in the code's `format.rs` files that `layouts` lacks.
fn unlisted(tree: &Tree, layouts: &[Layout]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let in_crates = |path: &str| path.starts_with("crates/") && path.ends_with("/format.rs");
    for file in tree.with_extension("rs").filter(|file| in_crates(file.path())) {
        for item in items_of(file) {
            let syn::Item::Struct(item) = item else { continue };
            let name = item.ident.to_string();
            let is_listed = |layout: &Layout| (layout.name, layout.source) == (name.as_str(), file.path());
            if item.attrs.iter().any(derives_persist) && !layouts.iter().any(is_listed) {
                let message = format!(
                    "{name} is a struct on media that is not listed in system-tests/tests/formats.rs"
                );
                violations.push(Violation::new(file.path(), item.ident.span().start().line, message));
            }
        }
    }
    violations
}

fn derives_persist(attribute: &syn::Attribute) -> bool {
    let derive = attribute.meta.require_list().ok().filter(|list| list.path.is_ident("derive"));
    derive.is_some_and(|list| list.tokens.clone().into_iter().any(|token| token.to_string() == "Persist"))
}

/// Tables of fields in the documents without a struct in `layouts`.
fn undescribed(tree: &Tree, layouts: &[Layout]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.with_extension("md").filter(|file| file.path().starts_with("docs/format/")) {
        for table in Document::of(file.text()).tables {
            let known = layouts
                .iter()
                .any(|layout| layout.document == file.path() && is_heading_of(table.heading, layout.name));
            if table.columns_named(COLUMNS).is_some() && !known {
                let line = table.rows.first().map_or(1, |row| row.line);
                let message =
                    "a table of fields needs the name of a struct on media as its heading, such as `Header`";
                violations.push(Violation::new(file.path(), line, message));
            }
        }
    }
    violations
}

/// The differences between the table of a struct and the code.
fn against_table(tree: &Tree, layout: &Layout) -> Vec<Violation> {
    let text = tree.get(layout.document).map_or("", |file| file.text());
    let tables = Document::of(text).tables;
    let found = tables.iter().find_map(|table| {
        let columns = table.columns_named(COLUMNS).filter(|_| is_heading_of(table.heading, layout.name))?;
        Some((table, columns))
    });
    let Some((table, columns)) = found else {
        let [a, b, c] = COLUMNS;
        let message =
            format!("lacks the table of `{}` under a heading of that name: | {a} | {b} | {c} |", layout.name);
        return vec![Violation::new(layout.document, 1, message)];
    };
    let mut violations = Vec::new();
    let expected = layout
        .fields
        .iter()
        .map(|field| [field.offset_bytes.to_string(), field.size_bytes.to_string(), field.name.to_owned()]);
    let expected: Vec<[String; 3]> = expected.collect();
    for (index, row) in table.rows.iter().enumerate() {
        let message = match expected.get(index) {
            Some(field) if *field == fields_of(row, columns) => continue,
            Some(field) => format!("the code has {}", field.join(" | ")),
            None => format!("the code has no more fields in {}", layout.name),
        };
        violations.push(Violation::new(layout.document, row.line, message));
    }
    let end = table.rows.last().map_or(1, |row| row.line);
    let missing = expected.iter().skip(table.rows.len());
    violations.extend(missing.map(|field| {
        Violation::new(layout.document, end, format!("`{}` goes on with {}", layout.name, field.join(" | ")))
    }));
    violations
}

/// A row's offset, size and name; numbers without thousands separators.
fn fields_of(row: &Row<'_>, [offset, bytes, field]: [usize; 3]) -> [String; 3] {
    [row.cell(offset).replace(',', ""), row.cell(bytes).replace(',', ""), row.cell(field).to_owned()]
}

fn is_heading_of(heading: &str, name: &str) -> bool {
    heading.trim_matches('`') == name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::places;

    const DOCUMENT: &str = "docs/format/a.md";
    const SOURCE: &str = "crates/a/src/format.rs";
    const HEAD: &str = "## `Pair`\n\n| offset | bytes | field | meaning |\n|---|---|---|---|\n";

    fn pair() -> Layout {
        let fields = vec![field("first", 0, 8), field("second", 8, 4096)];
        Layout { name: "Pair", source: SOURCE, document: DOCUMENT, fields }
    }

    const fn field(name: &'static str, offset_bytes: usize, size_bytes: usize) -> Field {
        Field { name, offset_bytes, size_bytes }
    }

    fn places_of(rows: &str) -> Vec<String> {
        places(&against_table(&Tree::of(&[(DOCUMENT, &format!("{HEAD}{rows}"))]), &pair()))
    }

    #[test]
    fn table_equal_to_code_passes() {
        assert_eq!(places_of("| 0 | 8 | `first` | a |\n| 8 | 4,096 | second | b |\n"), [""; 0]);
    }

    #[test]
    fn difference_from_code_is_a_violation() {
        let at = |line: usize| format!("{DOCUMENT}:{line}");
        assert_eq!(places_of("| 0 | 8 | first | a |\n| 8 | 64 | second | b |\n"), [at(6)]);
        assert_eq!(places_of("| 1 | 8 | first | a |\n| 8 | 4096 | third | b |\n"), [at(5), at(6)]);
        assert_eq!(places_of("| 0 | 8 | first | a |\n"), [at(5)]);
        assert_eq!(places_of("| 0 | 8 | first |\n| 8 | 4096 | second |\n| 12 | 1 | third |\n"), [at(7)]);
        assert_eq!(places(&against_table(&Tree::of(&[]), &pair())), [at(1)]);
    }

    #[test]
    fn media_struct_is_listed() {
        let code = "#[derive(Clone, Persist)]\n#[repr(C)]\nstruct Pair {}\n\n/// B.\n#[derive(Persist)]\npub struct B;\n\
                    #[derive(Debug)]\nstruct C;\n";
        let tree = Tree::of(&[(SOURCE, code), ("crates/a/src/other.rs", code)]);
        assert_eq!(places(&unlisted(&tree, &[pair()])), [format!("{SOURCE}:7")]);
    }

    #[test]
    fn table_of_unknown_struct_is_a_violation() {
        let text = format!(
            "{HEAD}| 0 | 8 | a |\n\n## Other\n\n| offset | bytes | field |\n|---|---|---|\n| 0 | 1 | b |\n"
        );
        let tree = Tree::of(&[(DOCUMENT, &text)]);
        assert_eq!(places(&undescribed(&tree, &[pair()])), [format!("{DOCUMENT}:11")]);
    }
}
