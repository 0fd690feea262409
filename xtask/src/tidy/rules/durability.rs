//! Durability points: one mark in each operation that makes data durable, and a table of them.
//!
//! The comment `// DURABILITY POINT` precedes the statement whose fence makes the operation durable. ARCHITECTURE.md must list the same functions.

use std::ops::RangeInclusive;

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Block, Expr, Stmt};

use crate::tidy::markdown::{Document, Table};
use crate::tidy::rust::Rust;
use crate::tidy::tree::{File, Tree, Violation};

const MARK: &str = "// DURABILITY POINT";
const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADING: &str = "Durability points";
const COLUMNS: [&str; 3] = ["operation", "function", "file"];

/// The functions of the seam, the engine and the system that wait for durability.
const WAITING: [&str; 7] = ["fence", "persist", "fsync", "fdatasync", "msync", "sync_all", "sync_data"];

/// A function with a durability point, or its row in the table.
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

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut points = Vec::new();
    let sources = tree.with_extension("rs");
    for file in sources.filter(|file| file.path().starts_with("crates/") && file.path().contains("/src/")) {
        check_marks(file, &mut points, &mut violations);
    }
    violations.extend(against_table(tree, &points));
    violations
}

/// Adds the durability points of `file` to `points`, and their errors to `violations`.
fn check_marks(file: &File, points: &mut Vec<Point>, violations: &mut Vec<Violation>) {
    let rust = Rust::new(file.text());
    let mut code = Code::default();
    if let (true, Ok(parsed)) = (rust.comments.contains("DURABILITY POINT"), syn::parse_file(file.text())) {
        code.visit_file(&parsed);
    }
    let mut last = None;
    for (at, _) in rust.comments.match_indices("DURABILITY POINT") {
        let mut found = |message: String| violations.push(Violation::at(file, at, message));
        let line = file.line_of(at);
        if file.text().lines().nth(line - 1).map(str::trim) != Some(MARK) {
            found(format!("the mark is on its own line, and exactly {MARK}"));
            continue;
        }
        let Some(function) = code.functions.iter().rfind(|function| function.lines.contains(&line)) else {
            found("a durability point must be in a function".to_owned());
            continue;
        };
        let name = function.name.clone();
        if last.replace(&function.lines) == Some(&function.lines) {
            found(format!("a second durability point in {name}: an operation has one"));
            continue;
        }
        if !code.waits_below(line) {
            found("no fence, persist or fsync in the next statement, nor at the end of a function that it calls".into());
        }
        points.push(Point { function: name, file: file.path().to_owned(), line });
    }
}

/// The functions and statements of a file.
#[derive(Debug, Default)]
struct Code {
    functions: Vec<Function>,
    /// The first line of each, and the names that it calls; an outer statement precedes its inner ones.
    statements: Vec<(usize, Vec<String>)>,
}

#[derive(Debug)]
struct Function {
    name: String,
    lines: RangeInclusive<usize>,
    /// The names that its last statement calls, except a closing `Ok(..)`.
    calls_last: Vec<String>,
}

impl Code {
    /// Whether the first statement below this line waits for durability, directly or in the last statement of a function that it calls in the same
    /// file.
    fn waits_below(&self, line: usize) -> bool {
        let below = self.statements.iter().filter(|(start, _)| *start > line);
        let Some((_, calls)) = below.min_by_key(|(start, _)| *start) else { return false };
        let waits = |names: &[String]| names.iter().any(|name| WAITING.contains(&name.as_str()));
        let mut called = self.functions.iter().filter(|function| calls.contains(&function.name));
        waits(calls) || called.any(|function| waits(&function.calls_last))
    }

    fn add_function(&mut self, name: &syn::Ident, block: &Block) {
        let is_closing =
            |statement: &&Stmt| matches!(statement, Stmt::Expr(Expr::Call(call), None) if is_ok(&call.func));
        let last = block.stmts.iter().rfind(|statement| !is_closing(statement));
        let calls_last = last.map(Calls::of).unwrap_or_default();
        let lines = block.span().start().line..=block.span().end().line;
        self.functions.push(Function { name: name.to_string(), lines, calls_last });
    }
}

