//! `pmbd` over ublk on a real kernel: file systems, load, and all ends of a server.

use crate::lab::{FileSystem, Running, copy_and_compare, fio_verify};
use miette::Result;
use xtask::pmbd::{Guest, Server, source_tree};
use xtask::vm::Builder;

const DISK: &str = "/mnt/pmem/disk.pm";

/// mkfs.xfs requires 300 MiB.
const NEW_DISK: &str = "--size 320M --transport ublk --queues 2";

fn with_sources(machine: Builder) -> Builder {
    machine.dax(true).puts(source_tree("/src").expect("this repository"))
}

/// The number of requests that the device has completed.
const COMPLETED: &str = "$(awk '{ print $1 + $5 }' /sys/block/ublkb0/stat)";

/// Waits until the device has completed `count` more requests of a program in the background.
fn wait_for_requests(guest: &mut Guest, count: u32) -> Result<()> {
    guest.check(&format!(
        "goal=$(({COMPLETED} + {count})); while [ {COMPLETED} -lt $goal ]; do sleep 0.01; done"
    ))?;
    Ok(())
}

#[test]
fn file_systems_and_a_verified_load_on_a_dax_file() -> Result<()> {
    let mut guest = Running::boot(with_sources)?;
    let server = guest.serve(DISK, NEW_DISK)?;
    let (disk, granted) = (&server.up["disk"], &server.up["detail"]);
    // The medium is a DAX file if and only if the mapping with MAP_SYNC succeeded.
    assert_eq!((&disk["medium"], &disk["domain"]), (&"dax-file".into(), &"adr".into()), "{}", server.up);
    assert_eq!(disk["survives_power_loss"], true, "{}", server.up);
    assert_eq!(granted["device"], "/dev/ublkb0", "{}", server.up);
    assert_eq!((&granted["queues"], &granted["recovered"]), (&2.into(), &false.into()), "{}", server.up);
    assert_eq!(granted["dropped"], "none", "{}", server.up);
    assert_eq!(guest.check("ls /sys/block/ublkb0/mq | wc -l")?, "2\n");
    assert_eq!(guest.check("cat /sys/block/ublkb0/queue/write_cache")?, "write through\n");
    assert_eq!(guest.check("blockdev --getsize64 /dev/ublkb0")?, format!("{}\n", 320 << 20));

    guest.check("find /src -name mod.rs | grep -q .")?;
    copy_and_compare(&mut guest, "/dev/ublkb0", FileSystem::Ext4, "/src /usr/lib")?;
    copy_and_compare(&mut guest, "/dev/ublkb0", FileSystem::Xfs, "/src /usr/lib")?;
    guest.check(&fio_verify("/dev/ublkb0", 2, 48))?;

    server.stop(&mut guest, "TERM")?;
    guest.check(&format!("pmbd check {DISK} && umount /mnt/pmem && e2fsck -fn /dev/pmem0"))?;
    guest.shutdown()
}

/// Asserts that there are no devices and no servers.
fn assert_gone(guest: &mut Guest) -> Result<()> {
    guest.check("! ls /dev/ublkb* /dev/ublkc* && ! pidof pmbd")?;
    assert_eq!(guest.check("pmbd list --json")?, "");
    Ok(())
}

/// Stops a server by a signal, and asserts that it leaves nothing behind.
fn stop_by(guest: &mut Guest, server: Server, signal: &str) -> Result<()> {
    server.signal(guest, signal)?;
    server.next_event(guest, "stopped")?;
    assert_eq!(server.ended(guest)?, 0);
    assert_gone(guest)
}

