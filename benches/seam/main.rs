//! Our persist through the seam against a C loop of the same instructions: what do the trait, the bounds
//! checks, the choice of instructions at run time and the atomics cost? `docs/benchmarks.md` says how to read
//! the table.

mod in_c;

use clap::Parser;
use in_c::CMapping;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use pm_bench::{Cli, Goal, Report, Row, Side, processor_time, rounds};
use pm_core::{FenceError, Pmem, Region, RegionOptions};
use std::path::PathBuf;
use std::process::ExitCode;

/// Far more than any cache holds, so that every access misses.
const REGION_BYTES: u64 = 512 << 20;

/// What one round of one side persists: long enough that looking at the clock costs nothing, short enough
/// that both sides of a pair see the same machine.
const ROUND_BYTES: u64 = 8 << 20;

/// Lengths as they occur: a log entry, a record, a block, a long value.
const LENGTHS: [usize; 4] = [64, 256, 4096, 256 << 10];
const LONGEST: usize = LENGTHS[3];

/// How bytes get to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Through the cache: store, flush, fence.
    Store,
    /// Around it: non-temporal store, fence.
    Stream,
}

/// Our persist of 64 B to 256 KB at random offsets against a C loop of the same instructions.
#[derive(Debug, Parser)]
#[command(name = "core", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// The directory of the file that is persisted to: a tmpfs, or a file system mounted with -o dax.
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
            let row = compare(&region, &c, way, len, round_count)?;
            report.push(Row::new(format!("{} {name}", human(len)), "C", "op/s", row, Goal::AtLeast(0.95)));
        }
    }
    options.cli.finish(&report)
}

/// The pairs of one row: both sides persist the same bytes at the same offsets, but not at the same time, so
/// that neither finds in the cache what the other has just touched.
fn compare(
    region: &Region,
    c: &CMapping,
    way: Way,
    len: usize,
    round_count: usize,
) -> Result<Vec<pm_bench::Pair>> {
    let offsets = Offsets::new(REGION_BYTES, ROUND_BYTES, len as u64);
    let source: Vec<u8> = (0..=250).cycle().take(LONGEST).collect();
    let theirs = c
        .persist(way, region.insns(), len)
        .ok_or_else(|| miette!("the C side has no loop for {} and {len} bytes", region.insns()))?;
    let mut round = [0_usize; 2];
    rounds(round_count, |side| {
        let turn = &mut round[usize::from(side == Side::Theirs)];
        let chunk = offsets.chunk(*turn, side);
        *turn += 1;
        let begin = processor_time();
        match side {
            Side::Ours => persist(region, way, chunk, &source[..len]).into_diagnostic()?,
            Side::Theirs => theirs.run(chunk, &source[..len]),
        }
        Ok(chunk.len() as f64 / (processor_time() - begin).as_secs_f64())
    })
}

fn human(len: usize) -> String {
    if len < 1024 { format!("{len} B") } else { format!("{} KB", len / 1024) }
}

/// A random order of all multiples of a length, cut into chunks of one round each.
#[derive(Debug)]
struct Offsets {
    offsets: Vec<u64>,
    per_chunk: usize,
}

impl Offsets {
    /// For a region and a round of these sizes, each a multiple of the next, and accesses of `len` bytes.
    /// Always the same order.
    fn new(region_bytes: u64, round_bytes: u64, len: u64) -> Self {
        let mut offsets: Vec<u64> =
            (0..region_bytes).step_by(usize::try_from(len).expect("a length")).collect();
        fastrand::Rng::with_seed(0x6A09_E667_F3BC_C908).shuffle(&mut offsets);
        Self { offsets, per_chunk: usize::try_from(round_bytes / len).expect("a count") }
    }

    /// The offsets of a side's turn `turn`. The other side has been there half the region ago, or will be
    /// half the region later, so that what it left in the caches is gone; after a whole number of passes both
    /// have done the same.
    fn chunk(&self, turn: usize, side: Side) -> &[u64] {
        let count = self.offsets.len() / self.per_chunk;
        let ahead = if side == Side::Theirs { count / 2 } else { 0 };
        let start = (turn + ahead) % count * self.per_chunk;
        &self.offsets[start..start + self.per_chunk]
    }
}

/// Our side: persists `source` at each offset. The length is a constant of the loop, as it is on the C side: both compilers know it.
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
