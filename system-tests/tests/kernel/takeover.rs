//! Interrupted takeovers of a ublk device, and the next takeover.

use crate::lab::{Running, fio_verify, from_env};
use miette::Result;
use std::time::Instant;

const DISK: &str = "/mnt/pmem/disk.pm";
const SERVE: &str = "--transport ublk --queues 2";
const DEPTH: u32 = 128;

/// The default of PM_TAKEOVER_KILLS, the number of kills inside takeovers.
const KILLS: u32 = 12;

/// Asserts that the kernel has logged no errors since the boot.
fn assert_kernel_is_sound(guest: &mut Running) -> Result<()> {
    let complaints = guest.vm.run("dmesg | grep -E 'BUG|Oops|WARNING|refcount|blocked for more'")?;
    assert_eq!(complaints.stdout, "", "the kernel has logged errors");
    Ok(())
}

/// A guest with a device whose server was killed.
fn boot_with_waiting_device() -> Result<Running> {
    let helper = env!("CARGO_BIN_EXE_half-takeover");
    let mut guest = Running::boot(|machine| machine.dax(true).put(helper, "/root/half-takeover"))?;
    let server = guest.serve(DISK, &format!("--size 128M --depth {DEPTH} {SERVE}"))?;
    server.kill(&mut guest)?;
    Ok(guest)
}

const WAIT_FOR_QUIESCED: &str = "while ! pmbd list | grep -q 'its server died'; do sleep 0.02; done";

#[test]
fn device_is_recoverable_after_takeover_ends_at_any_point() -> Result<()> {
    let mut guest = boot_with_waiting_device()?;
    // A server that ends after START_USER_RECOVERY, with none or some of two queues fetched, repeatedly.
    for ready in [0, 1, 2] {
        guest.check(WAIT_FOR_QUIESCED)?;
        let half = guest.vm.run(&format!("half-takeover 0 --depth {DEPTH} --ready {ready}"))?;
        assert_eq!(half.status, 137, "{half:?}");
        let server = guest.serve(DISK, SERVE)?;
        assert_eq!(server.up["detail"]["recovered"], true, "{}", server.up);
        guest.check("dd if=/dev/urandom of=/dev/ublkb0 bs=64K count=8 oflag=direct")?;
        server.kill(&mut guest)?;
        assert_kernel_is_sound(&mut guest)?;
    }

    // A takeover without enough descriptors fails before the driver drops the state of the last server, at any limit.
    guest.check(WAIT_FOR_QUIESCED)?;
    let counts = guest.check(&format!(
        "failed=0; up=0
        for limit in $(seq 6 2 24); do
            ( ulimit -n $limit; exec pmbd --json serve {DISK} {SERVE} ) >/tmp/limited.log 2>&1 &
            while kill -0 $! 2>/dev/null && ! grep -q '\"serving\"' /tmp/limited.log; do sleep 0.02; done
            if grep -q '\"serving\"' /tmp/limited.log; then up=$((up + 1)); else failed=$((failed + 1)); fi
            kill -9 $! 2>/dev/null; wait $!
        done 2>/dev/null
        echo $failed $up"
    ))?;
    let (failed, up) = counts.trim().split_once(' ').expect("two numbers");
    assert!(failed != "0" && up != "0", "{failed} takeovers failed, {up} did not");
    let server = guest.serve(DISK, SERVE)?;
    assert_eq!(server.up["detail"]["recovered"], true, "{}", server.up);
    guest.check(&fio_verify("/dev/ublkb0", 1, 4))?;
    assert_kernel_is_sound(&mut guest)?;

    // A device in that state can be stopped.
    server.kill(&mut guest)?;
    guest.check(WAIT_FOR_QUIESCED)?;
    guest.vm.run(&format!("half-takeover 0 --depth {DEPTH} --ready 1"))?;
    guest.check("pmbd stop /dev/ublkb0 && ! ls /dev/ublkb* /dev/ublkc*")?;
    assert_kernel_is_sound(&mut guest)?;
    guest.shutdown()
}