#[test]
fn stop_is_refused_while_file_system_is_mounted() -> Result<()> {
    const IN_USE: &str = "mounted at /mnt/disk";
    let mut guest = Running::boot(|machine| machine.dax(true))?;
    let server = guest.serve(DISK, NEW_DISK)?;
    stop_by(&mut guest, server, "TERM")?;
    let server = guest.serve(DISK, NEW_DISK)?;
    assert_eq!(server.up["detail"]["recovered"], false, "a new device: the last one was removed");
    stop_by(&mut guest, server, "INT")?;

    let server = guest.serve(DISK, NEW_DISK)?;
    guest.check("mkfs.ext4 -q /dev/ublkb0 && mkdir /mnt/disk && mount /dev/ublkb0 /mnt/disk")?;
    for target in [DISK, "/dev/ublkb0"] {
        let refused = guest.vm.run(&format!("pmbd stop {target}"))?;
        assert_eq!(refused.status, 1, "{refused:?}");
        assert!(refused.stderr.contains(IN_USE) && refused.stderr.contains("--force"), "{refused:?}");
    }
    server.signal(&mut guest, "TERM")?;
    let refused = server.next_event(&mut guest, "in_use")?;
    assert_eq!(refused["detail"]["usage"], IN_USE);
    // Direct I/O, so that the server executes the requests.
    guest.check("dd if=/dev/urandom of=/mnt/disk/file bs=1M count=8 oflag=direct && sync")?;
    guest.check("dd if=/mnt/disk/file of=/dev/null bs=1M iflag=direct")?;
    guest.check(&format!("umount /mnt/disk && e2fsck -fn /dev/ublkb0 && pmbd stop {DISK}"))?;
    assert_eq!(server.ended(&mut guest)?, 0);
    assert_gone(&mut guest)?;

    // By force: the file system fails like on a removed disk. Synced data is there with the next server.
    let server = guest.serve(DISK, NEW_DISK)?;
    guest.check("mount /dev/ublkb0 /mnt/disk && echo synced >/mnt/disk/kept && sync")?;
    guest.check("pmbd stop --force /dev/ublkb0")?;
    // The exit code depends on whether the kernel still has the device open, for which the server does not wait long.
    server.ended(&mut guest)?;
    assert_ne!(
        guest.vm.run("dd if=/mnt/disk/file of=/dev/null iflag=direct")?.status,
        0,
        "the disk can still be read"
    );
    guest.check("umount /mnt/disk; while [ -e /dev/ublkc0 ]; do sleep 0.01; done")?;
    let server = guest.serve(DISK, NEW_DISK)?;
    guest.check("mount /dev/ublkb0 /mnt/disk && grep -qx synced /mnt/disk/kept && umount /mnt/disk")?;
    guest.check("e2fsck -fn /dev/ublkb0")?;
    stop_by(&mut guest, server, "TERM")?;
    guest.shutdown()
}

/// Kills the server `kills` times, each time after `requests` more requests, and starts another at once. Requests are only delayed.
fn kill_and_take_over(guest: &mut Guest, mut server: Server, kills: u32, requests: u32) -> Result<Server> {
    for _ in 0..kills {
        wait_for_requests(guest, requests)?;
        server.kill(guest)?;
        server = guest.serve(DISK, NEW_DISK)?;
        let granted = &server.up["detail"];
        assert_eq!((&granted["recovered"], &granted["device"]), (&true.into(), &"/dev/ublkb0".into()));
        assert_eq!(granted["queues"], 2);
    }
    Ok(server)
}

#[test]
fn device_of_killed_server_is_recovered() -> Result<()> {
    const KILLS: u32 = 5;
    let mut guest = Running::boot(with_sources)?;
    let server = guest.serve(DISK, NEW_DISK)?;

    // Each of 2 x 48 MiB is read or written once, in 24,576 requests, before the written data is verified.
    guest.start("fio", &fio_verify("/dev/ublkb0", 2, 48))?;
    let server = kill_and_take_over(&mut guest, server, KILLS, 2000)?;
    guest.succeeded("fio")?;

    guest.check("mkfs.ext4 -q -F /dev/ublkb0 && mkdir /mnt/disk && mount /dev/ublkb0 /mnt/disk")?;
    // With continuous syncs there are many small requests, so that some are in flight at the kills.
    guest.start(
        "copy",
        "cp -a /src /usr/lib /mnt/disk/ & \
         while kill -0 $! 2>/dev/null; do sync; done; wait $! && touch /mnt/disk/done && sync",
    )?;
    let server = kill_and_take_over(&mut guest, server, KILLS, 30)?;
    guest.succeeded("copy")?;
    guest.check("umount /mnt/disk && mount /dev/ublkb0 /mnt/disk && test -e /mnt/disk/done")?;
    guest.check("diff -r /src /mnt/disk/src && diff -r /usr/lib /mnt/disk/lib")?;
    guest.check("umount /mnt/disk && e2fsck -fn /dev/ublkb0")?;

    // Without another server the device waits: `list` reports it, and `stop` removes it.
    server.kill(&mut guest)?;
    guest.check("while ! pmbd list | grep -q 'ublkb0: its server died'; do sleep 0.05; done")?;
    guest.check("pmbd stop /dev/ublkb0")?;
    assert_gone(&mut guest)?;
    guest.shutdown()
}

