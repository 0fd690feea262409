//! Our persist through the seam against a C loop of the same instructions: the cost of the trait, the bounds checks, the choice of
//! instructions at run time, and the atomics. `docs/benchmarks.md` explains the table.

mod in_c;

use clap::Parser;
use in_c::CMapping;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use pm_bench::{Cli, Pair, Report, Side, processor_time, rounds};
use pm_core::{FenceError, Pmem, Region, RegionOptions};
use std::path::PathBuf;
use std::process::ExitCode;

/// Much more than the caches hold, so that every access misses.
const REGION_BYTES: u64 = 512 << 20;

/// The bytes that one side persists in a round: enough to make reading the clock negligible, and so few that the machine's state does not change
/// between the sides of a pair.
const ROUND_BYTES: u64 = 8 << 20;

/// The lengths of a log entry, a record, a block, and a long value.
const LENGTHS: [usize; 4] = [64, 256, 4096, 256 << 10];
const LONGEST: usize = LENGTHS[3];

/// The way of bytes to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Through the cache: store, flush, fence.
    Store,
    /// Around the cache: non-temporal store, fence.
    Stream,
}

/// Our persist of 64 B to 256 KB at random offsets against a C loop of the same instructions.
#[derive(Debug, Parser)]
#[command(name = "core", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// The directory of the file: on a tmpfs, or on a file system mounted with -o dax.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let directory = tempfile::tempdir_in(&options.dir)
        .into_diagnostic()
        .wrap_err_with(|| options.dir.display().to_string())?;
    let path = directory.path().join("bench.pm");
    let region = RegionOptions::new().populate(true).create(&path, REGION_BYTES).into_diagnostic()?;
    let c = CMapping::new(&path, REGION_BYTES).into_diagnostic()?;
    let round_count = options.cli.round_count(192, 24);

    let mut report = Report::new("core");
    report.fact("instructions", region.insns().to_string());
    report.fact("medium", region.medium().name());
    report.fact("region_bytes", REGION_BYTES);
    report.fact("round_bytes", ROUND_BYTES);
    report.fact("rounds", round_count);
    for (way, name) in [(Way::Store, "store + flush + fence"), (Way::Stream, "store_nt + fence")] {
        for len in LENGTHS {
            let pairs = compare(&region, &c, way, len, round_count)?;
            report.row(format!("{} {name}", human(len)), "C", "op/s", pairs, Some(0.95));
        }
    }
    options.cli.finish(&report)
}

/// The pairs of one row. Both sides persist the same bytes at the same offsets, but at different times, so that neither finds lines in the
/// cache that the other has just used.
fn compare(region: &Region, c: &CMapping, way: Way, len: usize, round_count: usize) -> Result<Vec<Pair>> {
    let offsets = Offsets::new(REGION_BYTES, ROUND_BYTES, len as u64);
    let source: Vec<u8> = (0..=250).cycle().take(LONGEST).collect();
    let theirs = c
        .persist(way, region.insns(), len)
        .ok_or_else(|| miette!("the C side has no loop for {} and {len} bytes", region.insns()))?;
    let mut round = [0_usize; 2];
    let [pairs] = rounds(round_count, |side| {
        let turn = &mut round[usize::from(side == Side::Theirs)];
        let chunk = offsets.chunk(*turn, side);
        *turn += 1;
        let begin = processor_time();
        match side {
            Side::Ours => persist(region, way, chunk, &source[..len]).into_diagnostic()?,
            Side::Theirs => theirs.run(chunk, &source[..len]),
        }
        Ok([chunk.len() as f64 / (processor_time() - begin).as_secs_f64()])
    })?;
    Ok(pairs)
}

fn human(len: usize) -> String {
    if len < 1024 { format!("{len} B") } else { format!("{} KB", len / 1024) }
}

/// All multiples of a length in random order, in chunks of one round each.
#[derive(Debug)]
struct Offsets {
    offsets: Vec<u64>,
    per_chunk: usize,
}

impl Offsets {
    /// For accesses of `len` bytes, which divides `round_bytes`, which divides `region_bytes`. The order is always the same.
    fn new(region_bytes: u64, round_bytes: u64, len: u64) -> Self {
        let mut offsets: Vec<u64> =
            (0..region_bytes).step_by(usize::try_from(len).expect("a length")).collect();
        fastrand::Rng::with_seed(0x6A09_E667_F3BC_C908).shuffle(&mut offsets);
        Self { offsets, per_chunk: usize::try_from(round_bytes / len).expect("a count") }
    }

    /// The offsets of a side's turn `turn`. The sides are half the region apart, so that lines which the other side has used are no longer in
    /// the caches. After a whole number of passes both have done the same work.
    fn chunk(&self, turn: usize, side: Side) -> &[u64] {
        let count = self.offsets.len() / self.per_chunk;
        let ahead = if side == Side::Theirs { count / 2 } else { 0 };
        let start = (turn + ahead) % count * self.per_chunk;
        &self.offsets[start..start + self.per_chunk]
    }
}

/// Our side: persists `source` at each offset. The length is a constant for the compiler, as on the C side.
fn persist(region: &Region, way: Way, offsets: &[u64], source: &[u8]) -> Result<(), FenceError> {
    match source.len() {
        64 => of_length::<64>(region, way, offsets, source),
        256 => of_length::<256>(region, way, offsets, source),
        4096 => of_length::<4096>(region, way, offsets, source),
        0x4_0000 => of_length::<0x4_0000>(region, way, offsets, source),
        other => panic!("no loop for {other} bytes"),
    }
}

fn of_length<const LEN: usize>(
    region: &Region,
    way: Way,
    offsets: &[u64],
    source: &[u8],
) -> Result<(), FenceError> {
    let source: &[u8; LEN] = source.try_into().expect("the length was matched");
    match way {
        Way::Store => store::<LEN>(region, offsets, source),
        Way::Stream => stream::<LEN>(region, offsets, source),
    }
}

#[inline(never)]
fn store<const LEN: usize>(region: &Region, offsets: &[u64], source: &[u8; LEN]) -> Result<(), FenceError> {
    for &offset in offsets {
        region.store(offset, source);
        region.flush(offset, LEN as u64);
        region.fence()?;
    }
    Ok(())
}

#[inline(never)]
fn stream<const LEN: usize>(region: &Region, offsets: &[u64], source: &[u8; LEN]) -> Result<(), FenceError> {
    for &offset in offsets {
        region.store_nt(offset, source);
        region.fence()?;
    }
    Ok(())
}
