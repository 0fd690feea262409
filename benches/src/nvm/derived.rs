//! What follows from the measured cells: what file systems add, and where curves cross.

use super::cell::{Cell, Point, Spread, crossing};
use super::figures;

/// The two connections of Figs 6 and 7.
pub const BUSES: [&str; 2] = ["memory-bus", "pcie"];

/// All derived cells of these.
#[must_use]
pub fn all(points: &[Point]) -> Vec<Point> {
    let mut derived = added_by_file_systems(points);
    derived.extend(crossings(points));
    derived.extend(slowdowns(points));
    derived
}

/// What each file system adds to the latency of each technology, in microseconds and as a part of it.
fn added_by_file_systems(points: &[Point]) -> Vec<Point> {
    let spread_of = |name: &str| {
        let point = points.iter().find(|point| point.name == name)?;
        if let Cell::Measured(spread) = point.cell { Some(spread) } else { None }
    };
    let mut added = Vec::new();
    for point in points.iter().filter(|point| point.name.starts_with("fig5/")) {
        let parts: Vec<&str> = point.name.split('/').collect();
        let [_, technology, layer @ ("xfs" | "ext4"), kind] = parts[..] else { continue };
        let raw = spread_of(&format!("fig5/{technology}/raw/{kind}"));
        let (Some(raw), Some(with)) = (raw, spread_of(&point.name)) else { continue };
        let derived = |part: &str, unit, of: &dyn Fn(f64, f64) -> f64| Point {
            name: format!("fig5/{technology}/{layer}-adds/{kind}/{part}"),
            path: point.path,
            unit,
            asked: None,
            floor: None,
            // At worst, the extremes were those of different moments.
            cell: Cell::Measured(Spread {
                median: of(with.median, raw.median),
                low: of(with.low, raw.high),
                high: of(with.high, raw.low),
            }),
        };
        added.push(derived("us", "us", &|with, raw| with - raw));
        added.push(derived("percent", "%", &|with, raw| 100.0 * (with / raw - 1.0)));
    }
    added
}

/// The latency at which the memory bus takes longer than PCI Express.
fn crossings(points: &[Point]) -> Vec<Point> {
    let crossing_of = |kind: &str| {
        let curves = BUSES.map(|bus| curve(points, "fig6", bus, kind, Point::median));
        let asked = BUSES.map(|bus| curve(points, "fig6", bus, kind, |point| point.asked));
        let at = crossing(&curves[0], &curves[1]);
        let none = || Cell::Not("the curves do not cross".into());
        (!curves[0].is_empty()).then(|| Point {
            name: format!("fig6/crossing/{kind}"),
            path: "zram",
            unit: "ns",
            asked: crossing(&asked[0], &asked[1]),
            floor: None,
            cell: at.map_or_else(none, |at| Cell::Measured(Spread { median: at, low: at, high: at })),
        })
    };
    ["read", "write"].into_iter().filter_map(crossing_of).collect()
}

/// How much slower than in memory programs are that page to each technology: the geometric mean of all of them.
fn slowdowns(points: &[Point]) -> Vec<Point> {
    let point = |program: &str, technology: &str| {
        let name = figures::paged(program, technology);
        points.iter().find(|point| point.name == name)
    };
    let of_first = points.iter().filter_map(|point| {
        let prefix = figures::paged(figures::PAGED_PROGRAMS[0], "");
        point.name.strip_prefix(&prefix).filter(|technology| *technology != "dram")
    });
    let slowdown = |technology: &str| {
        let mut product = 1.0;
        let mut is_predicted = false;
        for program in figures::PAGED_PROGRAMS {
            let (paged, in_memory) = (point(program, technology)?, point(program, "dram")?);
            product *= in_memory.median()? / paged.median()?;
            is_predicted |= matches!(paged.cell, Cell::Predicted(_));
        }
        let mean = f64::powf(product, 1.0 / figures::PAGED_PROGRAMS.len() as f64);
        let cell = if is_predicted {
            Cell::Predicted(mean)
        } else {
            Cell::Measured(Spread { median: mean, low: mean, high: mean })
        };
        let name = figures::paged("slowdown", technology);
        Some(Point { name, path: "swap on zram", unit: "times", asked: None, floor: None, cell })
    };
    of_first.filter_map(slowdown).collect()
}

/// The points of one curve of Fig. 6 or 7, over nanoseconds of the memory.
#[must_use]
pub fn curve(
    points: &[Point],
    figure: &str,
    bus: &str,
    kind: &str,
    value: impl Fn(&Point) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let point = |point: &Point| {
        let parts: Vec<&str> = point.name.split('/').collect();
        let [name, of, ns, direction] = parts[..] else { return None };
        (name == figure && of == bus && direction == kind).then_some(())?;
        Some((ns.parse().ok()?, value(point)?))
    };
    points.iter().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdown_is_the_mean_of_programs_that_all_ran() {
        let point = |program: &str, technology: &str, cell| Point {
            name: figures::paged(program, technology),
            path: "",
            unit: "1/s",
            asked: None,
            floor: None,
            cell,
        };
        let mut points = Vec::new();
        for (program, times) in figures::PAGED_PROGRAMS.into_iter().zip([2.0, 4.0, 8.0]) {
            points.push(point(program, "dram", Cell::Measured(Spread::of(&[40.0]))));
            points.push(point(program, "flash", Cell::Measured(Spread::of(&[40.0 / times]))));
            points.push(point(program, "disk", Cell::Predicted(0.4)));
        }
        points.push(point("is", "pcm", Cell::Measured(Spread::of(&[1.0]))));
        points.push(point("cg", "pcm", Cell::Floor));
        let slowdowns = slowdowns(&points);
        let names: Vec<&str> = slowdowns.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names, ["fig10/slowdown/flash", "fig10/slowdown/disk"]);
        assert!((slowdowns[0].median().unwrap() - 4.0).abs() < 1e-9);
        assert!((slowdowns[1].median().unwrap() - 100.0).abs() < 1e-9);
        assert!(matches!(slowdowns[1].cell, Cell::Predicted(_)), "as its parts are");
    }
}
