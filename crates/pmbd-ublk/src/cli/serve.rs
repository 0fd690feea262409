//! `pmbd serve`: opens or creates the disk, chooses the transport, says how to attach, and serves until a signal.

use super::args::{Serve, Transport};
use super::commands::{region, sector};
use super::error::AtPath;
use super::registry::{Entry, Registration};
use super::report;
use miette::{Context as _, IntoDiagnostic as _, miette};
use pm_cli_common::Size;
use pmbd::disk::Kind;
use pmbd::ublk::{self, DeviceIdentity, Ended, Event, Shutdown, ShutdownHandle, ShutdownSignal};
use pmbd::{Disk, DiskInfo, DiskOptions, Engine, NbdOptions, NbdServer};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// How long `serve` waits for a lock that a dying server still holds.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// `pmbd serve`
pub(super) fn run(args: &Serve, json: bool) -> miette::Result<()> {
    // Before anything is created: a command line that cannot work leaves nothing behind.
    if let Some(address) = args.tcp.filter(|address| !address.ip().is_loopback()) {
        return Err(miette!(
            help = "tunnel it",
            "NBD has no encryption, and {address} is not of the loopback"
        ));
    }
    let transport = choose(args.transport)?;
    if transport == Transport::Ublk {
        // Before any thread: threads inherit the mounts of the one that starts them.
        ublk::isolate_mounts().into_diagnostic()?;
    }
    let (disk, created) = open_or_create(args)?;
    let mut info = disk.info();
    // The list of servers is read from other directories than this one.
    info.path = std::fs::canonicalize(&info.path).into_diagnostic()?;
    let engine = disk.into_engine().map_err(AtPath::new(&args.path))?;
    let session = Session { args, info, created, json };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().into_diagnostic()?;
    match transport {
        Transport::Ublk => session.ublk(engine, &runtime),
        _ => runtime.block_on(session.nbd(engine)),
    }
}

/// The transport that is to be used: what was said, or ublk where there is one.
fn choose(wanted: Transport) -> miette::Result<Transport> {
    match (wanted, ublk::available()) {
        (Transport::Nbd, _) | (Transport::Auto, Err(_)) => Ok(Transport::Nbd),
        (Transport::Auto | Transport::Ublk, Ok(_)) => Ok(Transport::Ublk),
        (Transport::Ublk, Err(why)) => {
            Err(miette!(help = "--transport nbd needs nothing of the kernel", "{why}"))
        }
    }
}

