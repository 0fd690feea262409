//! `pmbd serve`: opens or creates the disk, chooses the transport, prints how to attach, and serves until a signal.

use super::args::{Serve, Transport};
use super::error::AtPath;
use super::identity::{check_none_waits, identity};
use super::open::{NewDisk, open_or_create};
use super::registry::{self, Entry, Process, Registration};
use super::report;
use super::signals::{Signals, Stop};
use miette::{Context as _, IntoDiagnostic as _, miette};
use pm_core::emulation::{Emulated, EmulationCounts};
use pm_core::protection::{Method, Protected, RegionWindows, TimedWindows};
use pm_core::{Pmem, Region, Timed};
use pmbd::ublk::{self, DeviceIdentity, Ended, Event, Granted, Shutdown, ShutdownSignal};
use pmbd::{DiskInfo, Engine, NbdClients, NbdOptions, NbdServer, WriteScheme};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The users that have access over TCP, unlike over the socket.
const TCP_ACCESS: &str = "every user of this machine may connect, and read and write the disk";

/// The longest time that an ending server waits for clients that are about to disconnect.
const CLIENTS_TIMEOUT: Duration = Duration::from_millis(500);

/// One type for every choice of emulation, protection and `--times`. A speed that delays nothing reads the clock.
type Wrapped = Emulated<Timed<Protected<Region, TimedWindows<RegionWindows>>>>;

/// `pmbd serve`
pub(super) fn run(args: &Serve, json: bool) -> miette::Result<()> {
    // Before anything is created, so that nothing is left behind.
    if let Some(address) = args.tcp.filter(|address| !address.ip().is_loopback()) {
        return Err(miette!(
            help = "tunnel it",
            "NBD has no encryption, and {address} is not a loopback address"
        ));
    }
    args.protect.check()?;
    args.writes.check(args.open.flush.map(Into::into))?;
    if let Some(buffers) = args.buffer.options() {
        if args.read_only {
            return Err(miette!("--read-only refuses writes, and --buffer buffers them"));
        }
        buffers.check().into_diagnostic()?;
        if args.writes.policy().scheme == WriteScheme::Deferred {
            return Err(miette!("--buffer stores by itself, and not with --scheme deferred"));
        }
    }
    let speed = args.emulation.speed();
    if let Some(speed) = &speed {
        speed.check().into_diagnostic()?;
    }
    let transport = choose(args.transport)?;
    if transport == Transport::Ublk {
        // Before any thread is started: threads inherit the mount namespace.
        ublk::isolate_mounts().into_diagnostic()?;
    } else {
        check_none_waits(&args.path)?;
    }
    let (disk, new) = open_or_create(args)?;
    let mut info = disk.info();
    // The list of servers is read from other working directories.
    info.path = std::fs::canonicalize(&info.path).into_diagnostic()?;
    let identity = identity(disk.region().file(), info.kind).into_diagnostic()?;
    let mut session =
        Session { args, info, created: new.is_some(), new: Mutex::new(None), json, wrapped: None };
    let protection = args.protect.protection();
    if speed.is_none() && protection.method() == Method::None && !args.times {
        let engine = Arc::new(disk.into_engine().map_err(AtPath::new(&args.path))?);
        return session.run(engine, new, transport, identity);
    }
    let wrap = |region| {
        let protected = Protected::timed(region, &protection, args.times)?;
        let timed = if args.times { Timed::new(protected) } else { Timed::off(protected) };
        Ok(Emulated::new(timed, &speed.unwrap_or_default())?)
    };
    let engine = Arc::new(disk.into_engine_over(wrap).map_err(AtPath::new(&args.path))?);
    session.wrapped = Some(Arc::clone(&engine));
    session.run(engine, new, transport, identity)
}

/// The transport: the requested one, or ublk where the kernel has it.
fn choose(wanted: Transport) -> miette::Result<Transport> {
    match (wanted, ublk::available()) {
        (Transport::Nbd, _) | (Transport::Auto, Err(_)) => Ok(Transport::Nbd),
        (Transport::Auto | Transport::Ublk, Ok(_)) => Ok(Transport::Ublk),
        (Transport::Ublk, Err(why)) => {
            Err(miette!(help = "--transport nbd needs nothing of the kernel", "{why}"))
        }
    }
}

