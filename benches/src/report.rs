//! The report of a benchmark: a table, a JSON file, and charts.

use crate::pairs::quartiles;
use crate::plot::{self, short};
use crate::{Pair, Plot, median};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One comparison.
#[derive(Clone, Debug)]
pub struct Row {
    /// The names of the measured operation and of the rival.
    label: [String; 2],
    unit: &'static str,
    pairs: Vec<Pair>,
    goal: Option<f64>,
}

impl Row {
    /// The median of the pairs' ratios.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.ratio()))
    }

    fn label(&self) -> String {
        self.label.join(" / ")
    }

    /// Whether the ratio reaches the goal, both rounded to two decimals, which is the precision of such measurements.
    fn is_met(&self) -> bool {
        self.goal.is_none_or(|goal| (self.ratio() * 100.0).round() >= (goal * 100.0).round())
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

    /// The ratio with its quartiles and the goal. A ratio of one pair could be off by any amount, so it is not printed.
    fn verdict(&self) -> String {
        if self.pairs.len() == 1 {
            return format!("{:>6}  one round", "-");
        }
        let (low, high) = self.spread();
        let verdict = if self.is_met() { "met" } else { "MISSED" };
        let goal = self.goal.map_or_else(String::new, |goal| format!(">= {goal:.2} {verdict}"));
        format!("{:>6.3}  {low:.3}..{high:.3}  {goal}", self.ratio())
    }

    fn to_json(&self) -> Value {
        let [name, rival] = &self.label;
        let (low, high) = self.spread();
        json!({
            "name": name,
            "rival": rival,
            "unit": self.unit,
            "ours": self.ours(),
            "theirs": self.theirs(),
            "ratio": self.ratio(),
            "ratio_quartiles": [low, high],
            "goal": self.goal,
            "met": self.is_met(),
            "rounds": self.pairs.len(),
            "pairs": self.pairs,
        })
    }
}

/// All comparisons of one benchmark, with a description of the machine.
#[derive(Clone, Debug)]
pub struct Report {
    name: &'static str,
    machine: Machine,
    facts: Map<String, Value>,
    data: Map<String, Value>,
    rows: Vec<Row>,
    charts: Vec<(String, String)>,
    page: Option<String>,
}

impl Report {
    /// An empty report for this machine.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            machine: Machine::here(),
            facts: Map::new(),
            data: Map::new(),
            rows: Vec::new(),
            charts: Vec::new(),
            page: None,
        }
    }

    /// Adds a parameter or a side result, printed above the table: a version, a size, the instructions in use.
    pub fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// Adds data that only the JSON file contains.
    pub fn data(&mut self, name: &str, value: impl Into<Value>) {
        self.data.insert(name.to_owned(), value.into());
    }

    /// Adds a chart, saved as `BENCH-NAME.svg`.
    pub fn chart(&mut self, name: impl Into<String>, plot: &Plot) {
        self.svg(name, plot.to_svg());
    }

    /// Adds a chart that is drawn already.
    pub fn svg(&mut self, name: impl Into<String>, svg: String) {
        self.charts.push((name.into(), svg));
    }

    /// The report as HTML, saved as `BENCH.html`.
    pub fn page(&mut self, html: String) {
        self.page = Some(html);
    }

    /// Adds a comparison: the operation, the rival, the unit of throughput, the measured pairs, and the least ratio that meets the goal, if
    /// there is a goal.
    ///
    /// # Panics
    /// If there are no pairs.
    pub fn row(
        &mut self,
        name: impl Into<String>,
        rival: impl Into<String>,
        unit: &'static str,
        pairs: Vec<Pair>,
        goal: Option<f64>,
    ) {
        assert!(!pairs.is_empty(), "nothing was measured");
        self.rows.push(Row { label: [name.into(), rival.into()], unit, pairs, goal });
    }

    /// The comparisons, in the order in which they were added.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The number of goals that were missed.
    #[must_use]
    pub fn missed_count(&self) -> usize {
        self.rows.iter().filter(|row| !row.is_met()).count()
    }

    /// The machine, its kernel, the date, and the load of other programs before the start.
    #[must_use]
    pub fn machine_line(&self) -> String {
        let Machine { cpu, cpu_count, kernel, date, load, .. } = &self.machine;
        let load = load.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.1}"));
        format!("{cpu} x {cpu_count}, Linux {kernel}, {date}, load before the start {load}.")
    }

    /// The machine, the facts, and one line for each comparison.
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
                "ours / theirs", "ours", "theirs", "ratio", "quartiles"
            ),
        );
        for row in &self.rows {
            let measured = format!(
                "{:width$}  {:>10} {:>10} {:6}",
                row.label(),
                short(row.ours()),
                short(row.theirs()),
                row.unit,
            );
            put(&mut text, format_args!("{measured} {}\n", row.verdict()));
        }
        text
    }

    /// The whole report, with each single pair.
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

    /// Writes `NAME.json`, `NAME.svg` and the other charts into `directory`, which is created if it does not exist. Returns the path of the
    /// JSON file.
    pub fn save(&self, directory: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(directory)?;
        let json = directory.join(self.name).with_extension("json");
        fs::write(&json, serde_json::to_string_pretty(&self.to_json())? + "\n")?;
        let bars: Vec<_> = self.rows.iter().map(|row| (row.label(), row.ratio(), row.goal)).collect();
        fs::write(json.with_extension("svg"), plot::bars(self.name, &bars))?;
        if let Some(page) = &self.page {
            fs::write(json.with_extension("html"), page)?;
        }
        for (name, svg) in &self.charts {
            fs::write(directory.join(format!("{}-{name}.svg", self.name)), svg)?;
        }
        Ok(json)
    }
}

