//! What follows from the measured cells: what file systems add, and where curves cross.

use super::cell::{Cell, Point, Spread, crossing};

/// The two connections of Figs 6 and 7.
pub const BUSES: [&str; 2] = ["memory-bus", "pcie"];

/// All derived cells of these.
#[must_use]
pub fn all(points: &[Point]) -> Vec<Point> {
    let mut derived = added_by_file_systems(points);
    derived.extend(crossings(points));
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
