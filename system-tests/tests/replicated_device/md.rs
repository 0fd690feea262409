//! md RAID1 with a write-intent bitmap over the own disk and that of the other node, which exports it by NVMe over TCP.

use crate::pair::{Cable, Node, Pair};
use miette::{IntoDiagnostic, Result, ensure};
use pm_system_tests::powercut::Ledger;

const DISK_MIB: u64 = 64;

/// Exports the disk of the node whose address is in `$address`.
pub(crate) const EXPORT: &str = include_str!("export.sh");
/// On a node whose disk is no longer the remote one.
const UNEXPORT: &str = "rm /sys/kernel/config/nvmet/ports/1/subsystems/* && \
                        echo 0 >/sys/kernel/config/nvmet/subsystems/nqn.2026-01.example:disk/namespaces/1/enable";
const MODULES: &str = "modprobe -a nvme_tcp raid1";
/// Connects to the other node's disk. What is in flight fails seconds after the other node is lost.
const CONNECT: &str = "nvme connect --transport tcp --trsvcid 4420 --nqn nqn.2026-01.example:disk \
                       --keep-alive-tmo 3 --reconnect-delay 1 --ctrl-loss-tmo 3 --traddr 10.0.0.2";
const CREATE: &str = "mdadm --create /dev/md0 --run --level 1 --raid-devices 2 --assume-clean \
                      --bitmap internal --bitmap-chunk 64K /dev/ublkb0 --write-mostly /dev/nvme0n1";
/// After the remote disk was lost, and before it is added again.
const REMOVE: &str = "mdadm /dev/md0 --remove failed --remove detached";
const ADD_AGAIN: &str = "mdadm /dev/md0 --re-add /dev/nvme0n1";
/// On the other node, when the array's node is dead.
const TAKE_OVER: &str = "modprobe raid1 && mdadm --assemble --run /dev/md0 /dev/ublkb0";

/// All of them, for the documentation.
pub(crate) const COMMANDS: [&str; 7] = [UNEXPORT, MODULES, CONNECT, CREATE, REMOVE, ADD_AGAIN, TAKE_OVER];

/// The node's address in the network.
fn address(index: usize) -> String {
    format!("10.0.0.{}", index + 1)
}

/// Lets the other node use the disk of node `index`.
fn export(node: &mut Node, index: usize) -> Result<()> {
    node.check("modprobe configfs && { mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config; }")?;
    node.check(&format!("set -e\naddress={}\n{EXPORT}", address(index)))?;
    Ok(())
}

/// The identity of this NVMe host, which the installation of nvme-cli makes.
const IDENTITY: &str = "mkdir -p /etc/nvme && cd /etc/nvme && cat /proc/sys/kernel/random/uuid >hostid &&
    echo nqn.2014-08.org.nvmexpress:uuid:$(cat hostid) >hostnqn";

/// Connects to the disk of node `index`, and returns its name in /dev.
fn connect(node: &mut Node, index: usize) -> Result<String> {
    node.check(&format!("[ -e /etc/nvme/hostid ] || {{ {IDENTITY}; }}"))?;
    node.check(&format!("{MODULES} && {}", CONNECT.replace("10.0.0.2", &address(index))))?;
    node.wait_until("ls /dev/nvme*n1 >/dev/null 2>&1")?;
    Ok(node.check("ls /dev/nvme*n1")?.trim().replace("/dev/", ""))
}

/// Adds the disk that was lost to the array again, and returns how many KiB were written to it until it had all.
fn add_again(node: &mut Node, disk: &str) -> Result<u64> {
    let written = format!("awk '{{ print int($7 / 2) }}' /sys/block/{disk}/stat");
    let kib = |node: &mut Node| node.check(&written)?.trim().parse::<u64>().into_diagnostic();
    let before = kib(node)?;
    node.check(&ADD_AGAIN.replace("nvme0n1", disk))?;
    node.wait_until("grep -q '\\[UU\\]' /proc/mdstat")?;
    Ok(kib(node)? - before)
}

