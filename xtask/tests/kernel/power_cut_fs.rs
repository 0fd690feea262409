//! Repeatedly, during calls of a pm-fs on DAX: the process is killed, another continues, and the guest's power is cut. Acknowledged calls must survive, all
//! calls must be atomic, and the check must find no problem.

use std::thread;
use std::time::Duration;

use crate::lab::{Lab, from_env};
use crate::power_cut_heap::{boot, take_counts, take_report};
use miette::{Result, WrapErr};

/// The default of PM_POWER_CUTS, the number of power cuts.
const CUTS: u32 = 2;

const FS: &str = "/mnt/pmem/fs.pm";

#[test]
fn acknowledged_calls_survive_kills_and_power_cuts() -> Result<()> {
    let cuts = from_env("PM_POWER_CUTS", CUTS);
    let mut random = fastrand::Rng::new();
    let lab = Lab::new();
    let mut guest = boot(&lab)?;
    // The number of calls of each thread that are known to be durable.
    let mut durable = [0; 2];
    for cut in 1..=cuts {
        let before = durable;
        let acknowledged = |durable: [u64; 2]| durable.iter().sum::<u64>() - before.iter().sum::<u64>();
        let mut enough = 0;
        for process in ["killed", "cut"] {
            enough += random.u64(150..8_150);
            guest.start(process, &format!("power-cut-writer call {FS}"))?;
            while acknowledged(durable) < enough {
                let line = guest.wait_for("acknowledged calls", |line| Some(line.to_owned()))?;
                take_report("fs", &line, &mut durable)?;
            }
            if process == "killed" {
                guest.check("kill -9 $(pidof power-cut-writer)")?;
                guest.ended(process)?;
            }
        }
        // At a random moment.
        thread::sleep(Duration::from_micros(random.u64(..20_000)));
        for line in guest.power_cut()? {
            take_report("fs", &line, &mut durable)?;
        }
        let acknowledged = acknowledged(durable);
        guest = boot(&lab)?;
        let found = guest.check(&format!("power-cut-writer audit {FS}"));
        let found = found.wrap_err_with(|| format!("after cut {cut} of {cuts}"))?;
        take_counts("calls", &found, &mut durable)?;
        println!("cut {cut} of {cuts}: {acknowledged} calls acknowledged, all there, the check is clean");
    }
    guest.vm.shutdown()
}
