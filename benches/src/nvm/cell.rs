//! The cells of the figures: a number, or why there is none.

use crate::median;
use serde::Serialize;
use std::fmt;

/// The median of several runs, and the extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Of these runs.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn of(runs: &[f64]) -> Self {
        let low = runs.iter().copied().fold(f64::INFINITY, f64::min);
        let high = runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { median: median(runs.iter().copied()), low, high }
    }
}

/// What a cell says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// It was measured.
    Measured(Spread),
    /// It would take too long, and follows from the requests that were counted and the technology's latencies.
    Predicted(f64),
    /// The path alone takes longer than the technology.
    Floor,
    /// It was not measured, for this reason.
    Not(String),
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A count, or what was computed of medians.
            Self::Measured(Spread { median, low, high }) if low == high => f.write_str(&digits(*median)),
            Self::Measured(Spread { median, low, high }) => {
                write!(f, "{} ({}..{})", digits(*median), digits(*low), digits(*high))
            }
            Self::Predicted(value) => write!(f, "{} (predicted)", digits(*value)),
            Self::Floor => f.write_str("floor"),
            Self::Not(why) => f.write_str(why),
        }
    }
}

/// A number with three significant digits, or all before the point.
#[must_use]
pub fn digits(value: f64) -> String {
    let places = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ if value == 0.0 => 0,
        _ => 4,
    };
    format!("{value:.places$}")
}

/// A cell with its place and what belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The name: the figure, the technology and so on.
    pub name: String,
    /// The path on which it was measured.
    pub path: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// What the technology's model says.
    pub asked: Option<f64>,
    /// What the path gives without delay.
    pub floor: Option<f64>,
    /// The result.
    pub cell: Cell,
}

impl Point {
    /// The result with its unit, if it is a number.
    #[must_use]
    pub fn with_unit(&self, unit: &str) -> String {
        match &self.cell {
            Cell::Measured(_) => format!("{} {unit}", self.cell),
            Cell::Predicted(value) => format!("{} {unit} (predicted)", digits(*value)),
            Cell::Floor | Cell::Not(_) => self.cell.to_string(),
        }
    }

    /// The median, or what is predicted. Of a technology that is faster than the path's floor there is none.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        match &self.cell {
            Cell::Measured(spread) => Some(spread.median),
            Cell::Predicted(value) => Some(*value),
            Cell::Floor | Cell::Not(_) => None,
        }
    }
}

/// The x at which `one`, which begins below `other`, reaches it, between points of the same x.
#[must_use]
pub fn crossing(one: &[(f64, f64)], other: &[(f64, f64)]) -> Option<f64> {
    let both = one.iter().filter_map(|(x, y)| {
        other.iter().find(|(other_x, _)| other_x == x).map(|(_, other_y)| (*x, y - other_y))
    });
    let differences: Vec<(f64, f64)> = both.collect();
    differences.array_windows().find_map(|&[(x, before), (next_x, after)]| {
        (before < 0.0 && after >= 0.0).then(|| x + (next_x - x) * before / (before - after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_say_median_and_extremes_or_why_not() {
        let cell = Cell::Measured(Spread::of(&[16.02, 15.98, 19.5]));
        assert_eq!(cell.to_string(), "16.0 (16.0..19.5)");
        assert_eq!(Cell::Measured(Spread::of(&[2.0])).to_string(), "2.00");
        assert_eq!(Cell::Predicted(0.1234).to_string(), "0.123 (predicted)");
        assert_eq!(Cell::Floor.to_string(), "floor");
        assert_eq!(Cell::Not("needs root".into()).to_string(), "needs root");
    }

    #[test]
    fn three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.500"),
            (0.0123, "0.0123"),
            (1.234, "1.23"),
            (99.96, "100.0"),
            (1234.5, "1234"),
            (-5.0, "-5.00"),
        ] {
            assert_eq!(digits(value), text);
        }
    }

    #[test]
    fn curves_cross_between_points() {
        let one = [(100.0, 1.0), (200.0, 3.0), (400.0, 9.0)];
        let other = [(100.0, 5.0), (200.0, 5.0), (300.0, 5.0), (400.0, 5.0)];
        let at = crossing(&one, &other).unwrap();
        assert!((at - (200.0 + 200.0 / 3.0)).abs() < 1e-9, "{at}");
        assert_eq!(crossing(&other, &one), None, "begins above");
        assert_eq!(crossing(&one[..2], &other), None);
    }
}