/// A disk being served.
struct Session<'a> {
    args: &'a Serve,
    info: DiskInfo,
    created: bool,
    /// The disk, if it was created and is not served yet.
    new: Mutex<Option<NewDisk>>,
    json: bool,
    /// The engine, if it emulates a slower memory, is protected, or measures times.
    wrapped: Option<Arc<Engine<Wrapped>>>,
}

impl Session<'_> {
    fn run<P: Pmem + Send + Sync + 'static>(
        &mut self,
        engine: Arc<Engine<P>>,
        new: Option<NewDisk>,
        transport: Transport,
        identity: DeviceIdentity,
    ) -> miette::Result<()> {
        self.new = Mutex::new(new.map(|new| new.with_engine(Arc::clone(&engine) as _)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().into_diagnostic()?;
        match transport {
            Transport::Ublk => self.ublk(engine, &runtime, identity),
            _ => runtime.block_on(self.nbd(engine)),
        }
    }

    async fn nbd<P: Pmem + Send + Sync + 'static>(&self, engine: Arc<Engine<P>>) -> miette::Result<()> {
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
        let mut server = NbdServer::bind_unix(&socket, engine, options)
            .into_diagnostic()
            .wrap_err("cannot listen for NBD clients")?;
        let tcp = args.tcp.map(|address| server.bind_tcp(address)).transpose().into_diagnostic()?;
        // Signals are caught from here on, so that nothing is left behind once clients can connect.
        let mut signals = Signals::new()?;
        self.keep_disk();
        let registration = self.register("nbd", None, Some(socket.clone()));

        let uri = report::uri_of_socket(&socket);
        if self.json {
            let access = tcp.map(|_| TCP_ACCESS);
            let socket = socket.to_string_lossy();
            self.say(
                "serving",
                &json!({ "transport": "nbd", "socket": socket, "uri": uri, "tcp": tcp, "tcp_access": access }),
            );
        } else {
            self.introduce();
            report::field("served", &format!("over NBD at {uri}"));
            if let Some(address) = tcp {
                report::field("", &format!("and at nbd://{address}"));
                report::field("warning", &format!("over TCP: {TCP_ACCESS}"));
            }
            report::field("look", &format!("nbdinfo '{uri}'"));
            report::field("copy", &format!("nbdcopy image.ext4 '{uri}'"));
            report::field(
                "attach",
                &format!("modprobe nbd && nbd-client -unix {} /dev/nbd0", report::shell_word(&socket)),
            );
            report::field("mount", "mkfs.ext4 /dev/nbd0 && mount /dev/nbd0 /mnt");
            report::field("stop", &format!("ctrl-c, or: pmbd stop {}", self.info.path.display()));
        }
        let clients = server.clients();
        server.run(self.end_of_nbd(&clients, &mut signals, registration.as_ref())).await.into_diagnostic()?;
        self.goodbye("removed its socket");
        Ok(())
    }

    /// Waits until the server is to end: by [`Stop::Force`], or by [`Stop::IfUnused`] while no client is connected. Updates the list of
    /// servers meanwhile.
    async fn end_of_nbd(
        &self,
        clients: &NbdClients,
        signals: &mut Signals,
        registration: Option<&Registration>,
    ) {
        let mut changes = clients.changes();
        let mut listed = true;
        loop {
            tokio::select! {
                stop = signals.next() => match stop {
                    Stop::Force => return,
                    Stop::IfUnused => {
                        let gone = async {
                            while !clients.list().is_empty() && changes.changed().await.is_ok() {}
                        };
                        if tokio::time::timeout(CLIENTS_TIMEOUT, gone).await.is_ok() {
                            return;
                        }
                        self.still_in_use(&registry::names_of(clients));
                    }
                },
                Ok(()) = changes.changed() => {}
            }
            let entered =
                registration.map(|registration| registration.set_clients(&registry::names_of(clients)));
            if let Some(Err(error)) = &entered
                && listed
            {
                tracing::warn!(%error, "cannot record the clients in the list of servers");
            }
            // Logged once, however often clients connect and disconnect.
            listed = entered.is_none_or(|entered| entered.is_ok());
        }
    }

    fn still_in_use(&self, clients: &[String]) {
        if self.json {
            self.say("in_use", &json!({ "clients": clients }));
        } else {
            let clients = clients.join(", ");
            report::mention(format_args!(
                "still in use by {clients}; disconnect them first, or stop it with --force"
            ));
        }
    }

    /// The disk is served from now on: it is kept even if serving fails.
    fn keep_disk(&self) {
        if let Some(new) = self.new.lock().unwrap_or_else(PoisonError::into_inner).take() {
            new.keep();
        }
    }

    fn ublk<P: Pmem + Send + Sync + 'static>(
        &self,
        engine: Arc<Engine<P>>,
        runtime: &tokio::runtime::Runtime,
        identity: DeviceIdentity,
    ) -> miette::Result<()> {
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
        let shutdown = ShutdownSignal::new();
        let handle = shutdown.handle();
        let mut signals = {
            let _entered = runtime.enter();
            Signals::new()?
        };
        let (events, mut received) = tokio::sync::mpsc::unbounded_channel();
        let ended = std::thread::scope(|threads| {
            let serving = threads.spawn(|| ublk::serve(&engine, &options, identity, shutdown, events));
            runtime.block_on(async {
                // Until the serving thread has ended, and dropped its sender.
                let mut registration = None;
                loop {
                    let how = tokio::select! {
                        event = received.recv() => match event {
                            Some(event) => {
                                self.on_ublk_event(&event, &mut registration);
                                continue;
                            }
                            None => break,
                        },
                        stop = signals.next() => match stop {
                            Stop::IfUnused => Shutdown::Remove,
                            Stop::Force => Shutdown::RemoveForced,
                        },
                    };
                    handle.request(how);
                }
            });
            serving.join().map_err(|_| miette!("the serving thread panicked"))?.into_diagnostic()
        })?;
        self.goodbye(match ended {
            Ended::Removed => "removed its device",
            Ended::HandedOver => "left its device to the next server",
        });
        Ok(())
    }

    fn on_ublk_event(&self, event: &Event, registration: &mut Option<Registration>) {
        match event {
            Event::Up { path, granted } => {
                self.keep_disk();
                *registration = self.register("ublk", Some(path.clone()), None);
                if self.json {
                    let (queues, depth, recovered) = (granted.queues, granted.depth, granted.recovered);
                    let up = json!({
                        "transport": "ublk", "device": path, "queues": queues, "depth": depth,
                        "max_io_bytes": granted.max_io_bytes, "recovered": recovered,
                        "queues_asked": self.args.queues,
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
                if let Some(other) = other_queues(self.args.queues, granted) {
                    report::field("queues", &other);
                }
                if !granted.dropped.is_empty() {
                    report::field("missing", &format!("the kernel does not offer: {}", granted.dropped));
                }
                report::field("mount", &format!("mkfs.ext4 {device} && mount {device} /mnt"));
                report::field("stop", &format!("ctrl-c, or: pmbd stop {device}"));
            }
            Event::RemainsRemoved { device_id } => {
                tracing::warn!("removed /dev/ublkb{device_id}, which never came up");
            }
            Event::StillInUse(usage) if self.json => {
                self.say("in_use", &json!({ "usage": usage.to_string() }))
            }
            Event::StillInUse(usage) => {
                report::mention(format_args!(
                    "still in use: {usage}; unmount it first, or stop it with --force"
                ));
            }
            other => tracing::info!(?other, "ublk"),
        }
    }

    /// Prints what is served.
    fn introduce(&self) {
        if self.created {
            report::mention(format_args!("created {}", self.info.path.display()));
        }
        report::mention(report::describe(&self.info));
        let writes = self.args.writes.describe();
        if !writes.is_empty() {
            report::field("writes", &writes);
        }
        let buffers = self.args.buffer.describe();
        if !buffers.is_empty() {
            report::field("buffered", &buffers);
        }
        let protection = self.args.protect.describe();
        if !protection.is_empty() {
            report::field("protected", &protection);
        }
        let emulation = self.args.emulation.describe();
        if !emulation.is_empty() {
            report::field("emulates", &emulation);
        }
    }

    fn goodbye(&self, what: &str) {
        let wrapped = self.wrapped.as_ref().map(|engine| engine.pmem());
        let counts = wrapped.filter(|_| self.args.emulation.speed().is_some()).map(Emulated::counts);
        let strays = wrapped.map(|pmem| pmem.get_ref().get_ref().windows().get_ref().stray_count());
        let spent = wrapped.filter(|_| self.args.times).map(Spent::of);
        if self.json {
            let emulation = counts.map(|EmulationCounts { delayed, late, late_count }| {
                json!({ "delayed_s": delayed.as_secs_f64(), "late_s": late.as_secs_f64(), "late_count": late_count })
            });
            self.say(
                "stopped",
                &json!({ "detail": what, "emulation": emulation, "strays": strays, "times": spent }),
            );
            return;
        }
        report::mention(format_args!("stopped: {what}; {}", self.info.domain.promise()));
        if let Some(strays) = strays.filter(|strays| *strays != 0) {
            report::field("strays", &format!("{strays} stray accesses were let through"));
        }
        if let Some(Spent { windows_s, copies_s, fences_s, delays_s }) = spent {
            report::field(
                "times",
                &format!(
                    "{windows_s:.6} s in windows, {copies_s:.6} s in copies, {fences_s:.6} s in fences, {delays_s:.6} s in delays"
                ),
            );
        }
        if let Some(EmulationCounts { delayed, late, late_count }) = counts {
            report::field(
                "emulated",
                &format!("accesses were delayed by {delayed:.2?}; {late_count} took longer, by {late:.2?}"),
            );
        }
    }

    /// Prints an event as a line of JSON.
    fn say(&self, event: &str, detail: &Value) {
        let disk = report::to_json(&self.info);
        report::mention(json!({ "event": event, "disk": disk, "created": self.created, "detail": detail }));
    }

    /// Adds this server to the list. If that fails, `list` and `stop` do not find it.
    fn register(
        &self,
        transport: &str,
        device: Option<PathBuf>,
        socket: Option<PathBuf>,
    ) -> Option<Registration> {
        let entry = |process| Entry {
            process,
            path: self.info.path.clone(),
            transport: transport.to_owned(),
            device,
            socket,
            clients: Vec::new(),
            capacity_bytes: self.info.capacity_bytes,
            sector_bytes: self.info.sector_bytes,
            domain: self.info.domain.name().to_owned(),
        };
        match Process::current().and_then(|process| Registration::new(&entry(process))) {
            Ok(registration) => Some(registration),
            Err(error) => {
                tracing::warn!(%error, "cannot add this server to the list; `pmbd list` and `pmbd stop` will not find it");
                None
            }
        }
    }
}

/// What `--times` has measured, over all threads, in seconds.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Spent {
    /// Opening and closing windows of the protection.
    windows_s: f64,
    /// Copies to and from the region, and write-backs of lines.
    copies_s: f64,
    fences_s: f64,
    /// Delays of the emulated memory.
    delays_s: f64,
}

impl Spent {
    fn of(pmem: &Wrapped) -> Self {
        let timed = pmem.get_ref();
        // Windows are read first: each is part of an access.
        let windows = timed.get_ref().windows().spent();
        let times = timed.times();
        Self {
            windows_s: windows.as_secs_f64(),
            copies_s: times.accesses.saturating_sub(windows).as_secs_f64(),
            fences_s: times.fences.as_secs_f64(),
            delays_s: pmem.counts().delayed.as_secs_f64(),
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

/// The message if a device has another number of queues than requested.
fn other_queues(asked: Option<u16>, granted: &Granted) -> Option<String> {
    let (asked, queues) = (asked.filter(|asked| *asked != granted.queues)?, granted.queues);
    let why = if granted.recovered {
        "a device that is taken over keeps its queues"
    } else {
        "the driver gives no more than there are processors"
    };
    Some(format!("{queues} where {asked} were asked for: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmbd::ublk::Features;

    #[test]
    fn fewer_queues_than_requested_are_announced() {
        let granted = |recovered| Granted {
            device_id: 0,
            recovered,
            queues: 2,
            depth: 64,
            max_io_bytes: 1 << 20,
            features: Features::USER_RECOVERY,
            dropped: Features::default(),
        };
        let said = other_queues(Some(8), &granted(false)).unwrap();
        assert!(said.starts_with("2 where 8 were asked for: ") && said.contains("processors"), "{said}");
        let said = other_queues(Some(8), &granted(true)).unwrap();
        assert!(said.starts_with("2 where 8 were asked for: ") && said.contains("taken over"), "{said}");
        assert_eq!(other_queues(Some(2), &granted(false)), None);
        // No number was requested.
        assert_eq!(other_queues(None, &granted(false)), None);
    }
}