/// Compares the data of the array on both disks, after it was stopped.
fn assert_same_below(nodes: &mut [Node; 2]) -> Result<()> {
    let mut sums = Vec::new();
    for node in nodes {
        // In sectors.
        let examined = node
            .check("mdadm --examine /dev/ublkb0 | sed -n 's/^ *Data Offset : \\([0-9]*\\) sectors/\\1/p'")?;
        let offset: u64 = examined.trim().parse().into_diagnostic()?;
        let kib =
            node.check("mdadm --examine /dev/ublkb0 | sed -n 's/^ *Array Size : \\([0-9]*\\) KiB.*/\\1/p'")?;
        let bytes = kib.trim().parse::<u64>().into_diagnostic()? * 1024;
        let sum = format!("head -c {} /dev/ublkb0 | tail -c {bytes} | sha256sum", offset * 512 + bytes);
        sums.push(node.check(&format!("blockdev --flushbufs /dev/ublkb0 && bash -o pipefail -c '{sum}'"))?);
    }
    ensure!(sums[0] == sums[1], "the disks differ below md: {sums:?}");
    Ok(())
}

#[test]
fn array_continues_without_remote_disk_and_copies_only_the_difference() -> Result<()> {
    let (_pair, mut nodes) = Pair::boot(DISK_MIB)?;
    let [first, second] = &mut nodes;
    export(second, 1)?;
    assert_eq!(connect(first, 1)?, "nvme0n1");
    first.check(CREATE)?;
    let write = |mib: u64, count: u64| {
        format!(
            "dd if=/dev/urandom of=/dev/md0 bs=1M count={count} seek={mib} iflag=fullblock oflag=direct,dsync"
        )
    };
    first.check(&write(0, 16))?;
    first.wait_until("grep -q '\\[UU\\]' /proc/mdstat")?;

    second.cable(Cable::Cut)?;
    // Waits until the remote disk has failed, and succeeds.
    first.check(&write(20, 1))?;
    first.wait_until("grep -q '\\[U_\\]' /proc/mdstat")?;
    first.check(&write(30, 2))?;
    first.wait_until("! ls /dev/nvme*n1 >/dev/null 2>&1")?;
    second.cable(Cable::Whole)?;
    first.check(REMOVE)?;

    let disk = connect(first, 1)?;
    let copied_kib = add_again(first, &disk)?;
    println!("{copied_kib} KiB copied");
    ensure!(copied_kib >= 3 * 1024, "{copied_kib} KiB are less than was written meanwhile");
    ensure!(copied_kib < DISK_MIB * 1024 / 4, "{copied_kib} KiB are not only the difference");
    first.check("mdadm --stop /dev/md0 && nvme disconnect --nqn nqn.2026-01.example:disk")?;
    assert_same_below(&mut nodes)
}

#[test]
fn remote_disk_has_every_acknowledged_write_when_the_arrays_node_loses_power() -> Result<()> {
    const WRITERS: u64 = 2;
    let mut known = Ledger::new("block", WRITERS, false);
    let (pair, nodes) = Pair::boot(DISK_MIB)?;
    let [mut first, mut second] = nodes;
    export(&mut second, 1)?;
    connect(&mut first, 1)?;
    first.check(CREATE)?;
    // In a new bitmap all bits are set, and are cleared in the background.
    first.wait_until("mdadm --examine-bitmap /dev/ublkb0 | grep -q ' 0 dirty'")?;
    first.guest.start(
        "writers",
        &format!("power-cut-writer write --device /dev/md0 --threads {WRITERS} --first 1"),
    )?;
    while known.acknowledged_count() < 100 {
        let line = first.guest.wait_for("acknowledged writes", |line| Some(line.to_owned()))?;
        ensure!(known.acknowledge(&line)?, "unexpected report: {line}");
    }
    for line in first.guest.power_cut()? {
        ensure!(known.acknowledge(&line)?, "unexpected report: {line}");
    }

    // The disk is no longer exported, and is the array's only one.
    second.check(UNEXPORT)?;
    second.check(TAKE_OVER)?;
    let tally = known.compare(&second.check("power-cut-writer read --device /dev/md0")?)?;
    println!("{} writes acknowledged, all there", tally.acknowledged_count);
    second.check("dd if=/dev/urandom of=/dev/md0 bs=1M count=2 iflag=fullblock oflag=direct,dsync")?;

    // The cut node comes back, and its disk becomes the remote one.
    let mut first = pair.boot_node(0)?;
    export(&mut first, 0)?;
    let disk = connect(&mut second, 0)?;
    let copied_kib = add_again(&mut second, &disk)?;
    println!("{copied_kib} KiB copied");
    ensure!(copied_kib >= 2 * 1024, "{copied_kib} KiB are less than was written meanwhile");
    ensure!(copied_kib < DISK_MIB * 1024 / 2, "{copied_kib} KiB are not only the difference");
    second.check("mdadm --stop /dev/md0 && nvme disconnect --nqn nqn.2026-01.example:disk")?;
    assert_same_below(&mut [first, second])
}
