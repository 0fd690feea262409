//! `pmbd` on a real kernel with other transports and media: NBD, hugetlbfs, device-dax.

use crate::lab::{FileSystem, Running, copy_and_compare, fio_verify};
use miette::Result;
use xtask::pmbd::source_tree;

#[test]
fn kernel_nbd_client_carries_file_system() -> Result<()> {
    const DISK: &str = "/mnt/pmem/disk.pm";
    let sources = source_tree("/src")?;
    let mut guest = Running::boot(|machine| machine.dax(true).puts(sources))?;
    let server = guest.serve(DISK, "--size 128M --transport nbd --socket /run/disk.sock")?;
    assert_eq!(server.up["disk"]["medium"], "dax-file", "{}", server.up);
    assert_eq!(server.up["detail"]["socket"], "/run/disk.sock", "{}", server.up);
    guest.check("modprobe nbd && nbd-client -unix /run/disk.sock /dev/nbd0")?;
    assert_eq!(guest.check("blockdev --getsize64 /dev/nbd0")?, format!("{}\n", 128 << 20));
    copy_and_compare(&mut guest, "/dev/nbd0", FileSystem::Ext4, "/src")?;
    guest.check(&fio_verify("/dev/nbd0", 1, 8))?;
    guest.check("nbd-client -d /dev/nbd0")?;
    server.stop(&mut guest, "TERM")?;
    guest.check("test ! -e /run/disk.sock")?;
    guest.check(&format!("pmbd check {DISK}"))?;
    guest.shutdown()
}

#[test]
fn disks_in_huge_pages_and_on_device_dax() -> Result<()> {
    // No file system on the persistent memory: device-dax uses all of it.
    let mut guest = Running::boot(|machine| machine)?;
    guest.check(
        "echo 40 >/proc/sys/vm/nr_hugepages && mkdir /mnt/huge && mount -t hugetlbfs none /mnt/huge",
    )?;
    let huge = "/mnt/huge/disk.pm";
    let server = guest.serve(huge, "--size 64M --transport ublk")?;
    assert_eq!(server.up["disk"]["medium"], "hugetlbfs", "{}", server.up);
    assert_eq!(server.up["disk"]["survives_power_loss"], false, "{}", server.up);
    assert_eq!(guest.check("cat /sys/block/ublkb0/queue/write_cache")?, "write through\n");
    write_and_reopen(&mut guest, server, huge)?;
    // The pool itself uses two huge pages, so too few of the reserved ones are left.
    let refused = guest.vm.run("pmbd create /mnt/huge/second.pm --size 64M")?;
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains("space"), "{refused:?}");
    guest.check("test ! -e /mnt/huge/second.pm")?;

    guest.check(
        "ndctl create-namespace -f -e namespace0.0 -m devdax -M dev && modprobe -a device_dax dax_pmem",
    )?;
    let dax = "/dev/dax0.0";
    let created = guest.check(&format!("pmbd create {dax} --format --json"))?;
    assert!(created.contains(r#""medium":"device-dax""#), "{created}");
    let refused = guest.vm.run(&format!("pmbd create {dax} --format"))?;
    assert_eq!(refused.status, 1, "there is a pool: {refused:?}");
    let server = guest.serve(dax, "--transport ublk --queues 2")?;
    assert_eq!(server.up["disk"]["medium"], "device-dax", "{}", server.up);
    assert_eq!(server.up["disk"]["domain"], "adr", "{}", server.up);
    write_and_reopen(&mut guest, server, dax)?;
    guest.shutdown()
}

/// XFS reserves space for the whole range of an allocation, including parts that are allocated already. ext4 allocates all free space before it reports
/// that the space is too small.
#[test]
fn disk_opens_on_full_file_system_and_refusal_takes_no_space() -> Result<()> {
    let mut guest = Running::boot(|machine| machine)?;
    guest.check("modprobe xfs && mkdir /mnt/small")?;
    for make in ["mkfs.xfs -q -f", "mkfs.ext4 -q -F"] {
        guest.check(&format!("{make} /dev/pmem0 && mount /dev/pmem0 /mnt/small"))?;
        guest.check("pmbd create /mnt/small/disk.pm --size 280M")?;
        guest.check("pmbd check --repair /mnt/small/disk.pm")?;
        // Like an interrupted growth.
        guest.check("pmbd create /mnt/small/long.pm --size 16M && truncate -s 1G /mnt/small/long.pm")?;
        let block_count = "stat -c %b /mnt/small/long.pm";
        let before = guest.check(block_count)?;
        let refused = guest.vm.run("pmbd check --repair /mnt/small/long.pm")?;
        assert_eq!(refused.status, 1, "{refused:?}");
        assert!(refused.stderr.contains("space"), "{refused:?}");
        assert_eq!(guest.check(block_count)?, before, "{make}");
        guest.check("umount /mnt/small")?;
    }
    guest.shutdown()
}

/// Runs a load and writes a pattern, stops the server, and verifies the pattern with the next server.
fn write_and_reopen(guest: &mut Running, server: xtask::pmbd::Server, path: &str) -> Result<()> {
    guest.check(&fio_verify("/dev/ublkb0", 2, 16))?;
    guest.check(
        "seq 2000000 | head -c 8388608 >/tmp/pattern && dd if=/tmp/pattern of=/dev/ublkb0 bs=1M oflag=direct",
    )?;
    server.stop(guest, "TERM")?;
    let server = guest.serve(path, "--transport ublk")?;
    guest.check("cmp -n 8388608 /tmp/pattern /dev/ublkb0")?;
    server.stop(guest, "TERM")?;
    guest.check(&format!("pmbd check {path}"))?;
    Ok(())
}
