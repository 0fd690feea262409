//! In one boot of a virtual machine: ext4 on pmbd over ublk on persistent memory, for each write scheme, mounted with barriers and without. After Figs. 10
//! and 12 of PMBD (MSST 2014).

use miette::{IntoDiagnostic as _, Result, ensure};
use pm_bench::{Cli, Pair, Report};
use std::path::Path;
use std::time::Instant;
use xtask::apt::{self, Need};
use xtask::pmbd::{Guest, source_tree};
use xtask::process;
use xtask::vm::Vm;

/// Schemes, and their options. The first is what the others are compared with.
const SCHEMES: [(&str, &str); 7] = [
    ("movnt", ""),
    ("clwb", "--scheme clwb"),
    ("clflush", "--scheme clflush"),
    ("deferred", "--scheme deferred"),
    ("subupdate", "--subupdate"),
    ("wrverify", "--wrverify"),
    ("buffered", "--buffer 16M --buffer-dir /run"),
];

const BARRIERS: [&str; 2] = ["barrier", "nobarrier"];

/// What is done on the file system, after a script that is not measured.
const LOADS: [(&str, &str); 3] = [
    ("untar", "tar xf /run/src.tar -C /mnt/disk && sync"),
    (
        "compress each file",
        "find /mnt/disk/src -type f | while read f; do gzip -c $f >$f.gz || exit 1; done && sync",
    ),
    ("SQLite, 200 transactions", "sqlite3 /mnt/disk/database </run/transactions.sql"),
];

/// Measures, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, pmbd: &Path, report: &mut Report) -> Result<()> {
    apt::ensure(&[Need::new("sqlite3", "sqlite3")])?;
    let round_count = cli.round_count(3, 1);
    report.fact("vm_rounds", round_count);
    let sqlite = process::output(std::process::Command::new("sh").args(["-c", "command -v sqlite3"]))?;
    let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    eprintln!("booting the virtual machine");
    let vm = Vm::builder()
        .image(directory.path().join("nvdimm.img"))
        .dax(true)
        .put(pmbd, "/root/pmbd")
        .put(sqlite.trim(), "/root/sqlite3")
        .puts(source_tree("/src")?)
        .start()?;
    let mut guest = Guest::new(vm);
    guest.check(
        "tar cf /run/src.tar /src
         { echo 'PRAGMA synchronous=FULL; CREATE TABLE t(a, b);'
           for n in $(seq 200); do echo \"INSERT INTO t VALUES($n, zeroblob(500));\"; done; } >/run/transactions.sql",
    )?;
    let mut measured = vec![Vec::new(); SCHEMES.len() * BARRIERS.len()];
    for round in 0..round_count {
        for turn in 0..measured.len() {
            // Forwards and backwards.
            let case = if round.is_multiple_of(2) { turn } else { measured.len() - 1 - turn };
            let rates = run(&mut guest, SCHEMES[case / BARRIERS.len()], BARRIERS[case % BARRIERS.len()])?;
            measured[case].push(rates);
        }
    }
    guest.vm.shutdown()?;
    for (load, (what, _)) in LOADS.iter().enumerate() {
        for (case, rates) in measured.iter().enumerate().skip(1) {
            let name = |case: usize| {
                format!("{}, {}", SCHEMES[case / BARRIERS.len()].0, BARRIERS[case % BARRIERS.len()])
            };
            let pairs = rates.iter().zip(&measured[0]);
            let pairs = pairs.map(|(ours, theirs)| Pair { ours: ours[load], theirs: theirs[load] });
            let name_of_rival = name(0);
            report.row(
                format!("ext4 in the VM, {what}: {}", name(case)),
                &name_of_rival,
                "runs/s",
                pairs.collect(),
                None,
            );
        }
    }
    Ok(())
}

/// Runs all loads on a new disk and file system. Returns runs a second.
fn run(guest: &mut Guest, (scheme, options): (&str, &str), barrier: &str) -> Result<[f64; LOADS.len()]> {
    eprintln!("ext4, {scheme}, {barrier}");
    let server =
        guest.serve("/mnt/pmem/disk.pm", &format!("--size 128M --transport ublk --populate {options}"))?;
    let mount = format!(
        "mkfs.ext4 -q -F /dev/ublkb0 && mkdir -p /mnt/disk && mount -o {barrier} /dev/ublkb0 /mnt/disk && sync"
    );
    guest.check(&mount)?;
    let mut rates = [0.0; LOADS.len()];
    for (rate, (_, script)) in rates.iter_mut().zip(LOADS) {
        let begin = Instant::now();
        guest.check(script)?;
        *rate = 1.0 / begin.elapsed().as_secs_f64();
    }
    let rows = guest.check("sqlite3 /mnt/disk/database 'SELECT count(*) FROM t'")?;
    ensure!(rows.trim() == "200", "{rows}");
    guest.check("diff -r /src/crates /mnt/disk/src/crates | grep -v '^Only in.*gz$' | head -n 5 >/run/diff; test ! -s /run/diff")?;
    guest.check("umount /mnt/disk && e2fsck -fn /dev/ublkb0")?;
    server.stop(guest, "TERM")?;
    guest.check("rm /mnt/pmem/disk.pm")?;
    Ok(rates)
}
