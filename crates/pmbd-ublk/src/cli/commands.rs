//! The commands other than `serve`.

use super::args::{Check, Create, Info, Stop};
use super::error::AtPath;
use super::identity::check_none_waits;
use super::open::{may_any_wait, region, sector};
use super::registry::{self, Entry};
use super::report;
use miette::{Context as _, IntoDiagnostic as _, bail, miette};
use pm_cli_common::say;
use pm_core::{HeaderState, Pool, PoolError, RegionOptions};
use pmbd::disk::{DiskKind, read_geometry};
use pmbd::ublk;
use pmbd::{Disk, DiskError, DiskOptions};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The longest time that `stop` waits for a server to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time that it waits for clients that are about to disconnect.
const CLIENTS_TIMEOUT: Duration = Duration::from_millis(500);

/// The exit code for corruption that `check` found.
const CORRUPTED: u8 = 3;

/// `pmbd create`
pub(super) fn create(args: &Create, json: bool) -> miette::Result<()> {
    let path = &args.path;
    let options = DiskOptions { sector: sector(args.sector)?, ..DiskOptions::default() };
    let disk = match args.size {
        Some(size) => Disk::create(path, size.0, &options),
        None => {
            check_none_waits(path)?;
            Disk::format(path, args.overwrite, &options)
        }
    };
    print(&disk.map_err(AtPath::new(path))?, json)
}

/// `pmbd info`
pub(super) fn info(args: &Info, json: bool) -> miette::Result<()> {
    // The server that takes a device over needs the pages that the last one left in the cache. It may run outside of this container, which
    // hides the driver.
    let region = region(&args.open)?.read_only().keep_pages(true);
    let options = DiskOptions {
        region,
        sector: sector(args.open.sector)?,
        buffer_dir: args.buffer_dir.clone(),
        ..DiskOptions::default()
    };
    let disk =
        if args.open.raw { Disk::open_raw(&args.path, &options) } else { Disk::open(&args.path, &options) };
    match disk.map_err(AtPath::new(&args.path)) {
        Ok(disk) => {
            let pending = disk.pending_writes();
            let info = disk.info();
            let text = || {
                let pending = report::pending(&pending).map(|pending| report::line("pending", &pending));
                [Some(report::describe(&info)), pending].into_iter().flatten().collect::<Vec<_>>().join("\n")
            };
            report::say_either(json, text(), || {
                let mut value = report::to_json(&info);
                value["pending"] = json!(report::pending(&pending));
                value
            })
        }
        // Of a served disk, the server's entry is printed.
        Err(error) if error.is_busy() => {
            let entry = find(&args.path.display().to_string())?.ok_or(error)?;
            print_entry(&entry, json)
        }
        Err(error) => Err(error.into()),
    }
}

/// `pmbd list`
pub(super) fn list(json: bool) -> miette::Result<()> {
    let entries = registry::list().into_diagnostic().wrap_err("reading the list of servers")?;
    for entry in &entries {
        print_entry(entry, json)?;
    }
    let orphans = match ublk::devices() {
        Ok(devices) => devices,
        // Without a driver no device waits; without access to the driver only served disks are listed.
        Err(ublk::UblkError::Unavailable(_)) => Vec::new(),
        Err(error) => return Err(error).into_diagnostic().wrap_err("querying ublk devices"),
    };
    for device in orphans.iter().filter(|device| device.state == ublk::DeviceState::Quiesced) {
        let path = format!("/dev/ublkb{}", device.device_id);
        let text = format!("{path}: its server died; `pmbd serve` on the same disk takes it over");
        report::say_either(json, text, || json!({ "device": path, "waits_for_server": true }))?;
    }
    if entries.is_empty() && !json {
        say(format_args!("no disk is being served"))?;
    }
    Ok(())
}

/// `pmbd check`
pub(super) fn check(args: &Check, json: bool) -> miette::Result<ExitCode> {
    let region = if args.repair {
        check_none_waits(&args.path)?;
        RegionOptions::new().keep_pages(may_any_wait()?)
    } else {
        // As `info`.
        RegionOptions::new().read_only().keep_pages(true)
    };
    // Opening for writing restores a copy of the header from the other.
    let mut repaired = false;
    // A pool without a disk is not changed. Corruption of a disk is reported together with that of its pool.
    let opened = Pool::open_with(&args.path, &region, |pool| match read_geometry(pool) {
        Err(error) if !is_corruption(&error) => Err(error),
        _ => Ok(()),
    });
    let found = opened.and_then(|pool| {
        repaired = args.repair && pool.header_state() != HeaderState::Intact;
        let mut corruption = DiskKind::of(&pool).corruption();
        match read_geometry(&pool) {
            Ok(_) => {}
            Err(error) if is_corruption(&error) => corruption.push(error.to_string()),
            Err(error) => return Err(error),
        }
        Ok(corruption)
    });
    let corruption = match found {
        Ok(corruption) => corruption,
        Err(error) if is_corruption(&error) => vec![error.to_string()],
        Err(error) => return Err(AtPath::new(&args.path)(error).into()),
    };
    // What a server would be refused for.
    let mut corruption = corruption;
    let mut pending = None;
    if corruption.is_empty() {
        let region = RegionOptions::new().read_only().keep_pages(true);
        let options = DiskOptions { region, buffer_dir: args.buffer_dir.clone(), ..DiskOptions::default() };
        let disk = Disk::open(&args.path, &options).map_err(AtPath::new(&args.path))?;
        let found = disk.pending_writes();
        let text = report::pending(&found);
        match found {
            Ok(_) => pending = text,
            Err(_) => corruption.extend(text),
        }
    }
    let code = if corruption.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CORRUPTED) };
    if json {
        let path = args.path.to_string_lossy();
        say(json!({ "path": path, "corruption": corruption, "repaired": repaired, "pending": pending }))?;
        return Ok(code);
    }
    let path = args.path.display();
    if corruption.is_empty() {
        say(format_args!("{path}: both headers, the roots and the disk's descriptor are sound"))?;
        pending.iter().try_for_each(|pending| say(report::line("pending", pending)))?;
        return Ok(code);
    }
    say(format_args!("{path}:"))?;
    for corruption in &corruption {
        say(report::line("corruption", corruption))?;
    }
    let repair = match (repaired, args.repair) {
        (true, _) => "the corrupted header was restored from the other",
        (false, true) => "nothing that could be restored",
        (false, false) => "nothing was changed; --repair restores a corrupted header from the other",
    };
    say(report::line("repair", repair))?;
    Ok(code)
}

