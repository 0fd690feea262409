//! Format documents equal the code: the fields, their offsets and their sizes.

use pm_alloc::format::{ChunkCount, HeapHeader, LogEntry};
use pm_btree::format::{ExtentChunk, ExtentRow, NodeHeader, StoreBlock, StoreHeader};
use pm_core::pool::format::{Header, RootSlot};
use pm_core::{FieldLayout, Persist};
use pm_fs::format::{
    AttributeBlock, AttributeEntry, DirBlock, DirEntry, Identity, Inode, Node, Saved, Status, Superblock,
};
use pmbd::buffer::format::{SlotHeader, SlotsHeader};
use pmbd::disk::format::Descriptor;

use super::markdown::{Document, Row};
use super::modules::items_of;
use super::tree::{Tree, Violation};

const COLUMNS: [&str; 3] = ["offset", "bytes", "field"];

/// A struct on media, with the paths of its source and its document.
#[derive(Debug, Clone, Copy)]
struct Layout {
    name: &'static str,
    source: &'static str,
    document: &'static str,
    fields: &'static [FieldLayout],
}

/// Every struct on media.
const LAYOUTS: &[Layout] = &[
    layout::<Header>("Header", "crates/pm-core/src/pool/format.rs", "docs/format/pool.md"),
    layout::<RootSlot>("RootSlot", "crates/pm-core/src/pool/format.rs", "docs/format/pool.md"),
    layout::<Descriptor>("Descriptor", "crates/pmbd-ublk/src/disk/format.rs", "docs/format/disk.md"),
    layout::<SlotsHeader>("SlotsHeader", "crates/pmbd-ublk/src/buffer/format.rs", "docs/format/slots.md"),
    layout::<SlotHeader>("SlotHeader", "crates/pmbd-ublk/src/buffer/format.rs", "docs/format/slots.md"),
    layout::<HeapHeader>("HeapHeader", "crates/pm-alloc/src/format.rs", "docs/format/heap.md"),
    layout::<ChunkCount>("ChunkCount", "crates/pm-alloc/src/format.rs", "docs/format/heap.md"),
    layout::<LogEntry>("LogEntry", "crates/pm-alloc/src/format.rs", "docs/format/heap.md"),
    layout::<StoreBlock<'static>>("StoreBlock", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
    layout::<StoreHeader>("StoreHeader", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
    layout::<ExtentChunk<'static>>("ExtentChunk", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
    layout::<ExtentRow<'static>>("ExtentRow", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
    layout::<NodeHeader>("NodeHeader", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
    layout::<Superblock>("Superblock", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<Saved>("Saved", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<Inode>("Inode", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<Identity>("Identity", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<Status>("Status", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<Node>("Node", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<DirBlock>("DirBlock", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<DirEntry>("DirEntry", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<AttributeBlock>("AttributeBlock", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
    layout::<AttributeEntry>("AttributeEntry", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
];

const fn layout<T: Persist>(name: &'static str, source: &'static str, document: &'static str) -> Layout {
    Layout { name, source, document, fields: T::FIELDS }
}

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = unlisted(tree, LAYOUTS);
    violations.extend(undescribed(tree, LAYOUTS));
    violations.extend(LAYOUTS.iter().flat_map(|layout| against_table(tree, layout)));
    violations
}

/// Structs in the code's `format.rs` files that [`LAYOUTS`] lacks.
fn unlisted(tree: &Tree, layouts: &[Layout]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let in_crates = |path: &str| path.starts_with("crates/") && path.ends_with("/format.rs");
    for file in tree.with_extension("rs").filter(|file| in_crates(file.path())) {
        for item in items_of(file) {
            let syn::Item::Struct(item) = item else { continue };
            let name = item.ident.to_string();
            let is_listed = |layout: &Layout| (layout.name, layout.source) == (name.as_str(), file.path());
            if item.attrs.iter().any(derives_persist) && !layouts.iter().any(is_listed) {
                let message = format!("{name} is a struct on media that is not listed in {}", file!());
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

/// Tables of fields in the documents without a struct in [`LAYOUTS`].
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
    use super::super::tree::places;
    use super::*;

    const DOCUMENT: &str = "docs/format/a.md";
    const SOURCE: &str = "crates/a/src/format.rs";
    const HEAD: &str = "## `Pair`\n\n| offset | bytes | field | meaning |\n|---|---|---|---|\n";
    const PAIR: Layout = Layout {
        name: "Pair",
        source: SOURCE,
        document: DOCUMENT,
        fields: &[field("first", 0, 8), field("second", 8, 4096)],
    };

    const fn field(name: &'static str, offset_bytes: usize, size_bytes: usize) -> FieldLayout {
        FieldLayout { name, offset_bytes, size_bytes, layout: 0 }
    }

    fn places_of(rows: &str) -> Vec<String> {
        places(&against_table(&Tree::of(&[(DOCUMENT, &format!("{HEAD}{rows}"))]), &PAIR))
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
        assert_eq!(places(&against_table(&Tree::of(&[]), &PAIR)), [at(1)]);
    }

    #[test]
    fn media_struct_is_listed() {
        let code = "#[derive(Clone, Persist)]\n#[repr(C)]\nstruct Pair {}\n\n/// B.\n#[derive(Persist)]\npub struct B;\n\
                    #[derive(Debug)]\nstruct C;\n";
        let tree = Tree::of(&[(SOURCE, code), ("crates/a/src/other.rs", code)]);
        assert_eq!(places(&unlisted(&tree, &[PAIR])), [format!("{SOURCE}:7")]);
    }

    #[test]
    fn table_of_unknown_struct_is_a_violation() {
        let text = format!(
            "{HEAD}| 0 | 8 | a |\n\n## Other\n\n| offset | bytes | field |\n|---|---|---|\n| 0 | 1 | b |\n"
        );
        let tree = Tree::of(&[(DOCUMENT, &text)]);
        assert_eq!(places(&undescribed(&tree, &[PAIR])), [format!("{DOCUMENT}:11")]);
    }

    #[test]
    fn listed_structs_have_whole_layouts() {
        for layout in LAYOUTS {
            let last = layout.fields.last().expect("a struct on media has fields");
            assert!((last.offset_bytes + last.size_bytes).is_multiple_of(8), "{}", layout.name);
        }
    }
}
