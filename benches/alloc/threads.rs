//! One heap, one thread and two: each thread allocates and frees blocks of its own, with the links to them.

use crate::SIZES;
use crate::transactions::{create, make_slots, run};
use crate::workload::PlanFile;
use miette::{IntoDiagnostic as _, Result, miette};
use pm_alloc::Heap;
use pm_bench::{Cli, Goal, Report, Row, Side, rounds};
use pm_core::Link;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// Of two threads on two processors: the machine's memory is one.
const GOAL: Goal = Goal::AtLeast(1.7);

/// Measures, and adds a row to `report`. By the clock on the wall: who waits for the other loses.
pub(crate) fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    if thread::available_parallelism().into_diagnostic()?.get() < 2 {
        report.fact("two threads", "not measured: there is one processor");
        return Ok(());
    }
    let op_count = if cli.quick { 20_000 } else { 200_000 };
    let (sizes_name, sizes) = SIZES[0].clone();
    let plan = PlanFile::random(op_count / 2, op_count / 2, sizes)?;
    let memory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    let path = memory.path().join("threads.pool");
    eprintln!("two threads");
    let pairs = rounds(cli.round_count(9, 3), |side| {
        let threads = if side == Side::Ours { 2 } else { 1 };
        let heap = create(&path)?;
        make_slots(&heap, &plan, threads.into())?;
        let elapsed = work(&heap, &plan, threads)?;
        drop(heap);
        std::fs::remove_file(&path).into_diagnostic()?;
        Ok::<_, miette::Report>(f64::from(threads) * op_count as f64 / elapsed)
    })?;
    report.push(Row::new(
        format!("alloc or free, {sizes_name}, two threads"),
        "one thread",
        "op/s",
        pairs,
        GOAL,
    ));
    Ok(())
}

/// Has so many threads replay the plan, each on slots of its own, and says how many seconds pass until the last is done.
fn work(heap: &Heap, plan: &PlanFile, threads: u32) -> Result<f64> {
    let ready = Barrier::new(threads as usize);
    let one = |number: u32| -> Result<Instant> {
        heap.view(|view| {
            let slots = view.root::<Link<'_, u8>>("slots").into_diagnostic()?.expect("it was set before");
            let slots = slots.element(u64::from(number * plan.plan.slot_count()));
            ready.wait();
            let begin = Instant::now();
            run(view, slots, plan).map(|()| begin)
        })
    };
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn({
                    let one = &one;
                    move || one(number)
                })
            })
            .collect();
        let begins =
            started.into_iter().map(|thread| thread.join().map_err(|_| miette!("a thread panicked"))?);
        let begins: Vec<Instant> = begins.collect::<Result<_>>()?;
        let first = begins.into_iter().min().expect("there is one");
        Ok(first.elapsed().as_secs_f64())
    })
}
