//! Durability points: one marked line for each operation that makes something durable, and one table of them.
//!
//! The comment `// DURABILITY POINT` stands above the statement whose fence, when it returns, has made the
//! operation durable. ARCHITECTURE.md lists all of them, so that a reader sees in one place what is promised
//! where, and a change of either is a change of both.

use super::markdown::{Document, Table};
use super::rust::{Rust, calls};
use super::tree::{File, Tree, Violation};

const MARK: &str = "// DURABILITY POINT";
const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADING: &str = "Durability points";
const COLUMNS: [&str; 3] = ["operation", "function", "file"];

/// What waits until something is durable: the seam's, the engine's, and the system's.
const WAITING: [&str; 7] = ["fence", "persist", "fsync", "fdatasync", "msync", "sync_all", "sync_data"];

/// A function with a durability point, or the line of the table that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Point {
    function: String,
    file: String,
    line: usize,
}

impl Point {
    fn is_same(&self, other: &Self) -> bool {
        (&self.function, &self.file) == (&other.function, &other.file)
    }
}

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut points = Vec::new();
    let sources = tree.with_extension("rs");
    for file in sources.filter(|file| file.path().starts_with("crates/") && file.path().contains("/src/")) {
        check_marks(file, &mut points, &mut violations);
    }
    violations.extend(against_table(tree, &points));
    violations
}

/// Adds the durability points of `file` to `points`, and what is wrong with them to `violations`.
fn check_marks(file: &File, points: &mut Vec<Point>, violations: &mut Vec<Violation>) {
    let rust = Rust::new(file.text());
    let mut last_body = None;
    for (at, _) in rust.comments.match_indices("DURABILITY POINT") {
        let mut found = |message: String| violations.push(Violation::at(file, at, message));
        let line_start = rust.comments[..at].rfind('\n').map_or(0, |end| end + 1);
        let line_end = rust.comments[at..].find('\n').map_or(rust.comments.len(), |length| at + length);
        if file.text()[line_start..line_end].trim() != MARK {
            found(format!("the mark is a line of its own, and only this: {MARK}"));
            continue;
        }
        let Some(function) = rust.function_around(at) else {
            found("a durability point is in a function".to_owned());
            continue;
        };
        let (name, line) = (function.name.to_owned(), file.line_of(at));
        if last_body.replace(function.body.clone()) == Some(function.body) {
            found(format!("a second durability point in {name}: an operation becomes durable in one place"));
            continue;
        }
        if !waits(&rust, rust.statement(line_end)) {
            found(
                "no fence, persist or fsync in the statement below, nor at the end of what it calls".into(),
            );
        }
        points.push(Point { function: name, file: file.path().to_owned(), line });
    }
}

/// Whether this statement waits for durability, itself or in the last statement of a function that it calls
/// and that is in the same file.
fn waits(rust: &Rust, statement: &str) -> bool {
    let itself = |code: &str| calls(code).any(|name| WAITING.contains(&name));
    let functions = rust.functions();
    let mut called = calls(statement).filter_map(|name| functions.iter().find(|known| known.name == name));
    itself(statement) || called.any(|function| itself(last_statement(&rust.code[function.body.clone()])))
}

/// The last statement of a function's body that does something: not a closing `Ok(..)`.
fn last_statement(body: &str) -> &str {
    let mut depth = 0;
    let statements = body.split(|character: char| {
        depth += i32::from(matches!(character, '(' | '[' | '{'));
        depth -= i32::from(matches!(character, ')' | ']' | '}'));
        character == ';' && depth == 0
    });
    let does = |statement: &&str| !statement.is_empty() && !statement.starts_with("Ok(");
    statements.map(str::trim).filter(does).last().unwrap_or_default()
}

/// What the table lacks, and what it has too much.
fn against_table(tree: &Tree, points: &[Point]) -> Vec<Violation> {
    let tables = tree.get(DOCUMENT).map(|file| Document::of(file.text()).tables).unwrap_or_default();
    let table = tables.iter().find_map(|table| Some((table, columns(table)?)));
    let Some((table, [_, function, file])) = table else {
        let [a, b, c] = COLUMNS;
        let message =
            format!("lists every durability point under the heading {HEADING:?}: | {a} | {b} | {c} |");
        return vec![Violation::new(DOCUMENT, 1, message)];
    };
    let rows = table.rows.iter().map(|row| Point {
        function: function_name(row.cell(function)).to_owned(),
        file: path(row.cell(file)).to_owned(),
        line: row.line,
    });
    let rows: Vec<Point> = rows.collect();
    let missing = points.iter().filter(|point| !rows.iter().any(|row| row.is_same(point)));
    let missing = missing.map(|point| {
        let message = format!("the durability point in {} is not listed in {DOCUMENT}", point.function);
        Violation::new(&point.file, point.line, message)
    });
    let redundant = rows.iter().enumerate().filter_map(|(index, row)| {
        let message = if rows[..index].iter().any(|earlier| earlier.is_same(row)) {
            format!("{} of {} is listed twice", row.function, row.file)
        } else if !points.iter().any(|point| point.is_same(row)) {
            format!("there is no {MARK:?} in a function {} of {}", row.function, row.file)
        } else {
            return None;
        };
        Some(Violation::new(DOCUMENT, row.line, message))
    });
    missing.chain(redundant).collect()
}

