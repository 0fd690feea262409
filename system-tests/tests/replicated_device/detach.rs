//! The disk of the primary node fails: DRBD detaches it and continues with the other node's.

use crate::drbd;
use crate::pair::{DISK, Pair, serve_options};
use miette::{Result, ensure};

#[test]
fn primary_whose_disk_fails_continues_with_peer() -> Result<()> {
    let (_pair, mut nodes) = Pair::boot()?;
    drbd::create(&mut nodes)?;
    let [first, second] = &mut nodes;
    first.check("mkfs.ext4 -q /dev/drbd0 && mkdir -p /mnt/disk && mount /dev/drbd0 /mnt/disk")?;
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
    ensure!(
        first.check("dmesg")?.contains("ublkb0"),
        "the kernel has not seen an error of the disk: the test tests nothing"
    );

    // A new disk takes the place of the lost one, while the file system is mounted.
    first.check(&format!("pmbd stop /dev/ublkb0 && rm {DISK}"))?;
    first.guest.ended(&format!("pmbd{}", DISK.replace('/', "-")))?;
    first.server = first.guest.serve(DISK, &serve_options())?;
    first.check("drbdadm create-md --force r0 && drbdadm attach r0")?;
    for node in [&mut *first, &mut *second] {
        drbd::wait_until_equal(node)?;
    }
    first.check("umount /mnt/disk && e2fsck -fn /dev/drbd0 && drbdadm secondary r0")?;
    drbd::assert_same_below(&mut nodes)
}