fn is_ok(function: &Expr) -> bool {
    matches!(function, Expr::Path(path) if path.path.is_ident("Ok"))
}

impl<'ast> Visit<'ast> for Code {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add_function(&function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add_function(&function.sig.ident, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        self.statements.push((statement.span().start().line, Calls::of(statement)));
        visit::visit_stmt(self, statement);
    }
}

/// The names of the functions and methods that some code calls.
#[derive(Default)]
struct Calls(Vec<String>);

impl Calls {
    fn of(statement: &Stmt) -> Vec<String> {
        let mut calls = Self::default();
        calls.visit_stmt(statement);
        calls.0
    }
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let Expr::Path(path) = &*call.func {
            self.0.extend(path.path.segments.last().map(|segment| segment.ident.to_string()));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.0.push(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }
}

/// The missing and the redundant rows of the table.
fn against_table(tree: &Tree, points: &[Point]) -> Vec<Violation> {
    let tables = tree.get(DOCUMENT).map(|file| Document::of(file.text()).tables).unwrap_or_default();
    let table = tables.iter().find_map(|table| Some((table, columns(table)?)));
    let Some((table, [_, function, file])) = table else {
        let [a, b, c] = COLUMNS;
        let message = format!(
            "needs a table of all durability points under the heading {HEADING:?}: | {a} | {b} | {c} |"
        );
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

/// The name `function` in `Type::function()`.
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
    use super::*;
    use crate::tidy::tree::places;

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

    /// The places of wrong marks.
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
    fn unlisted_point_and_row_without_point_are_violations() {
        let table = "| a | `append` | `crates/a/src/a.rs` |\n| b | `write` | `crates/a/src/a.rs` |\n";
        assert_eq!(places_of(CODE, table), ["crates/a/src/a.rs:8", "ARCHITECTURE.md:6"]);
        let twice = "| a | `append` | `crates/a/src/a.rs` |\n| c | `append` | `crates/a/src/a.rs` |\n";
        assert_eq!(places_of(CODE, twice), ["crates/a/src/a.rs:8", "ARCHITECTURE.md:6"]);
    }

    #[test]
    fn missing_table_message_shows_its_columns() {
        let violations = check(&Tree::of(&[("crates/a/src/a.rs", CODE)]));
        assert_eq!(places(&violations), ["ARCHITECTURE.md:1"]);
        assert!(violations[0].to_string().ends_with("| operation | function | file |"), "{}", violations[0]);
    }

    #[test]
    fn mark_without_fence_below_is_a_violation() {
        assert_eq!(marks(CODE), [""; 0]);
        assert_eq!(
            marks("fn a() {\n    // DURABILITY POINT\n    flush(b);\n    fence();\n}"),
            ["crates/a/src/a.rs:2"]
        );
        let not_last = CODE.replace("self.pmem.persist(at, 64)?;", "persist(at); self.store(0);");
        assert_eq!(marks(&not_last), ["crates/a/src/a.rs:8"]);
    }

    #[test]
    fn function_has_one_durability_point() {
        let code =
            "fn a() {\n    // DURABILITY POINT\n    fence();\n    // DURABILITY POINT\n    fence();\n}";
        assert_eq!(marks(code), ["crates/a/src/a.rs:4"]);
    }

    #[test]
    fn mark_is_exact_and_in_function() {
        assert_eq!(marks("fn a() {\n    fence(); // DURABILITY POINT\n}"), ["crates/a/src/a.rs:2"]);
        assert_eq!(
            marks("fn a() {\n    // DURABILITY POINT: here\n    fence();\n}"),
            ["crates/a/src/a.rs:2"]
        );
        assert_eq!(marks("// DURABILITY POINT\nfn a() { fence(); }"), ["crates/a/src/a.rs:1"]);
        assert_eq!(marks("const A: &str = \"DURABILITY POINT\";"), [""; 0]);
    }
}
