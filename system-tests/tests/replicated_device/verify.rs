//! A sector that changes below DRBD is found by online verification, and repaired.

use crate::drbd;
use crate::pair::Pair;
use miette::Result;

#[test]
fn verification_finds_corruption_below_and_reconnection_repairs_it() -> Result<()> {
    let (_pair, mut nodes) = Pair::boot(32)?;
    drbd::create(&mut nodes)?;
    let [first, second] = &mut nodes;
    first.check("seq 10000000 | head -c 16777216 | dd of=/dev/drbd0 bs=1M iflag=fullblock oflag=direct")?;
    assert_eq!(drbd::verify(first)?, 0, "equal at first");

    // 512 bytes, below DRBD on the node that is secondary.
    second.check("dd if=/dev/urandom of=/dev/ublkb0 bs=512 count=1 seek=16390 oflag=direct")?;
    assert_eq!(drbd::verify(first)?, 4, "KiB out of sync: a block");
    // It is not repaired yet.
    drbd::wait_for(first, "cs:Connected ro:Primary/Secondary ds:UpToDate/UpToDate")?;

    drbd::resynced_kib(first)?;
    first.check(drbd::RECONNECT)?;
    drbd::wait_until_equal(first)?;
    drbd::wait_until_equal(second)?;
    assert_eq!(drbd::resynced_kib(first)?, 4);
    assert_eq!(drbd::verify(first)?, 0, "equal again");
    first.check("drbdadm secondary r0")?;
    drbd::assert_same_below(&mut nodes)
}