#[test]
fn truncated_file_gives_eio_and_leaves_server_alive() -> Result<()> {
    let read =
        |mib: u32| format!("dd if=/dev/ublkb0 of=/dev/null bs=64K count=1 skip={} iflag=direct", mib * 16);
    let write = |mib: u32| format!("dd if=/src of=/dev/ublkb0 bs=64K count=1 seek={} oflag=direct", mib * 16);
    let mut guest = Running::boot(|machine| machine.dax(true))?;
    guest.check("seq 100000 | head -c 65536 >/src")?;
    let server = guest.serve(DISK, "--size 64M --transport ublk --queues 8")?;
    let granted = &server.up["detail"];
    assert_eq!((&granted["queues"], &granted["queues_asked"]), (&2.into(), &8.into()), "{}", server.up);
    // A server that cannot get its device leaves no disk behind.
    let taken = guest.vm.run("pmbd serve /mnt/pmem/new.pm --size 1M --transport ublk --device 0")?;
    assert!(taken.status == 1 && taken.stderr.contains("already exists"), "{taken:?}");
    guest.check("test ! -e /mnt/pmem/new.pm")?;
    guest.check(&write(1))?;
    guest.check(&format!("truncate -s 16M {DISK}"))?;
    for script in [read(40), write(40)] {
        let failed = guest.vm.run(&script)?;
        assert!(failed.status != 0 && failed.stderr.contains("Input/output error"), "{failed:?}");
    }
    guest.check(&format!("{} && {}", read(1), write(2)))?;
    guest.check("cmp -n 65536 -i 0:1048576 /src /dev/ublkb0")?;
    assert!(
        guest.log(&format!("pmbd{}", DISK.replace('/', "-"))).contains("cannot be accessed"),
        "the server reports the error"
    );
    // After growth the disk has room again.
    guest.check(&format!("truncate -s 70M {DISK} && {} && {}", write(40), read(40)))?;
    guest.check("cmp -n 65536 -i 0:41943040 /src /dev/ublkb0")?;
    stop_by(&mut guest, server, "TERM")?;
    guest.shutdown()
}

#[test]
fn queues_of_all_shapes_carry_a_verified_load() -> Result<()> {
    let mut guest = Running::boot(|machine| machine.dax(true))?;
    for (options, queues, depth) in [
        ("--queues 1 --depth 1 --max-io 4K --spin-us 0", 1, 1),
        ("--queues 2 --depth 3 --max-io 64K --affinity submitters", 2, 3),
        ("--queues 2 --depth 4096 --max-io 4K --affinity 0,1", 2, 4096),
        ("--queues 1 --depth 64 --max-io 32M --spin-us 1000", 1, 64),
    ] {
        let server = guest.serve(DISK, &format!("--size 128M --transport ublk {options}"))?;
        let granted = &server.up["detail"];
        assert_eq!((&granted["queues"], &granted["depth"]), (&queues.into(), &depth.into()), "{}", server.up);
        guest.check(&fio_verify("/dev/ublkb0", 2, 8))?;
        // Requests as long as the device takes them.
        guest.check(
            "dd if=/dev/urandom of=/tmp/pattern bs=1M count=48 && dd if=/tmp/pattern of=/dev/ublkb0 bs=48M oflag=direct &&
            dd if=/dev/ublkb0 of=/tmp/read bs=48M count=1 iflag=direct && cmp /tmp/pattern /tmp/read && rm /tmp/pattern /tmp/read",
        )?;
        // The driver notices the end of a server by tags that wait for requests; the load must leave some.
        if depth < 64 {
            stop_by(&mut guest, server, "TERM")?;
            continue;
        }
        // Its server is killed with requests in flight, and the next one has the same shape.
        guest.start("fio", &fio_verify("/dev/ublkb0", 1, 24))?;
        wait_for_requests(&mut guest, 100)?;
        server.kill(&mut guest)?;
        let server = guest.serve(DISK, "--transport ublk")?;
        let granted = &server.up["detail"];
        assert_eq!((&granted["queues"], &granted["depth"]), (&queues.into(), &depth.into()), "{}", server.up);
        assert_eq!(granted["recovered"], true, "{}", server.up);
        guest.succeeded("fio")?;
        stop_by(&mut guest, server, "TERM")?;
    }
    guest.shutdown()
}
