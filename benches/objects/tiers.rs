//! Loads from DRAM, emulated phase-change memory and emulated flash: chunks that move by their use, against the best places that do not change.

use miette::{IntoDiagnostic as _, Result};
use pm_bench::{Cli, Pair, Plot, Report, Series, processor_time};
use pm_core::Region;
use pm_core::emulation::{Emulated, Preset, Speed};
use pm_objects::{Contents, Object, Objects, ObjectsOptions, Tier};
use std::hint::black_box;
use std::time::Duration;

/// The number of chunks. Each is an object.
const CHUNKS: usize = 10_000;
/// A tenth: whole pages of frames.
const IN_DRAM: usize = 63 * 16;

type Chunk = [u64; 512];
type Memory = Emulated<Region>;

/// The loads between two looks at the clock.
const BATCH: usize = 100;

/// A pool whose chunks are in three tiers.
struct Pool {
    objects: Objects<Memory>,
    handles: Vec<Object<u64, Memory>>,
    random: u64,
}

/// What a store to flash takes, of one page of a batch: 200 us by each of eight channels.
const STORE_IN_BATCH: Duration = Duration::from_micros(25);

/// What a move of a chunk to flash takes, with the transaction, and what a move up takes more than its loads.
const MOVE_DOWN: Duration = Duration::from_micros(60);

fn emulated(bytes: usize, speed: &Speed) -> Result<Memory> {
    let region = Region::anonymous((bytes as u64).next_multiple_of(4096)).into_diagnostic()?;
    Emulated::new(region, speed).into_diagnostic()
}

impl Pool {
    /// A pool with room for a part of the chunks.
    fn new(percent_in_pool: usize) -> Result<Self> {
        // With the owners of the slots.
        let bytes = CHUNKS * percent_in_pool * 4096 / 98;
        let options = ObjectsOptions::new().dram_bytes((IN_DRAM * size_of::<Chunk>()) as u64).latencies(
            Duration::from_nanos(60),
            Duration::from_nanos(85),
            Duration::from_micros(25),
            MOVE_DOWN,
        );
        // For the objects themselves and their names.
        let pool = emulated(bytes + (4 << 20), &Preset::Pcm.speed())?;
        let file = emulated(CHUNKS * 4096 * 2, &Preset::Nand.speed().write_access(STORE_IN_BATCH))?;
        let objects = Objects::format_with_file(pool, file, &options).into_diagnostic()?;
        let create = |number: usize| {
            objects.create(&format!("chunk {number}"), Contents::Slice(&[number as u64; 512]))
        };
        let handles = (0..CHUNKS).map(create).collect::<Result<_, _>>().into_diagnostic()?;
        Ok(Self { objects, handles, random: 1 })
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 27
    }

    /// Loads 64 bytes of a chunk.
    fn load(&mut self, chunk: usize) -> Result<()> {
        let start = self.random() % 64 * 8;
        let mut loaded = [0_u64; 8];
        self.handles[chunk].read(start, &mut loaded).into_diagnostic()?;
        assert_eq!(black_box(loaded)[7], chunk as u64, "the contents of another chunk");
        Ok(())
    }

    /// Loads of one after the other for some time. Returns the mean time of a load in nanoseconds, of each part of this time. `between` is called
    /// after some loads, and its time is not counted.
    fn run(
        &mut self,
        part: Duration,
        parts: usize,
        next: &dyn Fn(u64) -> usize,
        between: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<Vec<f64>> {
        let mut means = Vec::new();
        for _ in 0..parts {
            let (mut loads, mut spent) = (0, Duration::ZERO);
            while spent < part {
                let begin = processor_time();
                for _ in 0..BATCH {
                    let chunk = next(self.random());
                    self.load(chunk)?;
                }
                spent += processor_time() - begin;
                loads += BATCH;
                between(self)?;
            }
            means.push(spent.as_nanos() as f64 / loads as f64);
        }
        Ok(means)
    }

    /// The number of chunks that the pool has room for, and the number of moves so far.
    fn stats(&self) -> Result<(usize, u64)> {
        let stats = self.objects.stats().into_diagnostic()?;
        let chunks = usize::try_from(stats.chunk_bytes / 4096).into_diagnostic()?;
        Ok((chunks, stats.moves))
    }
}

/// Which chunk a random number means, with a frequency that is inverse to the rank to the power of 0.99. The hot chunks depend on the seed.
fn zipf(seed: u64) -> (Vec<usize>, impl Fn(u64) -> usize) {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=CHUNKS)
        .map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        })
        .collect();
    let mut order: Vec<usize> = (0..CHUNKS).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    let of_rank = order.clone();
    let next = move |random: u64| {
        let at = (random >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        order[sums.partition_point(|sum| *sum < at).min(CHUNKS - 1)]
    };
    (of_rank, next)
}

