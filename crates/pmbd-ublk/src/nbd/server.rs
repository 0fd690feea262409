//! The server: accepts clients, runs their handshakes, starts a thread for each, and shuts all of them down.

use super::handshake::{self, Agreement};
use super::listen::{self, UnixSocket};
use super::options::Export;
use super::order::{ConnectionOrder, Member};
use super::transmission::Connection;
use super::{NbdClients, NbdError, NbdOptions, NbdStats};
use crate::engine::Engine;
use crate::panics::AbortOnPanic;
use crate::throttle::Throttle;
use pm_core::Pmem;
use rustix::fd::AsFd;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// The pause in accepting when the system is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The most clients that can be waited for at once.
const MAX_SLOTS: usize =
    if Semaphore::MAX_PERMITS < u32::MAX as usize { Semaphore::MAX_PERMITS } else { u32::MAX as usize };
/// Stack of a connection's thread, which has its buffers on the heap and does not recurse.
const THREAD_STACK_BYTES: usize = 256 << 10;

/// An NBD server over an engine, listening but not yet accepting. See [the module](super).
///
/// ```
/// use pmbd::{Engine, Geometry, NbdOptions, NbdServer, SectorSize};
/// use std::sync::Arc;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let region = pm_core::Region::anonymous(1 << 20)?;
/// let engine = Engine::new(region, Geometry::new(0, 1 << 20, SectorSize::B512)?)?;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pm.sock");
/// let server = NbdServer::bind_unix(&path, Arc::new(engine), NbdOptions::default())?;
/// let stats = server.stats();
/// # let ended = async {};
/// // `ended` completes when the server is to end: on a signal, say.
/// tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(server.run(ended))?;
/// assert_eq!(stats.counts().clients, 0);
/// assert!(!path.exists());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NbdServer<P: Pmem> {
    unix: UnixSocket,
    tcp: Option<TcpListener>,
    shared: Arc<Shared<P>>,
}

impl<P: Pmem + Send + Sync + 'static> NbdServer<P> {
    /// Listens on a Unix socket at `path`, with mode 0600. The socket of a dead server is replaced; the path is free again when the server has ended.
    ///
    /// # Errors
    /// When a server listens there already, another file is at the path, the system refuses, or an option is out of bounds.
    pub fn bind_unix(
        path: impl AsRef<Path>,
        engine: Arc<Engine<P>>,
        options: NbdOptions,
    ) -> Result<Self, NbdError> {
        options.check()?;
        let order =
            ConnectionOrder::new(options.shutdown_grace).map_err(|source| NbdError::Runtime { source })?;
        let unix = UnixSocket::bind(path.as_ref())?;
        let shared = Shared {
            export: Export::new(&engine, &options),
            engine,
            slots: Arc::new(Semaphore::new(options.max_clients.min(MAX_SLOTS))),
            tcp_slots: Arc::new(Semaphore::new(tcp_max(options.max_clients.min(MAX_SLOTS)))),
            options,
            stats: NbdStats::default(),
            clients: NbdClients::default(),
            order: Arc::new(order),
            next_client: AtomicU64::new(0),
        };
        Ok(Self { unix, tcp: None, shared: Arc::new(shared) })
    }

    /// Listens on a TCP address, too, of the loopback unless [`NbdOptions::allow_remote`] is set. Returns the address in use, with a port
    /// where `addr` had zero.
    ///
    /// # Errors
    /// When the address is not allowed, or the system refuses.
    pub fn bind_tcp(&mut self, addr: SocketAddr) -> Result<SocketAddr, NbdError> {
        let (listener, bound) = listen::tcp(addr, self.shared.options.allow_remote)?;
        self.tcp = Some(listener);
        Ok(bound)
    }

    /// The counters of the running server.
    #[must_use]
    pub fn stats(&self) -> NbdStats {
        self.shared.stats.clone()
    }

    /// The clients of the running server.
    #[must_use]
    pub fn clients(&self) -> NbdClients {
        self.shared.clients.clone()
    }

    /// Serves clients until `shutdown` completes. Then no more are accepted, and requests already received are answered; over TCP, only
    /// those that the server has begun to process. Connections that take longer than [`NbdOptions::shutdown_grace`] for that are cut,
    /// and the socket is removed. When it returns, no thread of the server is left and the engine is no longer used.
    ///
    /// Requires a tokio runtime with I/O and time enabled. If dropped before its end, the threads of connected clients go on.
    ///
    /// # Errors
    /// When the runtime refuses the sockets.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), NbdError> {
        let Self { unix, tcp, shared } = self;
        let failed = |source| NbdError::Runtime { source };
        let listener = unix.listener.try_clone().map_err(failed)?;
        let unix_listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
        let tcp_listener = tcp.map(tokio::net::TcpListener::from_std).transpose().map_err(failed)?;
        let mut handshakes = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = unix_listener.accept() => match accepted {
                    Ok((stream, _)) => shared.admit(stream, &mut handshakes),
                    Err(error) => accept_failed(&error).await,
                },
                accepted = accept_tcp(tcp_listener.as_ref()) => match accepted {
                    Ok(stream) => shared.admit(stream, &mut handshakes),
                    Err(error) => accept_failed(&error).await,
                },
                Some(ended) = handshakes.join_next() => if let Err(error) = ended {
                    tracing::error!(%error, "a handshake panicked");
                },
            }
        }
        drop((unix_listener, tcp_listener));
        handshakes.shutdown().await;
        let ended = shared.end_clients().await.map_err(failed);
        drop(unix);
        ended
    }
}

