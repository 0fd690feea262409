//! The power of the primary node is cut under writers. The other node is promoted and has every acknowledged write.

use std::time::{Duration, Instant};

use crate::drbd;
use crate::pair::{Cable, Node, Pair};
use miette::{Result, WrapErr, bail, ensure};
use pm_system_tests::powercut::{Ledger, Tally};

const BLOCK_WRITERS: u64 = 2;
const FILE_WRITERS: u64 = 1;

/// The sequence numbers of a round are greater than those of the round before.
const SEQUENCES_A_ROUND: u64 = 1 << 32;

/// Large enough that little of it is in DRBD's activity log.
const DISK_MIB: u64 = 256;

/// Writes that are acknowledged before a cut.
const ENOUGH: usize = 60;

/// For so long the primary node runs without the cable. It is shorter than the time after which DRBD gives up the peer.
const WITHOUT_CABLE: Duration = Duration::from_secs(1);

/// What is known to be durable.
struct Known {
    blocks: Ledger,
    files: Ledger,
}

#[test]
fn secondary_has_every_acknowledged_write_when_primary_loses_power() -> Result<()> {
    let mut known = Known {
        blocks: Ledger::new("block", BLOCK_WRITERS, false),
        // rename(2) replaces a file atomically.
        files: Ledger::new("file", FILE_WRITERS, true),
    };
    let (pair, mut nodes) = Pair::boot(DISK_MIB)?;
    drbd::create(&mut nodes)?;
    let [mut primary, mut secondary] = nodes;
    primary.check("mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/drbd0")?;
    drbd::forget_activity(&mut primary)?;
    primary.check("mkdir -p /mnt/disk")?;
    primary.check(drbd::MOUNT)?;
    primary.check("mkdir /mnt/disk/files && dd if=/dev/zero of=/mnt/disk/blocks bs=1M count=1 conv=fsync")?;
    for (round, cable) in (1..).zip([Cable::Whole, Cable::Cut]) {
        start_writers(&mut primary, round * SEQUENCES_A_ROUND)?;
        known.follow(&mut primary, ENOUGH)?;
        if let Cable::Cut = cable {
            // What the primary node acknowledges from here on is at the other node only if DRBD waits for it.
            secondary.cable(Cable::Cut)?;
            known.follow_for(&mut primary, WITHOUT_CABLE)?;
        }
        for line in primary.guest.power_cut()? {
            known.acknowledge(&line)?;
        }
        secondary.cable(Cable::Whole)?;
        secondary.check("dmesg -c >/dev/null")?;
        drbd::wait_for(&mut secondary, "cs:WFConnection ro:Secondary/Unknown ds:UpToDate")?;
        secondary.check("mkdir -p /mnt/disk")?;
        secondary.check(drbd::PROMOTE)?;
        secondary.check(drbd::MOUNT)?;
        let tally = known.compare(&mut secondary).wrap_err_with(|| format!("after cut {round}"))?;

        // The cut node comes back with what it had, and misses what is written meanwhile.
        secondary.check("dd if=/dev/urandom of=/mnt/disk/meanwhile bs=1M count=4 conv=fsync")?;
        let index = if round % 2 == 1 { 0 } else { 1 };
        let mut returned = pair.boot_node(index)?;
        drbd::rejoin(&mut returned)?;
        drbd::wait_until_equal(&mut returned)?;
        drbd::wait_until_equal(&mut secondary)?;
        let resynced_kib = drbd::resynced_kib(&mut secondary)?;
        println!("cut {round}, cable {cable:?}: {tally}; {resynced_kib} KiB resynchronized");
        ensure!(resynced_kib >= 4096, "{resynced_kib} KiB are less than was written meanwhile");
        ensure!(resynced_kib < DISK_MIB * 1024 / 4, "{resynced_kib} KiB are not only the difference");
        (primary, secondary) = (secondary, returned);
    }
    primary.check("umount /mnt/disk && e2fsck -fn /dev/drbd0")?;
    drbd::assert_same_below(&mut [primary, secondary])
}

fn start_writers(node: &mut Node, first: u64) -> Result<()> {
    for (name, place, threads) in [
        ("block-writers", "--device /mnt/disk/blocks", BLOCK_WRITERS),
        ("file-writers", "--directory /mnt/disk/files", FILE_WRITERS),
    ] {
        let write = format!("power-cut-writer write {place} --threads {threads} --first {first}");
        node.guest.start(name, &write)?;
    }
    Ok(())
}

impl Known {
    /// Enters a report in its ledger.
    fn acknowledge(&mut self, line: &str) -> Result<()> {
        if !(self.blocks.acknowledge(line)? || self.files.acknowledge(line)?) {
            bail!("unexpected report: {line}");
        }
        Ok(())
    }

    /// Takes reports until so many writes of each kind are acknowledged.
    fn follow(&mut self, node: &mut Node, enough: usize) -> Result<()> {
        while self.blocks.acknowledged_count().min(self.files.acknowledged_count()) < enough {
            let line = node.guest.wait_for("acknowledged writes", |line| Some(line.to_owned()))?;
            self.acknowledge(&line)?;
        }
        Ok(())
    }

    /// Takes reports for so long.
    fn follow_for(&mut self, node: &mut Node, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while let Some(line) = node.guest.vm.next_report(end.saturating_duration_since(Instant::now())) {
            self.acknowledge(&line)?;
        }
        Ok(())
    }

    /// Compares with what a node has, and describes it.
    fn compare(&mut self, node: &mut Node) -> Result<String> {
        let blocks = self.blocks.compare(&node.check("power-cut-writer read --device /mnt/disk/blocks")?)?;
        let files = self.files.compare(&node.check("power-cut-writer read --directory /mnt/disk/files")?)?;
        let count = |tally: Tally| tally.acknowledged_count;
        Ok(format!(
            "{} writes of blocks and {} of files acknowledged, all there",
            count(blocks),
            count(files)
        ))
    }
}
