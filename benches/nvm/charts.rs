//! The charts of the figures.

use crate::paging;
use pm_bench::nvm::cell::Point;
use pm_bench::nvm::derived::{BUSES, curve};
use pm_bench::{BarChart, Plot, Series};

/// The charts, as SVG, and the figures to which they belong. Those of figures that were not measured are left out.
pub(crate) fn all(points: &[Point]) -> Vec<(&'static str, String)> {
    let mut charts = Vec::new();
    for (figure, chart) in [
        ("fig4", bars(points, "fig4", "Fig. 4: bandwidth", "MB/s")),
        ("fig5", bars(points, "fig5", "Fig. 5: latency of 4 KiB", "us")),
        (
            "fig8",
            bars(
                points,
                "fig8",
                "Fig. 8: durable transactions of Berkeley DB, and queries of PostgreSQL",
                "1/s",
            ),
        ),
        ("fig10", slowdowns(points)),
        ("files", bars(points, "files", "Transactions of Postmark, and patches", "1/s")),
    ] {
        if !chart.bars.is_empty() {
            charts.push((figure, chart.to_svg()));
        }
    }
    for (figure, chart) in
        [("fig6", latency_chart(points)), ("fig7", bandwidth_chart(points)), ("fig9", paging_chart(points))]
    {
        charts.push((figure, chart.to_svg()));
    }
    charts
}

/// A bar for each cell of a figure that has this unit and is of a technology, not of a difference.
fn bars(points: &[Point], figure: &str, title: &str, unit: &str) -> BarChart {
    let bar = |point: &Point| {
        let name = point.name.strip_prefix(figure)?.strip_prefix('/')?;
        (point.unit == unit && !name.contains("-adds/")).then_some(())?;
        Some((name.to_owned(), point.median()?))
    };
    BarChart { title: title.into(), unit: unit.into(), bars: points.iter().filter_map(bar).collect() }
}

/// How much slower than in memory each program is that pages.
fn slowdowns(points: &[Point]) -> BarChart {
    let bar = |point: &Point| {
        let parts: Vec<&str> = point.name.split('/').collect();
        let ["fig10", program, technology] = parts[..] else { return None };
        let dram = format!("fig10/{program}/dram");
        let in_memory = points.iter().find(|point| point.name == dram && technology != "dram")?;
        Some((format!("{program}/{technology}"), in_memory.median()? / point.median()?))
    };
    BarChart {
        title: "Fig. 10: programs that page, against memory".into(),
        unit: "times as long".into(),
        bars: points.iter().filter_map(bar).collect(),
    }
}

fn latency_chart(points: &[Point]) -> Plot {
    chart(points, "fig6", "Fig. 6: latency of 4 KiB", "latency of a request, us")
}

fn bandwidth_chart(points: &[Point]) -> Plot {
    chart(points, "fig7", "Fig. 7: bandwidth of 16 threads, 4 KiB", "MB/s")
}

/// The updates a second over the length of the array, a curve for each technology.
fn paging_chart(points: &[Point]) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for point in points {
        let parts: Vec<&str> = point.name.split('/').collect();
        let ["fig9", technology, length] = parts[..] else { continue };
        // The cost of a fault is beside the lengths.
        let (Ok(length), Some(updates)) = (length.parse::<f64>(), point.median()) else { continue };
        let name = technology.to_owned();
        let place = series.iter().position(|curve| curve.name == name).unwrap_or_else(|| {
            series.push(Series { name, points: Vec::new() });
            series.len() - 1
        });
        series[place].points.push((length * paging::MEMORY_MIB, updates));
    }
    Plot {
        title: "Fig. 9: updates a second with 64 MiB of memory".into(),
        labels: ["array, MiB".into(), "updates/s".into()],
        logarithmic: [true, true],
        series,
    }
}

fn chart(points: &[Point], figure: &str, title: &str, unit: &str) -> Plot {
    let curves = BUSES.into_iter().flat_map(|bus| ["read", "write"].map(|kind| (bus, kind)));
    let series = curves.map(|(bus, kind)| Series {
        name: format!("{bus}, {kind}"),
        points: curve(points, figure, bus, kind, Point::median),
    });
    Plot {
        title: title.into(),
        labels: ["latency of the memory, ns".into(), unit.into()],
        logarithmic: [true, true],
        series: series.collect(),
    }
}
