//! Repeatedly, during transactions on a heap on DAX: the process is killed, another continues, and the guest's power is cut. Acknowledged transactions
//! must survive, all transactions must be atomic, and the heap must be valid.

use std::thread;
use std::time::Duration;

use crate::lab::{Lab, from_env};
use miette::{IntoDiagnostic, Result, WrapErr, ensure, miette};
use xtask::pmbd::Guest;

/// The default of PM_POWER_CUTS, the number of power cuts.
const CUTS: u32 = 2;

const HEAP: &str = "/mnt/pmem/heap.pm";

#[test]
fn acknowledged_transactions_survive_kills_and_power_cuts() -> Result<()> {
    let cuts = from_env("PM_POWER_CUTS", CUTS);
    let mut random = fastrand::Rng::new();
    let lab = Lab::new();
    let mut guest = boot(&lab)?;
    // The number of transactions of each thread that are known to be durable.
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
                take_report("heap", &line, &mut durable)?;
            }
            if process == "killed" {
                guest.check("kill -9 $(pidof power-cut-writer)")?;
                guest.ended(process)?;
            }
        }
        // At a random moment.
        thread::sleep(Duration::from_micros(random.u64(..20_000)));
        for line in guest.power_cut()? {
            take_report("heap", &line, &mut durable)?;
        }
        let acknowledged = acknowledged(durable);
        guest = boot(&lab)?;
        let found = guest.check(&format!("power-cut-writer look {HEAP}"));
        let found = found.wrap_err_with(|| format!("after cut {cut} of {cuts}"))?;
        take_counts("transactions", &found, &mut durable)?;
        println!(
            "cut {cut} of {cuts}: {acknowledged} transactions acknowledged, all there, the heap is whole"
        );
    }
    guest.vm.shutdown()
}

/// Boots on the persistent memory, mounted with -o dax.
pub(crate) fn boot(lab: &Lab) -> Result<Guest> {
    let writer = env!("CARGO_BIN_EXE_power-cut-writer");
    let guest = Guest::new(lab.machine()?.dax(true).put(writer, "/root/power-cut-writer").start()?);
    Ok(guest)
}

/// Enters a report, `KIND THREAD NUMBER`, of a transaction or call that returned.
pub(crate) fn take_report(kind: &str, line: &str, durable: &mut [u64; 2]) -> Result<()> {
    let report = line.strip_prefix(kind).and_then(|rest| rest.strip_prefix(' '));
    let report = report.ok_or_else(|| miette!("unexpected report: {line}"))?;
    let [thread, number] = numbers(report)?;
    let known = durable.get_mut(usize::try_from(thread).into_diagnostic()?);
    *known.ok_or_else(|| miette!("there is no thread {thread}"))? = number + 1;
    Ok(())
}

/// Enters what is there after a cut, a line `THREAD COUNT` for each thread: not less than was acknowledged.
pub(crate) fn take_counts(what: &str, found: &str, durable: &mut [u64; 2]) -> Result<()> {
    for line in found.lines() {
        let [thread, ever] = numbers(line)?;
        let known = &mut durable[usize::try_from(thread).into_diagnostic()?];
        ensure!(ever >= *known, "thread {thread} had {known} {what} acknowledged, and {ever} are there");
        *known = ever;
    }
    Ok(())
}

fn numbers(line: &str) -> Result<[u64; 2]> {
    let (first, second) =
        line.split_once(' ').ok_or_else(|| miette!("two numbers expected, found: {line}"))?;
    Ok([first.parse().into_diagnostic()?, second.parse().into_diagnostic()?])
}
