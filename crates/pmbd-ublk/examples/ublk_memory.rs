//! Serves memory as `/dev/ublkbN` until its standard input ends: `ublk_memory 256M`. The same over a file is `pmbd serve`.

use pm_cli_common::Size;
use pm_core::Region;
use pmbd::ublk::{self, DeviceIdentity, Options, Shutdown, ShutdownSignal};
use pmbd::{Engine, Geometry, SectorSize};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Before any thread is started.
    ublk::isolate_mounts()?;
    let Size(capacity) = std::env::args().nth(1).ok_or("usage: ublk_memory SIZE")?.parse()?;
    let engine = Engine::new(Region::anonymous(capacity)?, Geometry::new(0, capacity, SectorSize::B512)?)?;
    let shutdown = ShutdownSignal::new();
    let handle = shutdown.handle();
    std::thread::spawn(move || {
        // A device in use stays up until the next line.
        for _line in std::io::stdin().lines() {
            handle.request(Shutdown::Remove);
        }
        handle.request(Shutdown::RemoveForced);
    });
    let (events, mut received) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Some(event) = received.blocking_recv() {
            println!("{event:?}");
        }
    });
    // The memory dies with its server: no other server may take its device over.
    let identity = DeviceIdentity::new(format!("memory of process {}", std::process::id()));
    let ended = ublk::serve(&Arc::new(engine), &Options::default(), identity, shutdown, events)?;
    println!("{ended:?}");
    Ok(())
}
