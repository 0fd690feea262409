//! Servers whose log cannot be written, while they log errors of requests under a verified load.

use crate::lab::{Running, fio_verify};
use miette::Result;

const DISK: &str = "/mnt/pmem/disk.pm";

/// A transport: its option, the device, and what connects the device and disconnects it.
const TRANSPORTS: [(&str, &str, &str, &str); 2] = [
    ("ublk", "/dev/ublkb0", "true", "true"),
    (
        "nbd --socket /run/disk.sock",
        "/dev/nbd0",
        "modprobe nbd && nbd-client -unix /run/disk.sock /dev/nbd0",
        "nbd-client -d /dev/nbd0",
    ),
];

/// A log: what a server's shell writes to it first, and where it goes. The first can be written, which shows that the others would have lines.
const LOGS: [(&str, &str, &str); 4] = [
    ("kept", "true", ">/dev/report 2>/tmp/kept"),
    ("on a full disk", "true", ">/dev/report 2>/mnt/full/log"),
    ("a closed pipe", "true", "2>&1 >/dev/report | true"),
    (
        "a full pipe",
        "head -c 65536 /dev/zero >&2",
        "2>&1 >/dev/report | while [ -e /tmp/unread ]; do sleep 0.1; done",
    ),
];

/// A verified load, and beside it reads that fail, which the server logs.
fn load(device: &str) -> String {
    format!(
        "touch /tmp/loading
        while [ -e /tmp/loading ]; do
            dd if={device} of=/dev/null bs=4k count=1 skip=10240 iflag=direct; sleep 0.05
        done 2>/tmp/failing &
        {}; code=$?
        rm /tmp/loading; wait; grep -q 'Input/output error' /tmp/failing && exit $code",
        fio_verify(device, 1, 16)
    )
}

#[test]
fn log_that_cannot_be_written_does_not_disturb_a_load() -> Result<()> {
    let mut guest = Running::boot(|machine| machine.dax(true))?;
    guest.check(
        "mkdir -p /mnt/full && mount -t tmpfs -o size=64k none /mnt/full && touch /mnt/full/log
        ! dd if=/dev/zero of=/mnt/full/fill bs=4k",
    )?;
    for (transport, device, connect, disconnect) in TRANSPORTS {
        for (log, first, redirections) in LOGS {
            println!("{transport}, a log that is {log}");
            guest.check("touch /tmp/unread; rm -f /tmp/code")?;
            guest.start(
                "server",
                &format!(
                    "( {first}; RUST_LOG=debug pmbd serve {DISK} --size 64M --transport {transport} --json
                    echo $? >/tmp/code ) {redirections}"
                ),
            )?;
            guest.wait_for("the server", |line| line.contains("\"serving\"").then_some(()))?;
            guest.check(connect)?;
            // The end of the disk cannot be accessed any more.
            guest.check(&format!("truncate -s 32M {DISK}"))?;
            guest.check(&load(device))?;
            guest.check(&format!("{disconnect} && pmbd stop {DISK}"))?;
            guest.check("while [ ! -s /tmp/code ]; do sleep 0.05; done; rm /tmp/unread")?;
            guest.succeeded("server")?;
            assert_eq!(guest.check("cat /tmp/code")?, "0\n", "{transport}, {log}");
            guest.check(&format!("rm {DISK}"))?;
        }
        guest.check("grep 'cannot be accessed' /tmp/kept && rm /tmp/kept && test ! -s /mnt/full/log")?;
    }
    guest.shutdown()
}