/// Appends to a string, which cannot fail.
fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a string does not fail");
}

/// The machine that a report was measured on. Values that the system does not provide are `unknown` or `None`.
#[derive(Clone, Debug, Serialize)]
struct Machine {
    cpu: String,
    /// The processors that this process may use.
    cpu_count: usize,
    /// The frequency at the start.
    cpu_mhz: Option<f64>,
    /// The kernel's clock source.
    clock: String,
    kernel: String,
    /// The start, in seconds since 1970, UTC.
    unix_time_s: i64,
    date: String,
    /// The load average of the minute before the start. More than one: the machine was busy.
    load: Option<f64>,
}

impl Machine {
    fn here() -> Self {
        let line = |path| {
            fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
        };
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let now = Timestamp::now();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_mhz: field(&cpuinfo, "cpu MHz").and_then(|mhz| mhz.parse().ok()),
            clock: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            kernel: line("/proc/sys/kernel/osrelease"),
            unix_time_s: now.as_second(),
            date: now.strftime("%F").to_string(),
            load: line("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()),
        }
    }
}

/// The first value of `name` in a list of `name : value` lines.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ours: &[f64], goal: Option<f64>) -> Report {
        let mut report = Report::new("unit-test");
        for &ours in ours {
            report.row("64 B", "C", "op/s", vec![Pair { ours, theirs: 1000.0 }; 3], goal);
        }
        report
    }

    #[test]
    fn goal_is_compared_to_two_decimals() {
        assert_eq!(report(&[945.1], Some(0.95)).missed_count(), 0);
        assert_eq!(report(&[944.0], Some(0.95)).missed_count(), 1);
        assert_eq!(report(&[1.0], None).missed_count(), 0);
    }

    #[test]
    fn one_disturbed_pair_does_not_move_median() {
        let disturbed = Pair { ours: 10.0, theirs: 1000.0 };
        let calm = Pair { ours: 500.0, theirs: 500.0 };
        let mut report = Report::new("unit-test");
        report.row("", "", "", vec![calm, disturbed, calm], None);
        assert_eq!(report.rows()[0].ratio(), 1.0);
    }

    #[test]
    fn table_and_file_agree() {
        let mut report = report(&[2_500_000.0, 900.0], Some(0.95));
        report.fact("instructions", "clwb+nt64");
        report.data("points", vec![1, 2]);
        let labels = ["x", "y"].map(str::to_owned);
        report.page("<!doctype html>".into());
        report.chart("points", &Plot { title: "points".into(), labels, ..Plot::default() });
        let table = report.table();
        assert!(!table.contains("points"), "{table}");
        assert!(table.contains("  instructions: clwb+nt64\n"), "{table}");
        assert!(table.contains("2.50 M") && table.contains(">= 0.95 met"), "{table}");
        assert!(table.contains("0.900") && table.contains("MISSED"), "{table}");
        assert_eq!(report.missed_count(), 1);

        let directory = tempfile::tempdir().unwrap();
        let path = report.save(&directory.path().join("new")).unwrap();
        let json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(json["rows"][1]["ratio"], 0.9);
        assert_eq!(json["rows"][1]["met"], false);
        assert_eq!(json["rows"][0]["pairs"].as_array().unwrap().len(), 3);
        assert_eq!(json["facts"]["instructions"], "clwb+nt64");
        assert_eq!(json["data"]["points"][1], 2);
        assert_eq!(fs::read_to_string(path.with_extension("html")).unwrap(), "<!doctype html>");
        for name in ["unit-test-points.svg", "unit-test.svg"] {
            assert!(fs::read_to_string(path.with_file_name(name)).unwrap().starts_with("<svg"), "{name}");
        }
    }

    #[test]
    fn ratio_of_one_pair_is_not_printed() {
        let mut report = Report::new("unit-test");
        report.row("64 B", "C", "op/s", vec![Pair { ours: 1234.0, theirs: 1000.0 }], Some(0.95));
        let table = report.table();
        assert!(table.contains("one round") && !table.contains("1.234"), "{table}");
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 2\nmodel name\t: A CPU: the second\n";
        assert_eq!(field(text, "model name"), Some("A CPU: the second"));
        assert_eq!(field(text, "name"), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_processor() {
        let here = Machine::here();
        assert_ne!(here.kernel, "unknown");
        assert!(here.cpu_count >= 1);
    }
}
