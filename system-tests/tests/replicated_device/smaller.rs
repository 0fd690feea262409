//! A disk that is smaller than its peer's data does not become its mirror.

use crate::drbd;
use crate::pair::{DISK, Pair};
use miette::Result;

#[test]
fn smaller_disk_is_refused() -> Result<()> {
    let (_pair, mut nodes) = Pair::boot(32)?;
    drbd::create(&mut nodes)?;
    let [first, second] = &mut nodes;
    second.check(&format!("drbdadm down r0 && pmbd stop /dev/ublkb0 && rm {DISK}"))?;
    second.wait_for_server()?;
    second.guest.serve(DISK, "--size 24M --transport ublk --device 0 --queues 1")?;
    drbd::create_and_join(second)?;
    first.wait_until("dmesg | grep -q \"The peer's disk size is too small!\"")?;
    drbd::wait_for(first, "cs:StandAlone ro:Primary/Unknown ds:UpToDate")?;
    Ok(())
}
