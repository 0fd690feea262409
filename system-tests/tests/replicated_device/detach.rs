//! The disk of the primary node fails: DRBD detaches it and continues with the other node's.

use crate::drbd;
use crate::pair::{DISK, Pair};
use miette::Result;

#[test]
fn primary_whose_disk_fails_continues_with_peer() -> Result<()> {
    let (pair, mut nodes) = Pair::boot(64)?;
    drbd::create(&mut nodes)?;
    let [first, second] = &mut nodes;
    first.check("mkfs.ext4 -q /dev/drbd0 && mkdir -p /mnt/disk")?;
    first.check(drbd::MOUNT)?;
    first.check("seq 2000000 | head -c 8388608 >/tmp/pattern && cp /tmp/pattern /mnt/disk/before && sync")?;

    // Everything above 1 MiB of the disk is lost, DRBD's metadata included.
    first.check(&format!("truncate -s 1M {DISK}"))?;
    first.check("cp /tmp/pattern /mnt/disk/after && sync")?;
    drbd::wait_for(first, "cs:Connected ro:Primary/Secondary ds:Diskless/UpToDate")?;
    // The application reads from the other node, and writes there.
    first.check("echo 3 >/proc/sys/vm/drop_caches")?;
    first.check("cmp /tmp/pattern /mnt/disk/before && cmp /tmp/pattern /mnt/disk/after")?;
    first.check(
        "dd if=/tmp/pattern of=/mnt/disk/direct bs=1M oflag=direct && cmp /tmp/pattern /mnt/disk/direct",
    )?;

    // A new disk takes the place of the lost one. A file system that is mounted when a server starts stays mounted in the server's mount namespace, so it
    // is unmounted at this moment.
    first.check(drbd::REMOVE_DISK)?;
    first.serve_again(&pair)?;
    first.check(drbd::ATTACH_DISK)?;
    for node in [&mut *first, &mut *second] {
        drbd::wait_until_equal(node)?;
    }
    first.check("cmp /tmp/pattern /mnt/disk/direct && umount /mnt/disk && e2fsck -fn /dev/drbd0 && drbdadm secondary r0")?;
    drbd::assert_same_below(&mut nodes)
}
