//! Headings, tables, links and names of files in a document.

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

/// A parsed document. Texts are source text, with backticks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Document<'a> {
    pub(super) headings: Vec<&'a str>,
    pub(super) tables: Vec<Table<'a>>,
    /// The targets of links and images, with line numbers from 1.
    pub(super) links: Vec<(usize, String)>,
    /// Names of Rust files in backticks, with line numbers from 1.
    pub(super) sources: Vec<(usize, String)>,
}

/// A table and its heading.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Table<'a> {
    /// The text of the nearest heading above, or empty.
    pub(super) heading: &'a str,
    pub(super) columns: Vec<&'a str>,
    pub(super) rows: Vec<Row<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    /// The line number, from 1.
    pub(super) line: usize,
    pub(super) cells: Vec<&'a str>,
}

impl<'a> Document<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let mut document = Self::default();
        let line_of = |at: usize| text[..at].matches('\n').count() + 1;
        let parser = Parser::new_ext(text, Options::ENABLE_TABLES);
        let definitions = parser
            .reference_definitions()
            .iter()
            .map(|(_, link)| (line_of(link.span.start), link.dest.to_string()));
        document.links.extend(definitions);
        for (event, range) in parser.into_offset_iter() {
            let (line, source) = (line_of(range.start), text[range].trim());
            match event {
                Event::End(TagEnd::Heading(_)) => document.headings.push(source.trim_matches('#').trim()),
                Event::Start(Tag::Table(_)) => {
                    let heading = document.headings.last().copied().unwrap_or_default();
                    document.tables.push(Table { heading, ..Table::default() });
                }
                Event::Start(Tag::TableRow) => {
                    document.last_table().rows.push(Row { line, cells: Vec::new() })
                }
                Event::Start(Tag::TableCell) => {
                    let table = document.last_table();
                    table.rows.last_mut().map_or(&mut table.columns, |row| &mut row.cells).push(source);
                }
                Event::Code(code) if code.ends_with(".rs") && !code.contains(['*', '<', ' ']) => {
                    document.sources.push((line, code.into_string()));
                }
                // References have definitions, which are listed already.
                Event::Start(
                    Tag::Link { link_type: LinkType::Inline, dest_url, .. }
                    | Tag::Image { link_type: LinkType::Inline, dest_url, .. },
                ) => document.links.push((line, dest_url.into_string())),
                _ => {}
            }
        }
        document.links.sort();
        document
    }

    fn last_table(&mut self) -> &mut Table<'a> {
        self.tables.last_mut().expect("rows and cells are in a table")
    }
}

impl Table<'_> {
    /// The indices of the columns of these names; `None` unless all exist.
    pub(super) fn columns_named<const N: usize>(&self, names: [&str; N]) -> Option<[usize; N]> {
        let places = names.map(|name| self.columns.iter().position(|column| *column == name));
        places.iter().all(Option::is_some).then(|| places.map(Option::unwrap_or_default))
    }
}

impl Row<'_> {
    /// The text of a cell without backticks; empty if the row is too short.
    pub(super) fn cell(&self, column: usize) -> &str {
        self.cells.get(column).map_or("", |cell| cell.trim_matches('`'))
    }
}

/// The anchor of a heading on GitHub.
pub(super) fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_heading_columns_and_numbered_rows() {
        let text =
            "| no | table |\n# `One` two\n\n| a | b |\n|---|:-:|\n| 1 | `x\\|y` |\n| 2 |\n\n| c |\n|---|\n";
        let found = Document::of(text).tables;
        let row = |line, cells: &[&'static str]| Row { line, cells: cells.to_vec() };
        assert_eq!(found[0].heading, "`One` two");
        assert_eq!(found[0].columns, ["a", "b"]);
        assert_eq!(found[0].rows, [row(6, &["1", "`x\\|y`"]), row(7, &["2", ""])]);
        assert_eq!((found[1].columns.as_slice(), found.len()), (["c"].as_slice(), 2));
        assert_eq!((found[0].rows[0].cell(1), found[0].rows[1].cell(1)), ("x\\|y", ""));
        assert_eq!(found[0].columns_named(["b", "a"]), Some([1, 0]));
        assert_eq!(found[0].columns_named(["b", "c"]), None);
    }

    #[test]
    fn code_blocks_are_ignored() {
        let text = "# a\n```sh\n# b\n[c](d)\n~~~\n```\n~~~\n# e\n~~~\n## f\n";
        let document = Document::of(text);
        assert_eq!(document.headings, ["a", "f"]);
        assert!(document.links.is_empty());
    }

    #[test]
    fn links_of_both_kinds_and_names_of_files() {
        let text = "`a/b.rs` `c_*.rs` `d()`";
        assert_eq!(Document::of(text).sources, [(1, "a/b.rs".to_owned())]);
        let text = "[a](b.md) ![c](d.png \"title\") `[e](f)` [g][h]\n\n[h]: i.md#j\n";
        let links =
            [(1, "b.md"), (1, "d.png"), (3, "i.md#j")].map(|(line, target)| (line, target.to_owned()));
        assert_eq!(Document::of(text).links, links);
    }

    #[test]
    fn anchors_equal_those_of_github() {
        assert_eq!(anchor("Durability points"), "durability-points");
        assert_eq!(anchor("`Header`, at 0: a_b-c"), "header-at-0-a_b-c");
    }
}
