//! Power cuts during a load of a program in the guest, on DAX: the process is killed, another continues, and the guest's power is cut. What was acknowledged
//! must survive.

use std::thread;
use std::time::Duration;

use crate::lab::{Lab, from_env};
use miette::{IntoDiagnostic, Result, WrapErr, ensure, miette};
use xtask::pmbd::Guest;

/// The default of PM_POWER_CUTS, the number of power cuts.
const CUTS: u32 = 2;

/// A load of `power-cut-writer`.
pub(crate) struct Load {
    /// The first word of its reports.
    pub(crate) kind: &'static str,
    /// What it reports.
    pub(crate) what: &'static str,
    /// The arguments with which it runs until it is killed.
    pub(crate) run: &'static str,
    /// Those with which it checks what is there.
    pub(crate) check: &'static str,
    /// A process is killed, or the power cut, after so many at most.
    pub(crate) most: u64,
    /// What the check has shown.
    pub(crate) checked: &'static str,
}

impl Load {
    /// Runs it, and cuts the power at random moments.
    pub(crate) fn survives_kills_and_power_cuts(&self) -> Result<()> {
        let Self { kind, what, checked, .. } = self;
        let cuts = from_env("PM_POWER_CUTS", CUTS);
        let mut random = fastrand::Rng::new();
        let lab = Lab::new();
        let mut guest = boot(&lab)?;
        // How many of each thread are known to be durable.
        let mut durable = [0; 2];
        for cut in 1..=cuts {
            let before = durable;
            let acknowledged = |durable: [u64; 2]| durable.iter().sum::<u64>() - before.iter().sum::<u64>();
            let mut enough = 0;
            for process in ["killed", "cut"] {
                enough += random.u64(150..self.most);
                guest.start(process, &format!("power-cut-writer {}", self.run))?;
                while acknowledged(durable) < enough {
                    let line =
                        guest.wait_for(&format!("acknowledged {what}"), |line| Some(line.to_owned()))?;
                    take_report(kind, &line, &mut durable)?;
                }
                if process == "killed" {
                    guest.check("kill -9 $(pidof power-cut-writer)")?;
                    guest.ended(process)?;
                }
            }
            // At a random moment.
            thread::sleep(Duration::from_micros(random.u64(..20_000)));
            for line in guest.power_cut()? {
                take_report(kind, &line, &mut durable)?;
            }
            let acknowledged = acknowledged(durable);
            guest = boot(&lab)?;
            let found = guest.check(&format!("power-cut-writer {}", self.check));
            let found = found.wrap_err_with(|| format!("after cut {cut} of {cuts}"))?;
            take_counts(what, &found, &mut durable)?;
            println!("cut {cut} of {cuts}: {acknowledged} {what} acknowledged, all there, {checked}");
        }
        guest.vm.shutdown()
    }
}

/// Boots on the persistent memory, mounted with -o dax.
fn boot(lab: &Lab) -> Result<Guest> {
    let writer = env!("CARGO_BIN_EXE_power-cut-writer");
    let guest = Guest::new(lab.machine()?.dax(true).put(writer, "/root/power-cut-writer").start()?);
    Ok(guest)
}

/// Enters a report, `KIND THREAD NUMBER`, of a transaction or call that returned.
fn take_report(kind: &str, line: &str, durable: &mut [u64; 2]) -> Result<()> {
    let report = line.strip_prefix(kind).and_then(|rest| rest.strip_prefix(' '));
    let report = report.ok_or_else(|| miette!("unexpected report: {line}"))?;
    let [thread, number] = numbers(report)?;
    let known = durable.get_mut(usize::try_from(thread).into_diagnostic()?);
    *known.ok_or_else(|| miette!("there is no thread {thread}"))? = number + 1;
    Ok(())
}

/// Enters what is there after a cut, a line `THREAD COUNT` for each thread: not less than was acknowledged.
fn take_counts(what: &str, found: &str, durable: &mut [u64; 2]) -> Result<()> {
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
