//! Takeovers of a ublk device that end before they are complete, and what the next one makes of the device.

use crate::lab::{Running, fio_verify};
use miette::Result;
use std::time::Instant;

const DISK: &str = "/mnt/pmem/disk.pm";
const SERVE: &str = "--transport ublk --queues 2";
const DEPTH: u32 = 128;

/// How many kills inside takeovers, where the variable PM_TAKEOVER_KILLS does not say.
const KILLS: u32 = 12;

/// Fails if the kernel has complained since it booted.
fn assert_kernel_is_sound(guest: &mut Running) -> Result<()> {
    let complaints = guest.vm.run("dmesg | grep -E 'BUG|Oops|WARNING|refcount|blocked for more'")?;
    assert_eq!(complaints.stdout, "", "the kernel complained");
    Ok(())
}

/// A guest with a device whose server was killed and that waits for the next.
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
    // A server that died after START_USER_RECOVERY, with no queue or one of two fetched, also twice in a row.
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

    // A takeover that runs out of descriptors fails before the driver forgets the last server, whichever is one too many.
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

    // Nor does a device in that state resist being stopped.
    server.kill(&mut guest)?;
    guest.check(WAIT_FOR_QUIESCED)?;
    guest.vm.run(&format!("half-takeover 0 --depth {DEPTH} --ready 1"))?;
    guest.check("pmbd stop /dev/ublkb0 && ! ls /dev/ublkb* /dev/ublkc*")?;
    assert_kernel_is_sound(&mut guest)?;
    guest.shutdown()
}

#[test]
fn kills_inside_takeovers_lose_no_request_and_no_device() -> Result<()> {
    let kills: u32 =
        std::env::var("PM_TAKEOVER_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number of kills"));
    let mut guest = boot_with_waiting_device()?;
    guest.check(WAIT_FOR_QUIESCED)?;
    let begin = Instant::now();
    let server = guest.serve(DISK, SERVE)?;
    let takeover_ms = begin.elapsed().as_millis();
    // Spread over the time that a takeover takes, and the first moments after it.
    let span_ms = takeover_ms * 5 / 4;
    // Slow enough to be at work until the last kill: alone, the writes of a job would take twice as long as the kills.
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

/// A server on a file system whose device has no room for what it holds, as the image below that has holes: the server accepts
/// writes into the page cache, and their write-back fails, unseen by the server, which is killed then.
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

    // Over NBD the disk would change behind the back of the device that waits.
    let other = guest.vm.run(&format!("timeout -s KILL 9 pmbd serve {DISK} --raw --transport nbd"))?;
    assert!(other.status == 1 && other.stderr.contains("is this disk"), "{other:?}");
    for change in [format!("create {DISK} --format"), format!("check {DISK} --repair")] {
        let refused = guest.vm.run(&format!("pmbd {change}"))?;
        assert!(refused.status == 1 && refused.stderr.contains("is this disk"), "{refused:?}");
    }

    // The system tells of the failure once, to the first process that asks: not to a command that only looks.
    guest.check(&format!("pmbd info {DISK} --raw"))?;
    // The failure stays known when a server fails, as this one does for lack of space, and when one is killed.
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

    // With a new device, clients start from what the medium has by now.
    guest.check("pmbd stop /dev/ublkb0")?;
    let server = guest.serve(DISK, SERVE)?;
    assert_eq!(server.up["detail"]["recovered"], false, "{}", server.up);
    guest.check(flush)?;
    // A file system lives by flushes.
    guest.check(
        "dd if=/dev/ublkb0 of=/tmp/kept bs=4096 count=64 iflag=direct && mkfs.ext4 -q -F /dev/ublkb0 4M &&
        mkdir -p /mnt/disk && mount /dev/ublkb0 /mnt/disk && dd if=/tmp/kept of=/mnt/disk/kept conv=fsync &&
        umount /mnt/disk && e2fsck -fn /dev/ublkb0 && dd if=/tmp/kept of=/dev/ublkb0 conv=fsync",
    )?;
    server.kill(&mut guest)?;
    guest.check("umount /mnt/failing && mount /dev/loop0 /mnt/failing && cmp -n 262144 /tmp/pattern /mnt/failing/disk.raw")?;
    guest.shutdown()
}