/// Whether the error means that the disk is corrupted, rather than missing.
const fn is_corruption(error: &DiskError) -> bool {
    matches!(
        error,
        DiskError::Checksum { .. }
            | DiskError::Geometry(_)
            | DiskError::OutsidePool { .. }
            | DiskError::Root(_)
            | DiskError::Pool(PoolError::HeadersCorrupted { .. } | PoolError::Truncated { .. })
    )
}

/// `pmbd stop`
pub(super) fn stop(args: &Stop, json: bool) -> miette::Result<()> {
    let device_id = ublk_id(&args.target);
    let Some(entry) = find(&args.target)? else {
        // It has no server, but may be a device whose server died.
        let device_id = device_id.ok_or_else(|| miette!("no server has the name {}", args.target))?;
        ublk::stop(device_id, args.force, STOP_TIMEOUT).into_diagnostic()?;
        return print_stopped(&args.target, json);
    };
    let pid = entry.process.pid;
    if !entry.process.is_here().into_diagnostic()? {
        bail!(
            help = "stop it in the container that it runs in",
            "{} is served by process {pid} of another PID namespace",
            args.target
        );
    }
    if let Some(device_id) = entry.device.as_deref().and_then(|device| ublk_id(&device.display().to_string()))
        && !args.force
        && let Some(usage) = ublk::in_use(device_id).into_diagnostic()?
    {
        bail!(
            help = "unmount it, or use --force: it then fails as if its disk were pulled",
            "the device is in use: {usage}"
        );
    }
    if !args.force {
        let mut entry = entry.clone();
        let deadline = Instant::now() + CLIENTS_TIMEOUT;
        while !entry.clients.is_empty() {
            if Instant::now() > deadline {
                return Err(has_clients(&entry));
            }
            std::thread::sleep(Duration::from_millis(20));
            entry.clients = find(&args.target)?.map_or_else(Vec::new, |again| again.clients);
        }
    }
    let number = Pid::from_raw(pid).ok_or_else(|| miette!("no process {pid}"))?;
    // Opened first and looked up again: the server is alive now, so the signal goes to it, or to a dead process whose number it was.
    let process = pidfd_open(number, PidfdFlags::empty()).into_diagnostic().wrap_err("finding the server")?;
    if find(&args.target)?.is_none_or(|again| again.process != entry.process) {
        bail!("the server has just ended");
    }
    // On SIGTERM a server ends if it is unused, on SIGQUIT in any case.
    let signal = if args.force { Signal::QUIT } else { Signal::TERM };
    pidfd_send_signal(process, signal).into_diagnostic().wrap_err("signalling the server")?;
    let asked = Instant::now();
    let is_it = |other: &&Entry| other.process == entry.process;
    while let Some(still) = registry::list().into_diagnostic()?.iter().find(is_it) {
        // They connected after the first look, and the server refused.
        if !args.force && !still.clients.is_empty() && asked.elapsed() > 2 * CLIENTS_TIMEOUT {
            return Err(has_clients(still));
        }
        if asked.elapsed() > STOP_TIMEOUT {
            bail!("process {pid} did not stop within {} s", STOP_TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    print_stopped(&args.target, json)
}

fn has_clients(entry: &Entry) -> miette::Report {
    miette!(
        help =
            "disconnect them, or use --force: a file system that one of them has mounted then loses its disk",
        "clients are connected: {}",
        entry.clients.join(", ")
    )
}

fn find(target: &str) -> miette::Result<Option<Entry>> {
    registry::find(target).into_diagnostic().wrap_err("reading the list of servers")
}

/// N of `/dev/ublkbN`.
fn ublk_id(device: &str) -> Option<u32> {
    device.strip_prefix("/dev/ublkb")?.parse().ok()
}

fn print(disk: &Disk, json: bool) -> miette::Result<()> {
    report::say_either(json, report::describe(&disk.info()), || report::to_json(&disk.info()))
}

fn print_stopped(target: &str, json: bool) -> miette::Result<()> {
    report::say_either(json, format_args!("stopped {target}"), || json!({ "stopped": target }))
}

fn print_entry(entry: &Entry, json: bool) -> miette::Result<()> {
    if json {
        return say(serde_json::to_value(entry).into_diagnostic()?);
    }
    let address = entry.device.as_ref().or(entry.socket.as_ref());
    let address = address.map_or_else(String::new, |address| format!(" at {}", address.display()));
    let (path, transport, pid) = (entry.path.display(), &entry.transport, entry.process.pid);
    let namespace = if entry.process.is_here().into_diagnostic()? { "" } else { " of another PID namespace" };
    say(format_args!("{path}: served over {transport}{address} by process {pid}{namespace}"))?;
    entry.clients.iter().try_for_each(|client| say(report::line("client", client)))
}
