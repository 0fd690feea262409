//! Serves a file, or anonymous memory, over NBD until it is interrupted:
//! `cargo run --release --example nbd_serve -- pm.sock 1073741824 [/dev/shm/pm] [spin in microseconds]`.

use pmbd::{Engine, Geometry, NbdOptions, NbdServer, SectorSize};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(socket), Some(size)) = (args.next(), args.next()) else {
        return Err("usage: nbd_serve SOCKET SIZE_BYTES [FILE] [SPIN_US]".into());
    };
    let size_bytes = size.parse()?;
    let options = pm_core::RegionOptions::new().populate(true);
    let region = match args.next() {
        Some(file) if std::path::Path::new(&file).exists() => options.open(file)?,
        Some(file) => options.create(file, size_bytes)?,
        None => options.anonymous(size_bytes)?,
    };
    let engine = Engine::new(region, Geometry::new(0, size_bytes, SectorSize::B512)?)?;
    let mut options = NbdOptions::default();
    if let Some(spin) = args.next() {
        options.spin = Duration::from_micros(spin.parse()?);
    }
    let server = NbdServer::bind_unix(&socket, Arc::new(engine), options)?;
    let stats = server.stats();
    println!("nbd+unix:///?socket={socket}");
    server
        .run(async {
            if let Err(error) = tokio::signal::ctrl_c().await {
                eprintln!("cannot wait for a signal: {error}");
            }
        })
        .await?;
    println!("{:?}", stats.counts());
    Ok(())
}
