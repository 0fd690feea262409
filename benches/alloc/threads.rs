//! Two threads against one on one heap: each thread allocates and links, unlinks and frees its own blocks.

use crate::SIZES;
use crate::transactions::{create, make_slots, run};
use crate::workload::PlanFile;
use miette::{IntoDiagnostic as _, Result, miette};
use pm_alloc::Heap;
use pm_bench::{Cli, Report, Side, processors, rounds, run_on};
use pm_core::Link;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// For two threads on two processors, which share the memory.
const GOAL: f64 = 1.7;

/// Measures elapsed time, which includes waiting of a thread for another, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    if thread::available_parallelism().into_diagnostic()?.get() < 2 {
        report.fact("two threads", "not measured: there is one processor");
        return Ok(());
    }
    let op_count = if cli.quick { 50_000 } else { 500_000 };
    let (sizes_name, sizes) = SIZES[0].clone();
    let plan = PlanFile::random(op_count / 2, op_count / 2, sizes)?;
    let memory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let mut row = |name: &str, heaps: usize, goal| {
        eprintln!("two threads, {name}");
        let [pairs] = rounds(cli.round_count(15, 3), |side| {
            let threads = if side == Side::Ours { 2 } else { 1 };
            let paths: Vec<_> =
                (0..heaps.min(threads)).map(|heap| memory.path().join(heap.to_string())).collect();
            let heaps: Vec<_> = paths.iter().map(|path| create(path)).collect::<Result<_>>()?;
            heaps.iter().try_for_each(|heap| make_slots(heap, &plan, threads as u64))?;
            let elapsed = work(&heaps, &plan, threads)?;
            drop(heaps);
            paths.iter().try_for_each(std::fs::remove_file).into_diagnostic()?;
            Ok([(threads * op_count) as f64 / elapsed])
        })?;
        let name = format!("alloc or free, {sizes_name}, two threads, {name}");
        report.row(name, "one thread", "op/s", pairs, goal);
        Ok::<_, miette::Report>(())
    };
    row("one heap", 1, Some(GOAL))?;
    // The bound of this machine.
    row("a heap each", 2, None)
}

/// The seconds that `threads` threads take to replay the plan on these heaps, each on its own slots.
fn work(heaps: &[Heap], plan: &PlanFile, threads: usize) -> Result<f64> {
    let ready = Barrier::new(threads);
    let processors = processors()?;
    let one = |number: usize| -> Result<Instant> {
        // Otherwise both may start on one processor and stay there for a while.
        run_on(&[processors[number % processors.len()]])?;
        heaps[number % heaps.len()].view(|view| {
            let slots = view.root::<Link<'_, u8>>("slots").into_diagnostic()?.expect("it was set before");
            let slots = slots.element(number as u64 * u64::from(plan.plan.slot_count()));
            ready.wait();
            let begin = Instant::now();
            run(view, slots, plan).map(|()| begin)
        })
    };
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|number| {
                let one = &one;
                scope.spawn(move || one(number))
            })
            .collect();
        let begins =
            started.into_iter().map(|thread| thread.join().map_err(|_| miette!("a thread panicked"))?);
        let begins: Vec<Instant> = begins.collect::<Result<_>>()?;
        let first = begins.into_iter().min().expect("there is one");
        Ok(first.elapsed().as_secs_f64())
    })
}
