//! In the middle of transactions on a heap on DAX, again and again: their process is killed, another one goes on, and the
//! guest's power is cut. Whatever was acknowledged before is there after, nothing is there half, and the heap is whole.

use std::thread;
use std::time::Duration;

use crate::lab::Lab;
use miette::{IntoDiagnostic, Result, WrapErr, ensure, miette};
use xtask::pmbd::Guest;

/// How many cuts, where the variable PM_POWER_CUTS does not say.
const CUTS: u64 = 2;

const HEAP: &str = "/mnt/pmem/heap.pm";

#[test]
fn acknowledged_transactions_survive_kills_and_power_cuts() -> Result<()> {
    let cuts = std::env::var("PM_POWER_CUTS").map_or(CUTS, |cuts| cuts.parse().expect("a number of cuts"));
    let mut random = fastrand::Rng::new();
    let lab = Lab::new();
    let mut guest = boot(&lab)?;
    // By thread, how many transactions are known to be durable.
    let mut durable = [0; 2];
    for cut in 1..=cuts {
        let before = durable;
        let acknowledged = |durable: [u64; 2]| durable.iter().sum::<u64>() - before.iter().sum::<u64>();
        let mut enough = 0;
        for process in ["killed", "cut"] {
            enough += random.u64(150..15_150);
            guest.start(process, &format!("power-cut-writer transact {HEAP}"))?;
            while acknowledged(durable) < enough {
                let line = guest.wait_for("acknowledged transactions", |line| Some(line.to_owned()))?;
                take(&line, &mut durable)?;
            }
            if process == "killed" {
                guest.check("kill -9 $(pidof power-cut-writer)")?;
                guest.ended(process)?;
            }
        }
        // A moment that nothing in the guest is in step with.
        thread::sleep(Duration::from_micros(random.u64(..20_000)));
        for line in guest.power_cut()? {
            take(&line, &mut durable)?;
        }
        let acknowledged = acknowledged(durable);
        guest = boot(&lab)?;
        let found = guest.check(&format!("power-cut-writer look {HEAP}"));
        let found = found.wrap_err_with(|| format!("after cut {cut} of {cuts}"))?;
        for line in found.lines() {
            let [thread, ever] = numbers(line)?;
            let known = &mut durable[usize::try_from(thread).into_diagnostic()?];
            ensure!(
                ever >= *known,
                "thread {thread} had {known} transactions acknowledged, and {ever} are there"
            );
            *known = ever;
        }
        println!(
            "cut {cut} of {cuts}: {acknowledged} transactions acknowledged, all there, the heap is whole"
        );
    }
    guest.vm.shutdown()
}

/// Boots on the persistent memory as it is, with it mounted for direct access.
fn boot(lab: &Lab) -> Result<Guest> {
    let writer = env!("CARGO_BIN_EXE_power-cut-writer");
    let guest = Guest::new(lab.machine()?.dax(true).put(writer, "/root/power-cut-writer").start()?);
    Ok(guest)
}

/// Enters the report of a transaction that returned.
fn take(line: &str, durable: &mut [u64; 2]) -> Result<()> {
    let report = line
        .strip_prefix("heap ")
        .ok_or_else(|| miette!("the writer only acknowledges, but there came: {line}"))?;
    let [thread, number] = numbers(report)?;
    let known = durable.get_mut(usize::try_from(thread).into_diagnostic()?);
    *known.ok_or_else(|| miette!("there is no thread {thread}"))? = number + 1;
    Ok(())
}

fn numbers(line: &str) -> Result<[u64; 2]> {
    let (first, second) =
        line.split_once(' ').ok_or_else(|| miette!("two numbers expected, found: {line}"))?;
    Ok([first.parse().into_diagnostic()?, second.parse().into_diagnostic()?])
}
