//! As much of Markdown as the rules need: headings, tables, links.

/// A table, and the heading it stands under.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table<'a> {
    /// The text of the nearest heading above; empty when there is none.
    pub(super) heading: &'a str,
    pub(super) columns: Vec<&'a str>,
    pub(super) rows: Vec<Row<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    /// Its line in the document, from 1.
    pub(super) line: usize,
    pub(super) cells: Vec<&'a str>,
}

impl Table<'_> {
    /// Where the columns of these names are; `None` unless all are there.
    pub(super) fn columns_named<const N: usize>(&self, names: [&str; N]) -> Option<[usize; N]> {
        let places = names.map(|name| self.columns.iter().position(|column| *column == name));
        places.iter().all(Option::is_some).then(|| places.map(Option::unwrap_or_default))
    }
}

impl Row<'_> {
    /// The text of a cell without the marks of code; empty when the row is too short.
    pub(super) fn cell(&self, column: usize) -> &str {
        self.cells.get(column).map_or("", |cell| cell.trim_matches('`'))
    }
}

/// The lines of `text` outside code blocks, numbered from 1.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => return Some((index + 1, line)),
            _ => {}
        }
        None
    })
}

/// The headings of `text` with their lines.
pub(super) fn headings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).filter_map(|(line, text)| Some((line, heading(text)?)))
}

/// The tables of `text`, in order.
pub(super) fn tables(text: &str) -> Vec<Table<'_>> {
    let mut tables: Vec<Table<'_>> = Vec::new();
    let mut under = "";
    let mut above: Option<Vec<&str>> = None;
    let mut in_table = false;
    for (line, text) in prose(text) {
        let row = cells(text);
        under = heading(text).unwrap_or(under);
        match (&row, tables.last_mut().filter(|_| in_table)) {
            (Some(cells), Some(table)) => table.rows.push(Row { line, cells: cells.clone() }),
            (Some(cells), None) if cells.iter().all(|cell| is_rule(cell)) => {
                let columns = above.take().unwrap_or_default();
                tables.push(Table { heading: under, columns, rows: Vec::new() });
                in_table = true;
            }
            _ => in_table = false,
        }
        above = row;
    }
    tables
}

/// The targets of the links and pictures in `text`, with their lines.
pub(super) fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (line, text) in prose(text) {
        links.extend(inline_links(text).map(|target| (line, target)));
        if let Some((_, target)) = text.split_once("]: ").filter(|_| text.starts_with('[')) {
            links.extend(target.split_whitespace().next().map(|target| (line, target)));
        }
    }
    links
}

/// The name by which a link reaches a heading, as GitHub makes it.
pub(super) fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    (1..=6).contains(&level).then(|| text.strip_prefix(' ')).flatten().map(str::trim)
}

/// The cells of a table's line. A bar inside code is no border.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inside = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let mut in_code = false;
    let border = |character: char| {
        in_code ^= character == '`';
        character == '|' && !in_code
    };
    Some(inside.split(border).map(str::trim).collect())
}

/// Whether a cell belongs to the line between a table's head and its body.
fn is_rule(cell: &str) -> bool {
    cell.contains('-') && cell.chars().all(|character| matches!(character, '-' | ':'))
}

fn inline_links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, mark)| {
        // An odd number of marks before it: inside code, where nothing is a link.
        let in_code = line[..at].matches('`').count() % 2 == 1;
        let target = &line[at + mark.len()..];
        let target = target.split([')', ' ']).next()?;
        (!in_code).then_some(target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_heading_columns_and_numbered_rows() {
        let text =
            "| no | table |\n# `One` two\n\n| a | b |\n|---|:-:|\n| 1 | `x|y` |\n| 2 |\n\n| c |\n|---|\n";
        let found = tables(text);
        let row = |line, cells: &[&'static str]| Row { line, cells: cells.to_vec() };
        assert_eq!(found[0].heading, "`One` two");
        assert_eq!(found[0].columns, ["a", "b"]);
        assert_eq!(found[0].rows, [row(6, &["1", "`x|y`"]), row(7, &["2"])]);
        assert_eq!((found[1].columns.as_slice(), found.len()), (["c"].as_slice(), 2));
        assert_eq!((found[0].rows[0].cell(1), found[0].rows[1].cell(1)), ("x|y", ""));
        assert_eq!(found[0].columns_named(["b", "a"]), Some([1, 0]));
        assert_eq!(found[0].columns_named(["b", "c"]), None);
    }

    #[test]
    fn code_blocks_are_not_prose() {
        let text = "# a\n```sh\n# b\n[c](d)\n~~~\n```\n~~~\n# e\n~~~\n## f\n";
        assert_eq!(headings(text).collect::<Vec<_>>(), [(1, "a"), (10, "f")]);
        assert!(links(text).is_empty());
    }

    #[test]
    fn links_of_both_kinds() {
        let text = "[a](b.md) ![c](d.png \"title\") `[e](f)` [g][h]\n[h]: i.md#j\n";
        assert_eq!(links(text), [(1, "b.md"), (1, "d.png"), (2, "i.md#j")]);
    }

    #[test]
    fn anchors_are_githubs() {
        assert_eq!(anchor("Durability points"), "durability-points");
        assert_eq!(anchor("`Header`, at 0: a_b-c"), "header-at-0-a_b-c");
    }
}
