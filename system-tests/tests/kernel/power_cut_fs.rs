//! Power cuts during calls of a pm-fs on DAX. Acknowledged calls must survive, all calls must be atomic, and the check must find no problem.

use crate::power_cut_load::Load;
use miette::Result;

#[test]
fn acknowledged_calls_survive_kills_and_power_cuts() -> Result<()> {
    let load = Load {
        kind: "fs",
        what: "calls",
        run: "call /mnt/pmem/fs.pm",
        check: "audit /mnt/pmem/fs.pm",
        most: 8_150,
        checked: "the check is clean",
    };
    load.survives_kills_and_power_cuts()
}
