//! In one boot of a virtual machine: pmbd over ublk on persistent memory, a null target of ublk, and two devices of the kernel: brd, a disk in
//! memory, and loop on a file in a tmpfs.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use pm_bench::fio::{self, Job};
use pm_bench::{Cli, Pair, Report, rounds_of};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use xtask::vm::Vm;

const SIZE_BYTES: u64 = 256 << 20;
const DEPTHS: [u32; 2] = [1, 32];

/// The rivals of pmbd, which is the first column, with goals.
const RIVALS: [(&str, Option<f64>); 3] =
    [("loop on tmpfs", Some(0.85)), ("brd", None), ("ublk null target", None)];
const COLUMNS: usize = 1 + RIVALS.len();

/// Measures, and adds rows to `report`.
pub(crate) fn measure(cli: &Cli, pmbd: &Path, report: &mut Report) -> Result<()> {
    // The guest's persistent memory is memory of the host, like the rivals': on a disk of the host, each page would fault again after the host has
    // written it back.
    let directory = tempfile::tempdir_in("/dev/shm").into_diagnostic()?;
    eprintln!("booting the virtual machine");
    let mut vm = Vm::builder()
        .image(directory.path().join("nvdimm.img"))
        .size_bytes(2 * SIZE_BYTES)
        .dax(true)
        .put(pmbd, "/root/pmbd")
        .put(env!("CARGO_BIN_EXE_ublk-null"), "/root/ublk-null")
        .module(format!("brd rd_nr=1 rd_size={}", SIZE_BYTES >> 10))
        .timeout(Duration::from_secs(120))
        .start()?;
    let devices = start_devices(&mut vm)?;
    for device in &devices {
        let arguments = fio::fill(SIZE_BYTES);
        run_fio(&mut vm, device, &arguments)?;
    }

    let runtime = Duration::from_millis(if cli.quick { 500 } else { 1000 });
    let round_count = cli.round_count(7, 3);
    report.fact("vm_kernel", vm.check("uname -r")?.trim());
    report.fact("vm_size_bytes", SIZE_BYTES);
    report.fact("vm_rounds", round_count);
    for job in Job::at_depths(DEPTHS) {
        eprintln!("ublk, {job}");
        let arguments = job.arguments(SIZE_BYTES, runtime);
        let measured: Vec<[f64; COLUMNS]> = rounds_of(round_count, |index| {
            run_fio(&mut vm, &devices[index], &arguments).and_then(|output| Ok(job.done(&output)?.iops))
        })?;
        for (index, (rival, goal)) in RIVALS.into_iter().enumerate() {
            let pairs = measured.iter().map(|round| Pair { ours: round[0], theirs: round[index + 1] });
            report.row(format!("ublk {job}"), rival, "io/s", pairs.collect(), goal);
        }
    }
    Ok(())
}

/// Starts all devices and returns their paths, in the order of the columns.
fn start_devices(vm: &mut Vm) -> Result<[String; COLUMNS]> {
    let serve = format!(
        "pmbd --json serve /mnt/pmem/disk.pm --size {SIZE_BYTES} --populate --transport ublk \
         >/root/pmbd.json 2>/root/pmbd.log &
         for attempt in $(seq 300); do grep serving /root/pmbd.json && exit; sleep 0.1; done
         cat /root/pmbd.log >&2; exit 1"
    );
    let serving = vm.check(&serve).wrap_err("pmbd does not serve")?;
    let serving: Value = serde_json::from_str(serving.trim()).into_diagnostic()?;
    let detail = &serving["detail"];
    let whole = |name: &str| detail[name].as_u64().ok_or_else(|| miette!("pmbd names no {name}: {serving}"));
    let device = detail["device"].as_str().ok_or_else(|| miette!("pmbd names no device: {serving}"))?;
    let null = format!(
        "ublk-null --size {SIZE_BYTES} --queues {} --depth {} --max-io {} >/root/null.path 2>/root/null.log &
         for attempt in $(seq 300); do [ -s /root/null.path ] && break; sleep 0.1; done
         cat /root/null.path && [ -s /root/null.path ] || {{ cat /root/null.log >&2; exit 1; }}",
        whole("queues")?,
        whole("depth")?,
        whole("max_io_bytes")?,
    );
    let null = vm.check(&null).wrap_err("the null target does not serve")?;
    let looped = vm.check(&format!(
        "mkdir -p /mnt/tmpfs && mount -t tmpfs -o size=1g none /mnt/tmpfs \
         && truncate -s {SIZE_BYTES} /mnt/tmpfs/file && losetup --find --show /mnt/tmpfs/file"
    ))?;
    Ok([device, looped.trim(), "/dev/ram0", null.trim()].map(str::to_owned))
}

fn run_fio(vm: &mut Vm, device: &str, arguments: &[String]) -> Result<String> {
    vm.check(&format!("fio --ioengine=libaio --direct=1 --filename={device} {}", arguments.join(" ")))
}