/// The next TCP client; never, when there is no TCP.
async fn accept_tcp(listener: Option<&tokio::net::TcpListener>) -> io::Result<tokio::net::TcpStream> {
    let Some(listener) = listener else { return std::future::pending().await };
    let (stream, _) = listener.accept().await?;
    // Replies gather in the output buffer; the kernel must not delay small ones.
    stream.set_nodelay(true)?;
    // A vanished peer must not keep its slot for ever.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    Ok(stream)
}

async fn accept_failed(error: &io::Error) {
    static FAILED: Throttle = Throttle::new();
    if let Some(suppressed) = FAILED.admit() {
        tracing::warn!(%error, suppressed, "cannot accept a client");
    }
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// A client's stream, as the runtime has it during the handshake.
trait Stream: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static {
    const IS_TCP: bool;
}

impl Stream for tokio::net::UnixStream {
    const IS_TCP: bool = false;
}

impl Stream for tokio::net::TcpStream {
    const IS_TCP: bool = true;
}

/// What all of a server's clients share.
#[derive(Debug)]
struct Shared<P: Pmem> {
    engine: Arc<Engine<P>>,
    export: Export,
    options: NbdOptions,
    stats: NbdStats,
    /// One permit a client, from accept to the end of its thread.
    slots: Arc<Semaphore>,
    /// One permit a client over TCP, in addition.
    tcp_slots: Arc<Semaphore>,
    /// Clients in transmission.
    clients: NbdClients,
    order: Arc<ConnectionOrder>,
    next_client: AtomicU64,
}

impl<P: Pmem + Send + Sync + 'static> Shared<P> {
    /// Starts the handshake with a client, or disconnects it when there are too many.
    fn admit<S: Stream>(self: &Arc<Self>, stream: S, handshakes: &mut JoinSet<()>) {
        let Some(slot) = self.slot(S::IS_TCP) else {
            self.stats.client_refused();
            static REFUSED: Throttle = Throttle::new();
            if let Some(suppressed) = REFUSED.admit() {
                tracing::warn!(
                    limit = self.options.max_clients,
                    suppressed,
                    "too many clients; disconnected one"
                );
            }
            return;
        };
        let shared = Arc::clone(self);
        handshakes.spawn(async move { shared.serve_logged(stream, slot).await });
    }

    /// A place for another client.
    fn slot(&self, is_tcp: bool) -> Option<Slot> {
        let tcp = if is_tcp { Some(Arc::clone(&self.tcp_slots).try_acquire_owned().ok()?) } else { None };
        let any = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        Some(Slot { _tcp: tcp, _any: any })
    }

    async fn serve_logged(self: Arc<Self>, stream: impl Stream, slot: Slot) {
        if let Err(error) = self.serve(stream, slot).await {
            static FAILED: Throttle = Throttle::new();
            if let Some(suppressed) = FAILED.admit() {
                tracing::warn!(%error, suppressed, "cannot serve a client");
            }
        }
    }

    /// Runs the handshake with a client, and starts its thread.
    async fn serve<S: Stream>(self: Arc<Self>, mut stream: S, slot: Slot) -> io::Result<()> {
        // Before the handshake, and so before the first request.
        let member = self.order.join(stream.as_fd().try_clone_to_owned()?, S::IS_TCP)?;
        let handshake = handshake::shake_hands(&mut stream, &self.export);
        match tokio::time::timeout(self.options.handshake_timeout, handshake).await {
            Ok(Ok(Some(agreement))) => {
                // From here on the socket blocks, and is outside of the runtime.
                drop(stream);
                rustix::io::ioctl_fionbio(member.socket(), false)?;
                let client = Client::register(self, member, slot);
                let name = format!("nbd-{}", client.id);
                let thread = std::thread::Builder::new().name(name).stack_size(THREAD_STACK_BYTES);
                thread.spawn(move || client.serve(agreement))?;
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "handshake failed"),
            Err(_) => tracing::debug!("handshake took too long"),
        }
        Ok(())
    }

    /// Answers the requests of every client, then cuts the clients that do not read, and waits for all threads.
    async fn end_clients(&self) -> io::Result<()> {
        let ended = self.order.end();
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_SLOTS")]
        let all_slots = self.options.max_clients.min(MAX_SLOTS) as u32;
        let all_gone = self.slots.acquire_many(all_slots);
        tokio::pin!(all_gone);
        if tokio::time::timeout(self.options.shutdown_grace, &mut all_gone).await.is_err() {
            tracing::info!("cutting the connections of clients that do not read");
            self.clients.cut();
            // No client can delay its thread now. The requests that still run wait for the medium only.
            drop(all_gone.await);
        }
        ended
    }
}

