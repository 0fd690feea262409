//! DRBD's commands in the guests.

use miette::{Result, miette};

use crate::pair::Node;

/// /etc/drbd.d/r0.res on both nodes.
pub(crate) const RESOURCE: &str = include_str!("r0.res");

/// Once on each node: the metadata at the end of the disk.
const CREATE: &str = "drbdadm create-md --force r0";
/// At each boot of a node.
const UP: &str = "modprobe drbd && drbdadm up r0";
/// Once on one of them, after both are up. Both disks are new and all zeroes, so there is nothing to copy.
const SKIP_FIRST_SYNC: &str = "drbdadm new-current-uuid --clear-bitmap r0";
/// On the node that uses the device.
pub(crate) const PROMOTE: &str = "drbdadm primary r0";
/// After that.
pub(crate) const MOUNT: &str = "mount /dev/drbd0 /mnt/disk";
/// After a split brain, on the node that gives up its changes, and then on the other.
pub(crate) const DISCARD: &str = "drbdadm secondary r0 && drbdadm connect --discard-my-data r0";
pub(crate) const CONNECT: &str = "drbdadm connect r0";
/// Compares the disks, and copies what differs.
const VERIFY: &str = "drbdadm verify r0";
pub(crate) const RECONNECT: &str = "drbdadm disconnect r0 && drbdadm connect r0";
/// Before and after a new disk is served in place of one that has failed.
pub(crate) const REMOVE_DISK: &str = "umount /mnt/disk && pmbd stop /dev/ublkb0 && rm /mnt/pmem/disk.pm";
pub(crate) const ATTACH_DISK: &str =
    "mount /dev/drbd0 /mnt/disk && drbdadm create-md --force r0 && drbdadm attach r0";

/// All of them, for the documentation.
pub(crate) const COMMANDS: [&str; 11] = [
    CREATE,
    UP,
    SKIP_FIRST_SYNC,
    PROMOTE,
    MOUNT,
    DISCARD,
    CONNECT,
    VERIFY,
    RECONNECT,
    REMOVE_DISK,
    ATTACH_DISK,
];

/// The state of the resource at one node that is connected to the other, with equal contents.
const EQUAL: &str = "cs:Connected .* ds:UpToDate/UpToDate";

/// Creates the resource on both nodes, connects them, and promotes the first.
pub(crate) fn create([first, second]: &mut [Node; 2]) -> Result<()> {
    for node in [&mut *first, &mut *second] {
        create_and_join(node)?;
    }
    wait_for(first, "cs:Connected .* ds:Inconsistent/Inconsistent")?;
    first.check(SKIP_FIRST_SYNC)?;
    wait_until_equal(second)?;
    first.check(PROMOTE)?;
    Ok(())
}

/// Creates the resource on a node whose disk is new, and brings it up.
pub(crate) fn create_and_join(node: &mut Node) -> Result<()> {
    configure(node)?;
    node.check(CREATE)?;
    node.check(UP)?;
    Ok(())
}

/// Takes the resource down at a node that is primary, and up again. So its activity log is empty: of the extents of 4 MiB that were written last, the log
/// has a thousand, more than this disk, and all of them are resynchronized after a crash of the primary node.
pub(crate) fn forget_activity(primary: &mut Node) -> Result<()> {
    primary.check(&format!("drbdadm down r0 && {UP}"))?;
    wait_until_equal(primary)?;
    primary.check(PROMOTE)?;
    Ok(())
}

/// Writes the configuration, as it is after a boot on a machine whose /etc is on a disk.
fn configure(node: &mut Node) -> Result<()> {
    node.check(&format!(
        "mkdir -p /etc/drbd.d /var/lib/drbd /var/lock /var/run
        cat >/etc/drbd.conf <<'END'
include \"drbd.d/global_common.conf\";
include \"drbd.d/*.res\";
END
        echo 'global {{ usage-count no; }}' >/etc/drbd.d/global_common.conf
        cat >/etc/drbd.d/r0.res <<'END'
{RESOURCE}
END"
    ))?;
    Ok(())
}

/// Brings the resource up on a node that has booted again.
pub(crate) fn rejoin(node: &mut Node) -> Result<()> {
    configure(node)?;
    node.check(UP)?;
    Ok(())
}

/// Waits until the line of the resource in /proc/drbd matches.
pub(crate) fn wait_for(node: &mut Node, state: &str) -> Result<()> {
    node.wait_until(&format!("grep -q '^ 0: {state}' /proc/drbd"))
}

/// Waits until the nodes are connected and have the same contents.
pub(crate) fn wait_until_equal(node: &mut Node) -> Result<()> {
    wait_for(node, EQUAL)
}

/// The KiB that were resynchronized from or to this node since the last call.
pub(crate) fn resynced_kib(node: &mut Node) -> Result<u64> {
    let text = node.check("dmesg -c | sed -n 's/.*will sync \\([0-9]*\\) KB.*/\\1/p'")?;
    text.lines().map(|line| line.parse::<u64>().map_err(|_| miette!("not a number: {line}"))).sum()
}

/// Compares the nodes block by block while they run, and returns how many KiB differ.
pub(crate) fn verify(node: &mut Node) -> Result<u64> {
    node.check("dmesg -c >/dev/null")?;
    node.check(VERIFY)?;
    node.wait_until("dmesg | grep -q 'Online verify done'")?;
    wait_for(node, "cs:Connected")?;
    let out_of_sync = node.check("sed -n 's/.* oos:\\([0-9]*\\).*/\\1/p' /proc/drbd")?;
    out_of_sync.trim().parse().map_err(|_| miette!("not a number: {out_of_sync}"))
}

/// Takes the resource down on both nodes, and compares what is below DRBD: all bytes of both disks but the metadata.
pub(crate) fn assert_same_below([first, second]: &mut [Node; 2]) -> Result<()> {
    let sectors = first.check("cat /sys/block/drbd0/size")?;
    let sum = format!("bash -o pipefail -c 'head -c $(({} * 512)) /dev/ublkb0 | sha256sum'", sectors.trim());
    let mut sums = Vec::new();
    for node in [&mut *first, &mut *second] {
        node.check("drbdadm down r0 && blockdev --flushbufs /dev/ublkb0")?;
        sums.push(node.check(&sum)?);
    }
    assert_eq!(sums[0], sums[1], "the disks differ below DRBD");
    Ok(())
}