#[test]
fn kills_inside_takeovers_lose_no_request_and_no_device() -> Result<()> {
    let kills = from_env("PM_TAKEOVER_KILLS", KILLS);
    let mut guest = boot_with_waiting_device()?;
    guest.check(WAIT_FOR_QUIESCED)?;
    let begin = Instant::now();
    let server = guest.serve(DISK, SERVE)?;
    let takeover_ms = begin.elapsed().as_millis();
    // The kills are spread over the time of a takeover and a short time after it.
    let span_ms = takeover_ms * 5 / 4;
    // So slow that the load lasts until the last kill: the writes of a job take twice as long as the kills.
    let writes = 48 * 256 * 70 / 100;
    let rate = (writes * 1000 / (u128::from(kills) * span_ms).max(1)).max(10);
    guest.start("fio", &format!("{} --rate_iops={rate}", fio_verify("/dev/ublkb0", 2, 48)))?;
    server.kill(&mut guest)?;
    let report = guest.check(&format!(
        "up=0; early=0
        for kill in $(seq {kills}); do
            pmbd --json serve {DISK} {SERVE} >/tmp/victim.log 2>&1 &
            ms=$(( kill * 37 * {span_ms} / 100 % {span_ms} ))
            sleep $((ms / 1000)).$(printf '%03d' $((ms % 1000)))
            kill -9 $! || {{ cat /tmp/victim.log; exit 1; }}
            if grep -q '\"serving\"' /tmp/victim.log; then up=$((up + 1)); else early=$((early + 1)); fi
            wait $!
        done 2>/tmp/kills.log
        echo \"killed $early inside a takeover, $up after it\""
    ))?;
    println!("{}", report.trim());
    assert_kernel_is_sound(&mut guest)?;
    guest.check("pidof fio || { cat /tmp/fio.log >&2; exit 1; }")?;
    let server = guest.serve(DISK, SERVE)?;
    assert_eq!(server.up["detail"]["recovered"], true, "{}", server.up);
    guest.succeeded("fio")?;
    assert_kernel_is_sound(&mut guest)?;
    guest.check("pmbd stop /dev/ublkb0")?;
    assert_eq!(server.ended(&mut guest)?, 0);
    guest.shutdown()
}

