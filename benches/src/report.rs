//! The result of a benchmark: a table for people, a file for machines, a picture for both.

use crate::pairs::quartiles;
use crate::plot::{self, short};
use crate::{Machine, Pair, Plot, median};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// This much at the least.
    AtLeast(f64),
    /// Nothing: the ratio is there to be known.
    None,
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Row {
    name: String,
    rival: String,
    unit: &'static str,
    pairs: Vec<Pair>,
    goal: Goal,
}

impl Row {
    /// What was measured, against whom, in which unit of throughput, with which outcome.
    ///
    /// # Panics
    /// If there are no pairs.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        rival: impl Into<String>,
        unit: &'static str,
        pairs: Vec<Pair>,
        goal: Goal,
    ) -> Self {
        assert!(!pairs.is_empty(), "nothing was measured");
        Self { name: name.into(), rival: rival.into(), unit, pairs, goal }
    }

    /// The median of the pairs' ratios: how many times as fast ours is.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.ratio()))
    }

    /// What was measured, and against whom.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} / {}", self.name, self.rival)
    }

    /// The ratio that is wanted.
    #[must_use]
    pub const fn goal(&self) -> Option<f64> {
        match self.goal {
            Goal::AtLeast(ratio) => Some(ratio),
            Goal::None => None,
        }
    }

    /// Whether the ratio is as high as wanted, to two decimals, which is more than such measurements can
    /// tell.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.goal().is_none_or(|goal| (self.ratio() * 100.0).round() >= (goal * 100.0).round())
    }

    fn ours(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.ours))
    }

    fn theirs(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.theirs))
    }

    fn spread(&self) -> (f64, f64) {
        quartiles(self.pairs.iter().map(|pair| pair.ratio()))
    }

    fn to_json(&self) -> Value {
        let (low, high) = self.spread();
        json!({
            "name": self.name,
            "rival": self.rival,
            "unit": self.unit,
            "ours": self.ours(),
            "theirs": self.theirs(),
            "ratio": self.ratio(),
            "ratio_quartiles": [low, high],
            "goal": self.goal(),
            "met": self.is_met(),
            "rounds": self.pairs.len(),
            "pairs": self.pairs,
        })
    }
}

/// All comparisons of one benchmark, and the machine they were made on.
#[derive(Clone, Debug)]
pub struct Report {
    name: &'static str,
    machine: Machine,
    facts: Map<String, Value>,
    data: Map<String, Value>,
    rows: Vec<Row>,
    pictures: Vec<(String, String)>,
}