/// A client in transmission. Dropping it removes it from the counters, however its thread ends.
struct Client<P: Pmem> {
    id: u64,
    member: Member,
    shared: Arc<Shared<P>>,
    /// Dropped last, after the client's thread has used the engine.
    _slot: Slot,
}

/// A client's place among the most clients at a time.
struct Slot {
    _tcp: Option<OwnedSemaphorePermit>,
    _any: OwnedSemaphorePermit,
}

/// The most clients over TCP, of so many in all. Every user of the machine may connect there.
const fn tcp_max(max_clients: usize) -> usize {
    max_clients - max_clients / 4
}

impl<P: Pmem> Client<P> {
    fn register(shared: Arc<Shared<P>>, member: Member, slot: Slot) -> Self {
        let id = shared.next_client.fetch_add(1, Relaxed);
        shared.clients.insert(id, member.socket());
        shared.stats.client_connected();
        Self { id, member, shared, _slot: slot }
    }
}

impl<P: Pmem> Client<P> {
    fn serve(mut self, agreement: Agreement) {
        let Shared { engine, options, stats, .. } = &*self.shared;
        let connection = Connection::new(engine, &mut self.member, agreement.structured, options.spin, stats);
        let _aborts = AbortOnPanic;
        match connection.serve() {
            Ok(()) => tracing::debug!(client = self.id, "client disconnected"),
            Err(error) => tracing::debug!(client = self.id, %error, "connection ended"),
        }
    }
}

impl<P: Pmem> Drop for Client<P> {
    fn drop(&mut self) {
        self.shared.clients.remove(self.id);
        self.shared.stats.client_disconnected();
    }
}
