//! A heap of 4 GiB with a million blocks, whose program is killed during transactions: the time to open it and do the first transaction, and
//! the time of a full check.

use crate::human;
use crate::transactions::own;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail};
use pm_alloc::{Heap, HeapOptions};
use pm_bench::{Cli, Pair, Report, median};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Set for the program that is killed: the path of its heap.
const FILE: &str = "PM_BENCH_OPENING_FILE";

const POOL_BYTES: u64 = 4 << 30;
const BLOCKS: u64 = 1_000_000;
/// With a million blocks of up to twice this, the heap is nearly full.
const MEAN_BYTES: u64 = 3900;

/// The time limits, which serve as rivals.
const FIRST_TRANSACTION: Duration = Duration::from_millis(10);
const FULL_CHECK: Duration = Duration::from_secs(1);

/// Runs the program that is killed, if this process is it.
pub(crate) fn child() -> Option<Result<ExitCode>> {
    let path = std::env::var_os(FILE)?;
    Some(work(Path::new(&path)).map(|()| ExitCode::SUCCESS))
}

/// Fills the heap unless it exists, prints `ready`, and runs transactions until it is killed.
fn work(path: &Path) -> Result<()> {
    let heap = if path.exists() {
        Heap::open(path, &HeapOptions::new()).into_diagnostic()?
    } else {
        let heap = Heap::create(path, POOL_BYTES, &HeapOptions::new()).into_diagnostic()?;
        for number in 0..BLOCKS {
            // The factor is odd, so that all lengths occur.
            let bytes = 8 + number * 7919 % (2 * MEAN_BYTES);
            let filled = heap.transaction(|tx| tx.alloc_uninit::<u8>(bytes).map(drop));
            filled.map_err(own).wrap_err_with(|| format!("block {number}"))?;
        }
        heap
    };
    println!("ready");
    std::io::stdout().flush().into_diagnostic()?;
    loop {
        let block = heap.transaction(|tx| tx.alloc(&[7_u64; 20]).map(pm_core::Link::offset));
        let block = block.map_err(own)?;
        heap.transaction(|tx| tx.free(link_to(block))).map_err(own)?;
    }
}

#[expect(unsafe_code, reason = "the block was allocated by another transaction")]
fn link_to<'p>(block: u64) -> pm_core::Link<'p, u64> {
    // SAFETY: the offset of a block whose transaction has committed.
    unsafe { pm_core::Link::new_unchecked(block) }
}

/// Kills the program, opens its heap, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let path = directory.path().join("heap.pm");
    let (mut firsts, mut checks, mut blocks) = (Vec::new(), Vec::new(), 0);
    for round in 0..cli.round_count(5, 2) {
        eprintln!("opening, round {}", round + 1);
        kill_at_work(&path)?;
        let begin = Instant::now();
        let heap = Heap::open(&path, &HeapOptions::new()).into_diagnostic()?;
        heap.transaction(|tx| tx.alloc(&[round as u64; 8]).map(drop)).map_err(own)?;
        firsts.push(begin.elapsed());
        let begin = Instant::now();
        let checked = heap.check();
        checks.push(begin.elapsed());
        if !checked.is_clean() || checked.allocated_blocks < BLOCKS {
            bail!("{} blocks, and corruption: {:?}", checked.allocated_blocks, checked.corruptions);
        }
        blocks = checked.allocated_blocks;
    }
    report.fact("opening, blocks", human(blocks));
    let per_second = |time: &Duration| 1.0 / time.as_secs_f64();
    for (name, limit, took) in [
        ("open, and the first transaction", FIRST_TRANSACTION, &firsts),
        ("every header checked", FULL_CHECK, &checks),
    ] {
        let middle = Duration::from_secs_f64(median(took.iter().map(Duration::as_secs_f64)));
        report.fact(&format!("opening, {name}"), format!("{middle:.2?} (median)"));
        let pairs = took.iter().map(|took| Pair { ours: per_second(took), theirs: per_second(&limit) });
        report.row(name, format!("{limit:?}"), "1/s", pairs.collect(), Some(1.0));
    }
    Ok(())
}

/// Starts a program that works on the heap, and kills it at work.
fn kill_at_work(path: &Path) -> Result<()> {
    let mut child = Command::new(std::env::current_exe().into_diagnostic()?)
        .env(FILE, path)
        .stdout(Stdio::piped())
        .spawn()
        .into_diagnostic()?;
    let said = BufReader::new(child.stdout.take().expect("it is piped")).lines().next();
    if !matches!(said, Some(Ok(ref line)) if line == "ready") {
        bail!("the program that was to fill the heap ended with {}", child.wait().into_diagnostic()?);
    }
    std::thread::sleep(Duration::from_millis(50));
    child.kill().into_diagnostic()?;
    child.wait().into_diagnostic()?;
    Ok(())
}
