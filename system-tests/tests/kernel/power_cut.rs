//! Repeatedly, under load and on the same persistent memory: the servers are killed, others take their devices over, and the guest's power is cut.
//! Acknowledged writes must survive.

use std::thread;
use std::time::Duration;

use crate::lab::{Lab, from_env};
use miette::{Result, WrapErr, bail, ensure};
use pm_system_tests::powercut::{Ledger, Tally};
use xtask::pmbd::{Guest, Server};

/// The default of PM_POWER_CUTS, the number of power cuts.
const CUTS: u32 = 4;

const BLOCK_WRITERS: u64 = 4;
const FILE_WRITERS: u64 = 2;

/// Two disks: one is written block by block, the other has ext4, mounted at /mnt/files.
const BLOCKS: &str = "/mnt/pmem/blocks.pm";
const FILES: &str = "/mnt/pmem/files.pm";
const SERVE_BLOCKS: &str = "--size 32M --transport ublk --queues 2 --device 0 --buffer-dir /run";
const SERVE_FILES: &str = "--size 128M --transport ublk --queues 2 --device 1 --buffer-dir /run";

/// How the disks are served from one boot to the next power cut: protections, schemes and buffers, each on both disks in turn, and neither.
const CHOICES: [[&str; 2]; 4] = [
    ["--protect unmapped", "--scheme deferred"],
    ["--scheme deferred", "--protect page-table --buffer 1M"],
    ["--protect async --buffer 256K --buffers 4", "--protect unmapped"],
    ["", ""],
];

/// The sequence numbers of a boot are greater than those of the boot before.
const SEQUENCES_A_BOOT: u64 = 1 << 32;

#[test]
fn acknowledged_writes_survive_kills_and_power_cuts() -> Result<()> {
    let cuts = from_env("PM_POWER_CUTS", CUTS);
    let mut random = fastrand::Rng::new();
    let lab = Lab::new();
    let mut blocks = Ledger::new("block", BLOCK_WRITERS, false);
    // rename(2) replaces a file atomically.
    let mut files = Ledger::new("file", FILE_WRITERS, true);

    let (mut guest, mut servers) = boot(&lab, 0)?;
    guest.check("mkfs.ext4 -q /dev/ublkb1 && mount /dev/ublkb1 /mnt/files")?;
    for cut in 1..=cuts {
        start_writers(&mut guest, u64::from(cut) * SEQUENCES_A_BOOT)?;
        let mut enough = 0;
        for server in servers {
            enough += random.usize(30..300);
            work(&mut guest, &mut blocks, &mut files, enough)?;
            let (path, options) = server.1;
            server.0.kill(&mut guest)?;
            let next = guest.serve(path, &options)?;
            ensure!(next.up["detail"]["recovered"] == true, "not taken over: {}", next.up);
        }
        enough += random.usize(30..300);
        work(&mut guest, &mut blocks, &mut files, enough)?;
        // At a random moment.
        thread::sleep(Duration::from_micros(random.u64(..20_000)));
        for line in guest.power_cut()? {
            take(&line, &mut blocks, &mut files)?;
        }

        (guest, servers) = boot(&lab, cut)?;
        let cut_of = || format!("after cut {cut} of {cuts}");
        let blocks = compare_blocks(&mut guest, &mut blocks).wrap_err_with(cut_of)?;
        let files = compare_files(&mut guest, &mut files).wrap_err_with(cut_of)?;
        println!("cut {cut} of {cuts}: {}", summary(blocks, files));
    }
    guest.check("umount /mnt/files && pmbd stop /dev/ublkb0 && pmbd stop /dev/ublkb1")?;
    guest.check("umount /mnt/pmem && e2fsck -fn /dev/pmem0")?;
    guest.vm.shutdown()
}

/// Takes reports until `enough` writes of this round are acknowledged.
fn work(guest: &mut Guest, blocks: &mut Ledger, files: &mut Ledger, enough: usize) -> Result<()> {
    while blocks.acknowledged_count() + files.acknowledged_count() < enough {
        let line = guest.wait_for("acknowledged writes", |line| Some(line.to_owned()))?;
        take(&line, blocks, files)?;
    }
    Ok(())
}

/// A server, its disk and its options.
type Serving = (Server, (&'static str, String));

/// Boots on the persistent memory after this number of power cuts, and serves both disks.
fn boot(lab: &Lab, cuts: u32) -> Result<(Guest, Vec<Serving>)> {
    let writer = env!("CARGO_BIN_EXE_power-cut-writer");
    let mut guest = Guest::new(lab.machine()?.dax(true).put(writer, "/root/power-cut-writer").start()?);
    let mut servers = Vec::new();
    let choice = CHOICES[cuts as usize % CHOICES.len()];
    for ((path, options), choice) in [(BLOCKS, SERVE_BLOCKS), (FILES, SERVE_FILES)].into_iter().zip(choice) {
        let options = format!("{options} {choice}");
        let server = guest.serve(path, &options)?;
        ensure!(server.up["disk"]["medium"] == "dax-file", "not on DAX: {}", server.up);
        let corruption =
            server.up["disk"]["corruption"].as_array().is_some_and(|corruption| !corruption.is_empty());
        ensure!(!corruption, "the pool is corrupted: {}", server.up);
        servers.push((server, (path, options)));
    }
    guest.check("mkdir -p /mnt/files")?;
    Ok((guest, servers))
}

fn start_writers(guest: &mut Guest, first: u64) -> Result<()> {
    for (name, place, threads) in [
        ("block-writers", "--device /dev/ublkb0", BLOCK_WRITERS),
        ("file-writers", "--directory /mnt/files", FILE_WRITERS),
    ] {
        guest.start(name, &format!("power-cut-writer write {place} --threads {threads} --first {first}"))?;
    }
    Ok(())
}

/// Enters a report in its ledger.
fn take(line: &str, blocks: &mut Ledger, files: &mut Ledger) -> Result<()> {
    if !(blocks.acknowledge(line)? || files.acknowledge(line)?) {
        bail!("unexpected report: {line}");
    }
    Ok(())
}

fn compare_blocks(guest: &mut Guest, known: &mut Ledger) -> Result<Tally> {
    known.compare(&guest.check("power-cut-writer read --device /dev/ublkb0")?)
}

/// Mounts the file system, which replays its journal, compares the files, checks the file system, and mounts it again.
fn compare_files(guest: &mut Guest, known: &mut Ledger) -> Result<Tally> {
    // The file system was mounted when the power was cut.
    guest.check("dumpe2fs -h /dev/ublkb1 2>&1 | grep -q needs_recovery")?;
    guest.check("mount /dev/ublkb1 /mnt/files")?;
    let tally = known.compare(&guest.check("power-cut-writer read --directory /mnt/files")?)?;
    guest.check("umount /mnt/files && e2fsck -fn /dev/ublkb1 && mount /dev/ublkb1 /mnt/files")?;
    Ok(tally)
}

fn summary(blocks: Tally, files: Tally) -> String {
    format!(
        "{} writes acknowledged ({} of blocks, {} of files), all there; of those in flight {} are there, {} torn",
        blocks.acknowledged_count + files.acknowledged_count,
        blocks.acknowledged_count,
        files.acknowledged_count,
        blocks.unacknowledged_count + files.unacknowledged_count,
        blocks.torn_count,
    )
}