/// The disk, and whether it was made just now.
fn open_or_create(args: &Serve) -> miette::Result<(Disk, bool)> {
    let mut region = region(&args.open)?.populate(args.populate);
    if args.read_only {
        region = region.read_only();
    }
    let options = DiskOptions { region, sector: sector(args.open.sector)? };
    match (open_patiently(args, &options), args.size) {
        (Ok(disk), Some(size)) if disk.info().capacity_bytes != size.0 => Err(miette!(
            help = "leave --size away to serve what is there",
            "{} is there already, with {}, and --size says {size}",
            args.path.display(),
            Size(disk.info().capacity_bytes)
        )),
        (Ok(disk), _) => Ok((disk, false)),
        (Err(error), Some(size)) if error.is_not_found() => {
            let disk = Disk::create(&args.path, size.0, &options).map_err(AtPath::new(&args.path))?;
            Ok((disk, true))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Opens the disk. A server that was just killed holds its lock until the kernel has taken it apart, for some milliseconds;
/// who starts the next one need not wait for that himself.
fn open_patiently(args: &Serve, options: &DiskOptions) -> Result<Disk, AtPath> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        let opened =
            if args.open.raw { Disk::open_raw(&args.path, options) } else { Disk::open(&args.path, options) };
        match opened.map_err(AtPath::new(&args.path)) {
            Err(error) if error.is_busy() && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// What is known while a disk is served.
struct Session<'a> {
    args: &'a Serve,
    info: DiskInfo,
    created: bool,
    json: bool,
}

impl Session<'_> {
    async fn nbd(&self, engine: Engine) -> miette::Result<()> {
        let args = self.args;
        let socket = std::path::absolute(args.socket.clone().unwrap_or_else(|| default_socket(&args.path)))
            .into_diagnostic()?;
        let options = NbdOptions {
            export_name: args.export_name.clone(),
            description: format!("{} on {}", self.info.path.display(), self.info.medium),
            max_clients: args.max_clients,
            spin: Duration::from_micros(args.spin_us),
            ..NbdOptions::default()
        };
        let mut server = NbdServer::bind_unix(&socket, Arc::new(engine), options)
            .into_diagnostic()
            .wrap_err("cannot listen for NBD clients")?;
        let tcp = args.tcp.map(|address| server.bind_tcp(address)).transpose().into_diagnostic()?;
        // Signals are caught from here on, so that nothing is left behind once the first client may come.
        let mut signals = Signals::new()?;
        let _registration = self.register("nbd", None, Some(socket.clone()));

        let uri = format!("nbd+unix:///?socket={}", socket.display());
        if self.json {
            self.say(
                "serving",
                &json!({ "transport": "nbd", "socket": socket.to_string_lossy(), "uri": uri, "tcp": tcp }),
            );
        } else {
            self.introduce();
            report::field("served", &format!("over NBD at {uri}"));
            if let Some(address) = tcp {
                report::field("", &format!("and at nbd://{address}"));
            }
            report::field("look", &format!("nbdinfo '{uri}'"));
            report::field("copy", &format!("nbdcopy image.ext4 '{uri}'"));
            report::field(
                "attach",
                &format!("modprobe nbd && nbd-client -unix {} /dev/nbd0", socket.display()),
            );
            report::field("mount", "mkfs.ext4 /dev/nbd0 && mount /dev/nbd0 /mnt");
            report::field("stop", &format!("ctrl-c, or: pmbd stop {}", self.info.path.display()));
        }
        server
            .run(async {
                signals.next().await;
            })
            .await
            .into_diagnostic()?;
        self.goodbye("removed its socket");
        Ok(())
    }

    fn ublk(&self, engine: Engine, runtime: &tokio::runtime::Runtime) -> miette::Result<()> {
        let args = self.args;
        let defaults = ublk::Options::default();
        let options = ublk::Options {
            device_id: args.device,
            queues: args.queues.unwrap_or(defaults.queues),
            depth: args.depth.unwrap_or(defaults.depth),
            max_io_bytes: match args.max_io {
                Some(size) => u32::try_from(size.0).into_diagnostic().wrap_err("--max-io")?,
                None => defaults.max_io_bytes,
            },
            affinity: affinity(&args.affinity)?,
            spin: Duration::from_micros(args.spin_us),
            ..defaults
        };
        let identity = self.identity()?;
        let shutdown = ShutdownSignal::new();
        let handle = shutdown.handle();
        let mut signals = {
            let _entered = runtime.enter();
            Signals::new()?
        };
        let ended = std::thread::scope(|threads| {
            // Dropped by the serving thread, however that ends.
            let (alive, ended) = tokio::sync::oneshot::channel::<()>();
            let serving = threads.spawn(|| {
                let _alive = alive;
                let mut registration = None;
                ublk::serve(&Arc::new(engine), &options, identity, shutdown, |event| {
                    self.on_ublk_event(&event, &mut registration);
                })
            });
            runtime.block_on(forward_signals(&mut signals, &handle, ended));
            serving.join().map_err(|_| miette!("the serving thread panicked"))?.into_diagnostic()
        })?;
        self.goodbye(match ended {
            Ended::Removed => "removed its device",
            Ended::HandedOver => "left its device to the next server",
        });
        Ok(())
    }

    /// By what the device is known again: the file itself, and the pool in it. A copy of the file is another disk, though it
    /// has the same identity inside; the device that waits is that of the original.
    fn identity(&self) -> miette::Result<DeviceIdentity> {
        let file = std::fs::metadata(&self.info.path).into_diagnostic()?;
        let mut unique = Vec::new();
        for number in [file.dev(), file.ino(), file.rdev()] {
            unique.extend(number.to_le_bytes());
        }
        if let Kind::Pool { uuid, .. } = self.info.kind {
            unique.extend(uuid.bytes());
        }
        Ok(DeviceIdentity::new(unique))
    }

    fn on_ublk_event(&self, event: &Event, registration: &mut Option<Registration>) {
        match event {
            Event::Up { path, granted } => {
                *registration = self.register("ublk", Some(path.clone()), None);
                if self.json {
                    let (queues, depth, recovered) = (granted.queues, granted.depth, granted.recovered);
                    let up = json!({
                        "transport": "ublk", "device": path, "queues": queues, "depth": depth,
                        "max_io_bytes": granted.max_io_bytes, "recovered": recovered,
                        "features": granted.features.to_string(), "dropped": granted.dropped.to_string(),
                    });
                    self.say("serving", &up);
                    return;
                }
                self.introduce();
                let device = path.display();
                let how = if granted.recovered { "taken over from a server that died" } else { "new" };
                let (queues, depth) = (granted.queues, granted.depth);
                report::field(
                    "served",
                    &format!("over ublk as {device} ({how}; {queues} queues of {depth})"),
                );
                if !granted.dropped.is_empty() {
                    report::field("missing", &format!("the kernel does not offer: {}", granted.dropped));
                }
                report::field("mount", &format!("mkfs.ext4 {device} && mount {device} /mnt"));
                report::field("stop", &format!("ctrl-c, or: pmbd stop {device}"));
            }
            Event::RemainsRemoved { device_id } => {
                tracing::warn!("cleared away /dev/ublkb{device_id}, which never came up");
            }
            Event::StillInUse(usage) if self.json => {
                self.say("in_use", &json!({ "usage": usage.to_string() }))
            }
            Event::StillInUse(usage) => {
                report::say(format_args!("still in use: {usage}; unmount it first, or stop it with --force"));
            }
            other => tracing::info!(?other, "ublk"),
        }
    }

    /// Says what is served, before how.
    fn introduce(&self) {
        if self.created {
            report::say(format_args!("created {}", self.info.path.display()));
        }
        report::print(&self.info);
    }

    fn goodbye(&self, what: &str) {
        if self.json {
            self.say("stopped", &json!({ "detail": what }));
        } else {
            report::say(format_args!("stopped: {what}; {}", self.info.domain.promise()));
        }
    }

    /// An event for machines: one line.
    fn say(&self, event: &str, detail: &Value) {
        let disk = report::to_json(&self.info);
        report::say(json!({ "event": event, "disk": disk, "created": self.created, "detail": detail }));
    }

    /// Enters this server in the list. Serving goes on without: then `list` and `stop` do not know of it.
    fn register(
        &self,
        transport: &str,
        device: Option<PathBuf>,
        socket: Option<PathBuf>,
    ) -> Option<Registration> {
        let entry = Entry {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            path: self.info.path.clone(),
            transport: transport.to_owned(),
            device,
            socket,
            capacity_bytes: self.info.capacity_bytes,
            sector_bytes: self.info.sector_bytes,
            domain: self.info.domain.name().to_owned(),
        };
        match Registration::new(&entry) {
            Ok(registration) => Some(registration),
            Err(error) => {
                tracing::warn!(%error, "cannot enter this server in the list; `pmbd list` and `pmbd stop` will miss it");
                None
            }
        }
    }
}

/// A wish to end, or an order.
enum Stop {
    Wish,
    Order,
}

/// The signals that end a server: INT and TERM wish, QUIT orders. HUP is caught and does nothing: a server outlives the
/// terminal that it was started from, and the file system on its device with it.
struct Signals {
    hup: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
    term: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> miette::Result<Self> {
        let catch = |kind| signal(kind).into_diagnostic().wrap_err("catching signals");
        Ok(Self {
            hup: catch(SignalKind::hangup())?,
            int: catch(SignalKind::interrupt())?,
            term: catch(SignalKind::terminate())?,
            quit: catch(SignalKind::quit())?,
        })
    }

    async fn next(&mut self) -> Stop {
        loop {
            tokio::select! {
                _ = self.hup.recv() => {}
                _ = self.int.recv() => return Stop::Wish,
                _ = self.term.recv() => return Stop::Wish,
                _ = self.quit.recv() => return Stop::Order,
            }
        }
    }
}

/// Passes signals on to the serving thread until that has ended.
async fn forward_signals(
    signals: &mut Signals,
    handle: &ShutdownHandle,
    mut ended: tokio::sync::oneshot::Receiver<()>,
) {
    loop {
        let how = tokio::select! {
            _ = &mut ended => return,
            stop = signals.next() => match stop {
                Stop::Wish => Shutdown::Remove,
                Stop::Order => Shutdown::RemoveForced,
            },
        };
        if !handle.request(how) {
            return;
        }
    }
}

fn affinity(text: &str) -> miette::Result<ublk::Affinity> {
    Ok(match text {
        "none" => ublk::Affinity::Unpinned,
        "submitters" => ublk::Affinity::Submitters,
        list => {
            let cpus: Result<_, _> = list.split(',').map(str::parse).collect();
            ublk::Affinity::Cpus(
                cpus.map_err(|_| miette!("--affinity is none, submitters, or CPUs such as 0,2"))?,
            )
        }
    })
}

fn default_socket(path: &std::path::Path) -> PathBuf {
    let mut socket = path.as_os_str().to_os_string();
    socket.push(".sock");
    socket.into()
}
