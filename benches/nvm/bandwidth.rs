//! Figs 4 and 7: the bandwidth of 16 threads, in this process.

use crate::client::Runs;
use miette::Result;
use pm_bench::nvm::cell::{Cell, Point, Spread};
use pm_bench::nvm::figures::BandwidthCell;
use pm_bench::nvm::load::{Load, Poller};
use pm_bench::nvm::technology::Technology;
use pm_bench::{Pair, Report, median, rounds_of};
use std::time::Duration;

const PATH: &str = "in process";
/// Slower requests give no median of a short run: at least so many are completed.
const LEAST_REQUESTS: f64 = 100.0;
/// A slow cell ends after this time.
const LONGEST: Duration = Duration::from_secs(4);
/// 16 requests on 8 channels reach 8 a latency within 10 %.
const GOAL: f64 = 0.9;

/// Measures the cells, and adds rows of asked against delivered to the report.
pub(crate) fn measure(cells: &[BandwidthCell], runs: Runs, report: &mut Report) -> Result<Vec<Point>> {
    if cells.is_empty() {
        return Ok(Vec::new());
    }
    eprintln!("bandwidth, {PATH}: {} cells", cells.len());
    let mut poller = Poller::default();
    let mut floors: Vec<(Load, f64)> = Vec::new();
    let mut points = Vec::new();
    for cell in cells {
        let load = cell.load;
        let known = floors.iter().find(|(of, _)| *of == load).map(|(_, floor)| *floor);
        let floor = match known {
            Some(floor) => floor,
            None => {
                let rates = rates(&mut poller, &instant(&cell.technology), load, runs.time, runs.count)?;
                floors.push((load, median(rates.iter().copied())));
                median(rates)
            }
        };
        let asked = load.asked_mb_s(&cell.technology);
        let result = if asked > floor {
            Cell::Floor
        } else {
            let needed = Duration::from_secs_f64(LEAST_REQUESTS * load.bytes as f64 / (asked * 1e6));
            let time = runs.time.max(needed).min(LONGEST);
            let rates = rates(&mut poller, &cell.technology, load, time, runs.count)?;
            let pairs = rates.iter().map(|rate| Pair { ours: *rate, theirs: asked }).collect();
            report.row(&cell.name, "asked", "MB/s", pairs, Some(GOAL));
            Cell::Measured(Spread::of(&rates))
        };
        points.push(Point {
            name: cell.name.clone(),
            path: PATH,
            unit: "MB/s",
            asked: Some(asked),
            floor: Some(floor),
            cell: result,
        });
    }
    Ok(points)
}

fn rates(
    poller: &mut Poller,
    technology: &Technology,
    load: Load,
    time: Duration,
    count: usize,
) -> Result<Vec<f64>> {
    let rounds: Vec<[f64; 1]> = rounds_of(count, |_| Ok(poller.run(technology, load, time)))?;
    Ok(rounds.into_iter().flatten().collect())
}

/// A device without any delay, so that only the thread that polls takes time.
fn instant(like: &Technology) -> Technology {
    Technology {
        read_ns: 0,
        write_ns: 0,
        read_mb_s: u64::MAX,
        write_mb_s: u64::MAX,
        request_ns: 0,
        fixed_ns: 0,
        write_cache_bytes: 0,
        seek_ns: 0,
        rotation_ns: 0,
        ..like.clone()
    }
}