impl Report {
    /// No comparison yet, on this machine.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            machine: Machine::here(),
            facts: Map::new(),
            data: Map::new(),
            rows: Vec::new(),
            pictures: Vec::new(),
        }
    }

    /// Notes something that the results depend on: a version, a size, the instructions chosen.
    pub fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// Keeps what is too much for the table: only the file for machines has it.
    pub fn data(&mut self, name: &str, value: impl Into<Value>) {
        self.data.insert(name.to_owned(), value.into());
    }

    /// Adds a picture, saved as `BENCH-NAME.svg`.
    pub fn picture(&mut self, name: impl Into<String>, plot: &Plot) {
        self.pictures.push((name.into(), plot.to_svg()));
    }

    /// Adds a comparison.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The comparisons that are not what is wanted.
    #[must_use]
    pub fn missed(&self) -> Vec<&Row> {
        self.rows.iter().filter(|row| !row.is_met()).collect()
    }

    /// For people: the machine, and one line a comparison.
    #[must_use]
    pub fn table(&self) -> String {
        let Machine { cpu, cpu_count, kernel, date, .. } = &self.machine;
        let mut text = format!("{}: {cpu} x {cpu_count}, Linux {kernel}, {date}\n", self.name);
        for (name, value) in &self.facts {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            put(&mut text, format_args!("  {name}: {value}\n"));
        }
        if self.rows.is_empty() {
            return text;
        }
        let width = self.rows.iter().map(|row| row.label().chars().count()).max().unwrap_or(0);
        put(
            &mut text,
            format_args!(
                "\n{:width$}  {:>10} {:>10}        {:>6}  {:>13}  goal\n",
                "ours / theirs", "ours", "theirs", "ratio", "half of them"
            ),
        );
        for row in &self.rows {
            let (low, high) = row.spread();
            let goal = row.goal().map_or_else(String::new, |goal| {
                format!(">= {goal:.2} {}", if row.is_met() { "met" } else { "MISSED" })
            });
            put(
                &mut text,
                format_args!(
                    "{:width$}  {:>10} {:>10} {:6} {:>6.3}  {low:.3}..{high:.3}  {goal}\n",
                    row.label(),
                    short(row.ours()),
                    short(row.theirs()),
                    row.unit,
                    row.ratio(),
                ),
            );
        }
        text
    }

    /// For machines: everything, each single pair too.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "bench": self.name,
            "machine": self.machine,
            "facts": self.facts,
            "data": self.data,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        })
    }

    /// Writes `NAME.json`, `NAME.svg` and further pictures into `directory`, which is made if need be; the path of the
    /// first.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, directory: &Path) -> io::Result<PathBuf> {
        std::fs::create_dir_all(directory)?;
        let json = directory.join(self.name).with_extension("json");
        std::fs::write(&json, serde_json::to_string_pretty(&self.to_json())? + "\n")?;
        let bars: Vec<_> = self.rows.iter().map(|row| (row.label(), row.ratio(), row.goal())).collect();
        std::fs::write(json.with_extension("svg"), plot::bars(self.name, &bars))?;
        for (name, svg) in &self.pictures {
            std::fs::write(directory.join(format!("{}-{name}.svg", self.name)), svg)?;
        }
        Ok(json)
    }
}

/// Appends to a string, which cannot fail.
fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: f64, goal: Goal) -> Row {
        Row::new("64 B", "C", "op/s", vec![Pair { ours, theirs: 1000.0 }; 3], goal)
    }

    #[test]
    fn goal_is_compared_to_two_decimals() {
        assert!(row(945.1, Goal::AtLeast(0.95)).is_met());
        assert!(!row(944.0, Goal::AtLeast(0.95)).is_met());
        assert!(row(1.0, Goal::None).is_met());
    }

    #[test]
    fn one_disturbed_pair_does_not_move_median() {
        let disturbed = Pair { ours: 10.0, theirs: 1000.0 };
        let calm = Pair { ours: 500.0, theirs: 500.0 };
        assert_eq!(Row::new("", "", "", vec![calm, disturbed, calm], Goal::None).ratio(), 1.0);
    }

    #[test]
    fn table_and_file_agree() {
        let mut report = Report::new("unit-test");
        report.fact("instructions", "clwb+nt64");
        report.push(row(2_500_000.0, Goal::AtLeast(0.95)));
        report.push(row(900.0, Goal::AtLeast(0.95)));
        report.data("points", vec![1, 2]);
        report.picture("points", &Plot::new("points", "x", "y"));
        let table = report.table();
        assert!(!table.contains("points"), "{table}");
        assert!(table.contains("  instructions: clwb+nt64\n"), "{table}");
        assert!(table.contains("2.50 M") && table.contains(">= 0.95 met"), "{table}");
        assert!(table.contains("0.900") && table.contains("MISSED"), "{table}");
        assert_eq!(report.missed().len(), 1);

        let directory = tempfile::tempdir().unwrap();
        let path = report.save(&directory.path().join("new")).unwrap();
        let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(json["rows"][1]["ratio"], 0.9);
        assert_eq!(json["rows"][1]["met"], false);
        assert_eq!(json["rows"][0]["pairs"].as_array().unwrap().len(), 3);
        assert_eq!(json["facts"]["instructions"], "clwb+nt64");
        assert_eq!(json["data"]["points"][1], 2);
        assert!(
            std::fs::read_to_string(path.with_file_name("unit-test-points.svg")).unwrap().starts_with("<svg")
        );
        assert!(std::fs::read_to_string(path.with_extension("svg")).unwrap().starts_with("<svg"));
    }
}
