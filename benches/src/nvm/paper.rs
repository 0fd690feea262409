//! The paper's numbers, and ours beside them.

use super::cell::{Cell, Point, digits};
use serde::Deserialize;
use std::fmt::Write as _;

const NUMBERS: &str = include_str!("../../nvm/paper.toml");

/// A number in the paper's text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// The section, and the figure that it is about.
    pub place: String,
    /// What it is.
    pub says: String,
    /// The number, or a range, as the text has it.
    pub value: String,
    /// Its unit. With `over`, either `times` or `%`, which is the change.
    pub unit: String,
    /// Our cell.
    pub ours: Option<String>,
    /// The cell that it is divided by.
    pub over: Option<String>,
    /// Why ours differs, or is not measured.
    pub why: Option<String>,
    /// What else the paper says.
    pub contradicts: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    number: Vec<Number>,
}

/// All of them, in the order of the text.
///
/// # Panics
/// Never: a test parses them.
#[must_use]
pub fn numbers() -> Vec<Number> {
    let file: File = toml::from_str(NUMBERS).expect("a test parses the file that is compiled in");
    file.number
}

impl Number {
    /// What we have beside it. `None` if it is not among `points`, because only a part was run.
    #[must_use]
    pub fn beside(&self, points: &[Point]) -> Option<String> {
        let Some(ours) = &self.ours else { return Some("not measured".into()) };
        let point = |name: &str| points.iter().find(|point| point.name == name);
        let ours = point(ours)?;
        let Some(over) = &self.over else { return Some(ours.with_unit(&self.unit)) };
        let over = point(over)?;
        let is_predicted = |point: &Point| matches!(point.cell, Cell::Predicted(_));
        let mark = if is_predicted(ours) || is_predicted(over) { " (predicted)" } else { "" };
        Some(match (ours.median(), over.median()) {
            (Some(ours), Some(over)) if self.unit == "%" => {
                format!("{:+.0} %{mark}", 100.0 * (ours / over - 1.0))
            }
            (Some(ours), Some(over)) => format!("{} times{mark}", digits(ours / over)),
            (None, _) => ours.cell.to_string(),
            (_, None) => over.cell.to_string(),
        })
    }
}

/// The document: each number of the paper, ours, and why they differ. `machine` is a line on where and when ours were measured.
///
/// # Panics
/// Never: writing to a string does not fail.
#[must_use]
pub fn document(machine: &str, points: &[Point]) -> String {
    let mut text = format!(
        "# The evaluation of slow and fast memories\n\n\
        Written by `./x bench nvm -- --document docs/evaluation.md`, not by hand. [benchmarks.md](benchmarks.md#nvm) describes how it measures.\n\
        The paper is Caulfield et al., \"Understanding the Impact of Emerging Non-Volatile Memories on High-Performance, IO-Intensive Computing\", SC 2010.\n\
        The table has every number of its text, from [`paper.toml`](../benches/nvm/paper.toml). Ours are medians with the extremes; `floor` means that the path on\n\
        which we measure takes longer than the technology.\n\n\
        {machine}\n\n\
        | place | number | paper | ours | why |\n|---|---|---|---|---|\n"
    );
    for number in numbers() {
        let Some(ours) = number.beside(points) else { continue };
        let contradiction =
            number.contradicts.as_ref().map(|what| format!("The paper contradicts itself: {what}"));
        let why: Vec<String> = number.why.clone().into_iter().chain(contradiction).collect();
        let Number { place, says, value, unit, .. } = &number;
        writeln!(text, "| {place} | {says} | {value} {unit} | {ours} | {} |", why.join(". "))
            .expect("writing to a string does not fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::cell::Spread;
    use super::super::{derived, figures};
    use super::*;
    use crate::nvm::technology::Technologies;

    /// A point of each name that a run gives.
    fn all_points() -> Vec<Point> {
        let technologies = Technologies::built_in();
        let names = figures::names(&technologies).unwrap();
        let point = |name: String| Point {
            name,
            path: "",
            unit: "",
            asked: None,
            floor: None,
            cell: Cell::Measured(Spread::of(&[3.0])),
        };
        let mut points: Vec<Point> = names.into_iter().map(point).collect();
        points.extend(derived::all(&points));
        points
    }

    #[test]
    fn every_number_is_beside_a_cell_or_says_why_not() {
        let points = all_points();
        let numbers = numbers();
        assert!(numbers.len() > 50, "{}", numbers.len());
        for number in numbers {
            assert!(number.ours.is_some() || number.why.is_some(), "{}", number.says);
            assert!(number.over.is_none() || number.ours.is_some(), "{}", number.says);
            let is_ratio = matches!(number.unit.as_str(), "times" | "%");
            assert!(number.over.is_none() || is_ratio, "{}", number.says);
            assert!(number.beside(&points).is_some(), "{}: no such cell", number.says);
        }
    }

    #[test]
    fn ratios_changes_and_floors_are_said() {
        let mut number = numbers().into_iter().find(|number| number.over.is_some()).unwrap();
        let point = |name: &str, cell| Point {
            name: name.into(),
            path: "",
            unit: "",
            asked: None,
            floor: None,
            cell,
        };
        let measured = |value| Cell::Measured(Spread::of(&[value]));
        number.ours = Some("a".into());
        number.over = Some("b".into());
        number.unit = "%".into();
        let points = [point("a", measured(3.0)), point("b", measured(4.0))];
        assert_eq!(number.beside(&points).unwrap(), "-25 %");
        number.unit = "times".into();
        assert_eq!(number.beside(&points).unwrap(), "0.750 times");
        let points = [point("a", Cell::Predicted(2.0)), point("b", measured(4.0))];
        assert_eq!(number.beside(&points).unwrap(), "0.500 times (predicted)");
        let points = [point("a", measured(3.0)), point("b", Cell::Floor)];
        assert_eq!(number.beside(&points).unwrap(), "floor");
        assert_eq!(number.beside(&points[..1]), None, "was not run");
        number.over = None;
        number.unit = "us".into();
        assert_eq!(number.beside(&points).unwrap(), "3.00 us");
    }

    #[test]
    fn document_has_all_numbers() {
        let text = document("a machine", &all_points());
        assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), numbers().len() + 1);
        assert!(text.contains("| not measured | the database is not public |"), "{text}");
        assert!(text.lines().filter(|line| line.starts_with('|')).all(|line| line.matches('|').count() == 6));
    }
}