fn columns(table: &Table<'_>) -> Option<[usize; 3]> {
    if table.heading == HEADING { table.columns_named(COLUMNS) } else { None }
}

/// The function's own name in `Type::function()`.
fn function_name(cell: &str) -> &str {
    let cell = cell.trim_end_matches("()");
    cell.rsplit("::").next().unwrap_or(cell)
}

/// The path in a cell, which may be a link to the file.
fn path(cell: &str) -> &str {
    cell.split_once("](").map_or(cell, |(_, target)| target.trim_end_matches(')'))
}

#[cfg(test)]
mod tests {
    use super::super::tree::places;
    use super::*;

    const CODE: &str = "\
impl Log {
    fn append(&self) -> Result<(), Error> {
        // DURABILITY POINT
        self.pmem.fence()?;
        Ok(())
    }
    fn replace(&self) {
        // DURABILITY POINT
        self.write(1)?;
        self.clear();
    }
    fn write(&self, at: u64) {
        self.store(at);
        self.pmem.persist(at, 64)?;
        Ok(())
    }
}
";
    const HEAD: &str = "# Durability points\n\n| operation | function | file |\n|---|---|---|\n";

    fn places_of(code: &str, table: &str) -> Vec<String> {
        let text = format!("{HEAD}{table}");
        places(&check(&Tree::of(&[("crates/a/src/a.rs", code), (DOCUMENT, &text)])))
    }

    /// Where the marks themselves are wrong.
    fn marks(code: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/a/src/a.rs", code)]);
        let mut violations = Vec::new();
        check_marks(tree.get("crates/a/src/a.rs").expect("there"), &mut Vec::new(), &mut violations);
        places(&violations)
    }

    #[test]
    fn marks_and_table_agree() {
        let table =
            "| a | `Log::append` | `crates/a/src/a.rs` |\n| b | `replace()` | [a](crates/a/src/a.rs) |\n";
        assert_eq!(places_of(CODE, table), [""; 0]);
    }

    #[test]
    fn a_point_that_is_not_listed_and_a_row_without_a_point() {
        let table = "| a | `append` | `crates/a/src/a.rs` |\n| b | `write` | `crates/a/src/a.rs` |\n";
        assert_eq!(places_of(CODE, table), ["crates/a/src/a.rs:8", "ARCHITECTURE.md:6"]);
        let twice = "| a | `append` | `crates/a/src/a.rs` |\n| c | `append` | `crates/a/src/a.rs` |\n";
        assert_eq!(places_of(CODE, twice), ["crates/a/src/a.rs:8", "ARCHITECTURE.md:6"]);
    }

    #[test]
    fn without_the_table_the_message_says_what_it_should_be() {
        let violations = check(&Tree::of(&[("crates/a/src/a.rs", CODE)]));
        assert_eq!(places(&violations), ["ARCHITECTURE.md:1"]);
        assert!(violations[0].to_string().ends_with("| operation | function | file |"), "{}", violations[0]);
    }

    #[test]
    fn a_mark_without_a_fence_below_is_a_violation() {
        assert_eq!(marks(CODE), [""; 0]);
        assert_eq!(
            marks("fn a() {\n    // DURABILITY POINT\n    flush(b);\n    fence();\n}"),
            ["crates/a/src/a.rs:2"]
        );
        let not_last = CODE.replace("self.pmem.persist(at, 64)?;", "persist(at); self.store(0);");
        assert_eq!(marks(&not_last), ["crates/a/src/a.rs:8"]);
    }

    #[test]
    fn a_function_has_one_point() {
        let code =
            "fn a() {\n    // DURABILITY POINT\n    fence();\n    // DURABILITY POINT\n    fence();\n}";
        assert_eq!(marks(code), ["crates/a/src/a.rs:4"]);
    }

    #[test]
    fn a_mark_is_exact_and_in_a_function() {
        assert_eq!(marks("fn a() {\n    fence(); // DURABILITY POINT\n}"), ["crates/a/src/a.rs:2"]);
        assert_eq!(
            marks("fn a() {\n    // DURABILITY POINT: here\n    fence();\n}"),
            ["crates/a/src/a.rs:2"]
        );
        assert_eq!(marks("// DURABILITY POINT\nfn a() { fence(); }"), ["crates/a/src/a.rs:1"]);
        assert_eq!(marks("const A: &str = \"DURABILITY POINT\";"), [""; 0]);
    }
}