/// The mean time of a load when the most frequent chunks are in DRAM, the next ones in the pool, and the others in the file.
fn best_static(percent_in_pool: usize, part: Duration, parts: usize, seed: u64) -> Result<f64> {
    let mut pool = Pool::new(percent_in_pool)?;
    let (order, next) = zipf(seed);
    let (room, _) = pool.stats()?;
    for chunk in &order[IN_DRAM + room..] {
        pool.handles[*chunk].pin(Tier::File).into_diagnostic()?;
    }
    for chunk in &order[IN_DRAM..] {
        if pool.handles[*chunk].pin(Tier::Pool).is_err() {
            break;
        }
    }
    for chunk in &order[IN_DRAM + room..] {
        pool.handles[*chunk].pin(Tier::File).into_diagnostic()?;
    }
    for chunk in &order[..IN_DRAM] {
        pool.handles[*chunk].pin(Tier::Dram).into_diagnostic()?;
    }
    let means = pool.run(part, parts, &next, &mut |_| Ok(()))?;
    Ok(pm_bench::median(means))
}

/// The share of loads that move a chunk when all chunks are loaded as often.
fn uniform_moves(percent_in_pool: usize, settle: Duration, measured: Duration) -> Result<f64> {
    let mut pool = Pool::new(percent_in_pool)?;
    let next = |random: u64| usize::try_from(random % CHUNKS as u64).expect("the number of a chunk");
    pool.run(settle, 1, &next, &mut |_| Ok(()))?;
    let before = pool.stats()?.1;
    let mut loads = 0;
    pool.run(measured, 1, &next, &mut |_| {
        loads += BATCH;
        Ok(())
    })?;
    Ok((pool.stats()?.1 - before) as f64 / loads as f64)
}

/// Adds the rows, the facts and the picture.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let part = Duration::from_millis(if cli.quick { 50 } else { 100 });
    // Two seconds.
    let settle = 20;
    let parts = if cli.quick { 10 } else { 20 };
    for percent in [30, 60] {
        let name = |what: &str| format!("{what}, pool {percent} %");
        let fixed = best_static(percent, part, parts, 1)?;
        let mut pool = Pool::new(percent)?;
        let ((_, first), (_, second)) = (zipf(1), zipf(2));
        let nothing = &mut |_: &mut Pool| Ok(());
        let mut curve = pool.run(part, settle + parts, &first, nothing)?;
        let settled = pm_bench::median(curve[settle..].iter().copied());
        let mut scanned = 0;
        let scan = &mut |pool: &mut Pool| {
            // All chunks, one after the other, with the measured loads between.
            for _ in 0..5 {
                pool.load(scanned % CHUNKS)?;
                scanned += 1;
            }
            Ok(())
        };
        let beside_scan = pm_bench::median(pool.run(part, parts, &first, scan)?);
        let moved = pool.run(part, settle + parts, &second, nothing)?;
        let moved_settled = pm_bench::median(moved[settle..].iter().copied());
        curve.extend(moved);
        let pair = |ours: f64, theirs: f64| vec![Pair { ours: 1e9 / ours, theirs: 1e9 / theirs }];
        let goal = (percent < 50).then_some(1.0 / 1.15);
        report.row(name("zipf 0.99"), "best places", "loads/s", pair(settled, fixed), goal);
        report.row(
            name("after the hot set moved"),
            "best places",
            "loads/s",
            pair(moved_settled, fixed),
            goal,
        );
        report.row(name("beside a scan"), "without", "loads/s", pair(beside_scan, settled), Some(0.95));
        let moves = uniform_moves(percent, 60 * part, 20 * part)?;
        report.fact(&name("moves a load, uniform"), format!("{:.2} %", moves * 100.0));
        let points = |means: &[f64]| {
            means.iter().enumerate().map(|(at, mean)| (at as f64 * part.as_secs_f64(), *mean)).collect()
        };
        let series = vec![
            Series { name: "by use".into(), points: points(&curve) },
            Series { name: "best places".into(), points: points(&vec![fixed; curve.len()]) },
        ];
        let plot = Plot {
            title: name("mean load, ns; other chunks are hot in the second half"),
            labels: ["s".into(), "ns".into()],
            logarithmic: [false, false],
            series,
        };
        report.chart(format!("tiers-{percent}"), &plot);
    }
    Ok(())
}
