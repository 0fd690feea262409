//! Serves memory, or a file mapped as memory, as `/dev/ublkbN`, until its standard input ends or says how.
//!
//! ```text
//! ublk_ram serve ram:256M|FILE[:SIZE] [queues=N] [depth=N] [io=BYTES] [spin=MICROS] [sector=N]
//! [cpus=0,1|submitters] ublk_ram stop N [force] ublk_ram list
//! ```
//! While it serves, a line "remove", "force" or "leave" on standard input ends it so. So does SIGKILL; the
//! same command again then takes the device over, if it was over a file.

use pm_core::{Region, RegionOptions};
use pmbd::ublk::{self, Affinity, DeviceIdentity, Event, Options, Shutdown, ShutdownSignal};
use pmbd::{Engine, Geometry, SectorSize};
use std::error::Error;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", medium, rest @ ..] => serve(medium, rest),
        ["stop", id, rest @ ..] => Ok(ublk::stop(id.parse()?, rest == ["force"], Duration::from_secs(5))?),
        ["list"] => {
            println!("the driver offers: {}", ublk::available()?);
            ublk::devices()?.iter().for_each(|device| println!("{device:?}"));
            Ok(())
        }
        _ => Err("serve MEDIUM [OPTION=VALUE...], stop N [force], or list".into()),
    }
}

fn serve(medium: &str, rest: &[&str]) -> Result<(), Failure> {
    // Before there are threads.
    ublk::isolate_mounts()?;
    let (options, sector) = parse(rest)?;
    let region = open(medium)?;
    let capacity = pm_core::Pmem::len_bytes(&region);
    let engine = Arc::new(Engine::new(region, Geometry::new(0, capacity, sector)?)?);

    let signal = ShutdownSignal::new();
    let handle = signal.handle();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let how = match line.trim() {
                "force" => Shutdown::RemoveForced,
                "leave" => Shutdown::HandOver,
                _ => Shutdown::Remove,
            };
            if !handle.request(how) {
                return;
            }
        }
    });

    // Anonymous memory dies with its server: no other may take its device over.
    let mut unique = medium.to_owned();
    if medium.starts_with("ram:") {
        unique.push_str(&std::process::id().to_string());
    }
    let identity = DeviceIdentity::new(unique);
    let ended = ublk::serve(&engine, &options, identity, signal, |event| match event {
        Event::Up { path, granted } => println!("up: {} {granted:?}", path.display()),
        Event::StillInUse(usage) => println!("still serving: {usage}"),
        other => println!("{other:?}"),
    })?;
    println!("ended: {ended:?}");
    Ok(())
}

fn open(medium: &str) -> Result<Region, Failure> {
    Ok(match medium.split_once(':') {
        Some(("ram", size)) => Region::anonymous(bytes(size)?)?,
        Some((path, size)) if !std::path::Path::new(path).exists() => {
            RegionOptions::new().create(path, bytes(size)?)?
        }
        Some((path, _)) => Region::open(path)?,
        None => Region::open(medium)?,
    })
}

/// "64M" in bytes.
fn bytes(text: &str) -> Result<u64, Failure> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    Ok(number.parse::<u64>()? << shift)
}

fn parse(rest: &[&str]) -> Result<(Options, SectorSize), Failure> {
    let (mut options, mut sector) = (Options::default(), SectorSize::default());
    for argument in rest {
        let (name, value) = argument.split_once('=').ok_or("options are NAME=VALUE")?;
        match name {
            "id" => options.device_id = Some(value.parse()?),
            "queues" => options.queues = value.parse()?,
            "depth" => options.depth = value.parse()?,
            "io" => options.max_io_bytes = value.parse()?,
            "spin" => options.spin = Duration::from_micros(value.parse()?),
            "sector" => sector = SectorSize::from_bytes(value.parse()?)?,
            "cpus" if value == "submitters" => options.affinity = Affinity::Submitters,
            "cpus" => {
                options.affinity = Affinity::Cpus(value.split(',').map(str::parse).collect::<Result<_, _>>()?)
            }
            other => return Err(format!("no option {other}").into()),
        }
    }
    Ok((options, sector))
}