/// The file system's device has no room for its contents, because it is a sparse image on a full tmpfs. The server accepts writes into the page cache,
/// and is killed after their write-back has failed, which it has not noticed.
#[test]
fn writes_that_a_failed_write_back_lost_are_restored_or_reported() -> Result<()> {
    const DISK: &str = "/mnt/failing/disk.raw";
    const SERVE: &str = "--raw --transport ublk";
    let mut guest = Running::boot(|machine| machine)?;
    guest.check(
        "mkdir -p /mnt/room /mnt/failing && mount -t tmpfs -o size=32M none /mnt/room && cd /mnt/room &&
        truncate -s 28M whole && mkfs.ext4 -q -F -O ^has_journal whole &&
        losetup /dev/loop0 whole && mount /dev/loop0 /mnt/failing &&
        dd if=/dev/zero of=/mnt/failing/disk.raw bs=1M count=16 && umount /mnt/failing && losetup -d /dev/loop0 &&
        cp --sparse=always whole image && rm whole &&
        losetup /dev/loop0 image && mount -o errors=continue /dev/loop0 /mnt/failing &&
        seq 100000 | head -c 262144 >/tmp/pattern",
    )?;
    let server = guest.serve(DISK, SERVE)?;
    assert_eq!(server.up["disk"]["domain"], "page", "{}", server.up);
    guest.vm.run("dd if=/dev/zero of=/mnt/room/full bs=64K; sync")?;
    guest.check("dd if=/tmp/pattern of=/dev/ublkb0 bs=4096 oflag=direct")?;
    guest.vm.run("sync")?;
    guest.check("dmesg | grep -q 'error.*loop0'")?;
    server.kill(&mut guest)?;
    guest.check(WAIT_FOR_QUIESCED)?;

    // A server over NBD would modify the disk while the waiting device has cached contents.
    let other = guest.vm.run(&format!("timeout -s KILL 9 pmbd serve {DISK} --raw --transport nbd"))?;
    assert!(other.status == 1 && other.stderr.contains("is this disk"), "{other:?}");
    for change in [format!("create {DISK} --format"), format!("check {DISK} --repair")] {
        let refused = guest.vm.run(&format!("pmbd {change}"))?;
        assert!(refused.status == 1 && refused.stderr.contains("is this disk"), "{refused:?}");
    }

    // The kernel reports the failure once, to the first fsync; a command that only reads does not consume the report.
    guest.check(&format!("pmbd info {DISK} --raw"))?;
    // The failure is still known after a server fails for lack of space, and after one is killed.
    let failed = guest.vm.run(&format!("timeout -s KILL 9 pmbd serve {DISK} {SERVE}"))?;
    assert_eq!(failed.status, 1, "{failed:?}");
    guest.check("rm /mnt/room/full")?;
    let flush = "dd if=/dev/zero of=/dev/ublkb0 bs=4096 seek=1000 count=1 conv=fsync";
    for _ in 0..2 {
        let server = guest.serve(DISK, SERVE)?;
        assert_eq!(server.up["detail"]["recovered"], true, "{}", server.up);
        let flushed = guest.vm.run(flush)?;
        assert!(
            flushed.status != 0 && flushed.stderr.contains("error"),
            "some writes may be lost: {flushed:?}"
        );
        guest.check("dd if=/dev/ublkb0 bs=4096 count=64 iflag=direct | cmp - /tmp/pattern")?;
        server.kill(&mut guest)?;
        guest.check(WAIT_FOR_QUIESCED)?;
    }

    // Clients of a new device start from the medium's contents.
    guest.check("pmbd stop /dev/ublkb0")?;
    let server = guest.serve(DISK, SERVE)?;
    assert_eq!(server.up["detail"]["recovered"], false, "{}", server.up);
    guest.check(flush)?;
    // A file system requires flushes.
    guest.check(
        "dd if=/dev/ublkb0 of=/tmp/kept bs=4096 count=64 iflag=direct && mkfs.ext4 -q -F /dev/ublkb0 4M &&
        mkdir -p /mnt/disk && mount /dev/ublkb0 /mnt/disk && dd if=/tmp/kept of=/mnt/disk/kept conv=fsync &&
        umount /mnt/disk && e2fsck -fn /dev/ublkb0 && dd if=/tmp/kept of=/dev/ublkb0 conv=fsync",
    )?;
    server.kill(&mut guest)?;
    guest.check("umount /mnt/failing && mount /dev/loop0 /mnt/failing && cmp -n 262144 /tmp/pattern /mnt/failing/disk.raw")?;
    guest.shutdown()
}

/// A file system on the device has had its writes completed, and the next server is told to do without those in the buffers: every flush fails from then
/// on, as after a failed write-back.
#[test]
fn discarded_writes_fail_the_flushes_of_the_waiting_device() -> Result<()> {
    let mut guest = Running::boot(|machine| machine.dax(true))?;
    let server = guest.serve(DISK, &format!("--size 128M {SERVE} --buffer 1M"))?;
    guest.check("dd if=/dev/urandom of=/dev/ublkb0 bs=4K count=16 oflag=direct && dd if=/dev/null of=/dev/ublkb0 conv=fsync,notrunc")?;
    guest.check("dd if=/dev/urandom of=/dev/ublkb0 bs=4K count=16 oflag=direct")?;
    server.kill(&mut guest)?;
    guest.check(WAIT_FOR_QUIESCED)?;
    let server = guest.serve(DISK, &format!("{SERVE} --buffer 1M --discard-buffered"))?;
    assert_eq!(server.up["detail"]["recovered"], true, "{}", server.up);
    let synced = guest.vm.run("dd if=/dev/urandom of=/dev/ublkb0 bs=4K count=1 conv=fsync,notrunc 2>&1")?;
    assert!(synced.status != 0 && synced.stdout.contains("Input/output error"), "{synced:?}");
    guest.check("dd if=/dev/ublkb0 of=/dev/null bs=4K count=16 iflag=direct")?;
    guest.check("pmbd stop --force /dev/ublkb0")?;
    assert_eq!(server.ended(&mut guest)?, 0);

    // The clients of a new device know nothing of the old one.
    let server = guest.serve(DISK, SERVE)?;
    guest.check("dd if=/dev/urandom of=/dev/ublkb0 bs=4K count=1 conv=fsync,notrunc")?;
    guest.check("pmbd stop /dev/ublkb0")?;
    assert_eq!(server.ended(&mut guest)?, 0);
    guest.shutdown()
}
