//! For the NBD tests: a server in this process, and a small client that sends exactly the given messages.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod watched;

use pm_core::{Pmem, Region};
use pmbd::nbd::protocol::{
    self, CLIENT_FIXED_NEWSTYLE, CLIENT_NO_ZEROES, Request, chunk, option, option_reply,
};
use pmbd::{Engine, Geometry, NbdClients, NbdCounts, NbdError, NbdOptions, NbdServer, NbdStats, SectorSize};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Longer than any reply of a local server takes, on a busy machine too.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The size of most test devices.
pub const MIB: u64 = 1 << 20;

/// An engine over `len_bytes` of anonymous memory.
pub fn engine(len_bytes: u64) -> Engine {
    engine_over(Region::anonymous(len_bytes).unwrap())
}

/// An engine over all of `pmem`, with sectors of 512 bytes.
pub fn engine_over<P: Pmem>(pmem: P) -> Engine<P> {
    let geometry = Geometry::new(0, pmem.len_bytes(), SectorSize::B512).unwrap();
    Engine::new(pmem, geometry).unwrap()
}

/// A server of this engine with default options, and a client of it.
pub fn served<P: Pmem + Send + Sync + 'static>(engine: Engine<P>, structured: bool) -> (Server, Client) {
    let server = Server::start(engine, NbdOptions::default());
    let client = Client::ready(&server.path(), structured);
    (server, client)
}

/// A server on a thread of this process, in a directory of its own. Ends when dropped.
pub struct Server {
    dir: tempfile::TempDir,
    pub tcp: Option<SocketAddr>,
    stats: NbdStats,
    clients: NbdClients,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), NbdError>>>,
}

impl Server {
    pub fn start<P: Pmem + Send + Sync + 'static>(engine: Engine<P>, options: NbdOptions) -> Self {
        Self::start_shared(Arc::new(engine), options, false)
    }

    pub fn start_shared<P: Pmem + Send + Sync + 'static>(
        engine: Arc<Engine<P>>,
        options: NbdOptions,
        with_tcp: bool,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut server = NbdServer::bind_unix(dir.path().join("s"), engine, options).unwrap();
        let tcp = with_tcp.then(|| server.bind_tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap());
        let (stats, clients) = (server.stats(), server.clients());
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // Dropping the sender ends the server.
            runtime.block_on(server.run(async move { drop(stopped.await) }))
        });
        Self { dir, tcp, stats, clients, stop: Some(stop), thread: Some(thread) }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.path().display())
    }

    pub fn clients(&self) -> NbdClients {
        self.clients.clone()
    }

    pub fn counts(&self) -> NbdCounts {
        self.stats.counts()
    }

    /// Waits until the counters satisfy `wanted`.
    pub fn await_counts(&self, wanted: impl Fn(&NbdCounts) -> bool) -> NbdCounts {
        let start = Instant::now();
        loop {
            let counts = self.counts();
            if wanted(&counts) {
                return counts;
            }
            assert!(start.elapsed() < PATIENCE, "the counters stay at {counts:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the server. Returns the result of `run`.
    pub fn stop(&mut self) -> Result<(), NbdError> {
        drop(self.stop.take());
        self.thread.take().expect("stopped once").join().expect("the server does not panic")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.stop().unwrap();
        }
    }
}

/// A reply to an option: type and data.
pub type OptionReply = (u32, Vec<u8>);

/// The reply to a request: the data of a read, or the error's number and message.
pub type Answer = Result<Vec<u8>, (u32, String)>;

/// The number of an expected error.
pub fn error_of(answer: &Answer) -> u32 {
    answer.as_ref().map_or_else(|(error, _)| *error, |data| panic!("no error, but {} bytes", data.len()))
}

/// A client that checks the framing of everything it receives.
pub struct Client<S = UnixStream> {
    pub stream: S,
    pub structured: bool,
    next_cookie: u64,
}

impl Client {
    /// A connection with timeouts.
    pub fn connect(path: &Path) -> UnixStream {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A client in the option phase of the handshake.
    pub fn in_handshake(path: &Path) -> Self {
        Self::over(Self::connect(path), CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES)
    }

    /// A client in transmission, by `GO`.
    pub fn ready(path: &Path, structured: bool) -> Self {
        let mut client = Self::in_handshake(path);
        client.go(structured);
        client
    }
}

impl<S: Read + Write> Client<S> {
    pub fn over(mut stream: S, flags: u32) -> Self {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\x00\x03");
        stream.write_all(&flags.to_be_bytes()).unwrap();
        Self { stream, structured: false, next_cookie: 0x1234_5678_9abc_def0 }
    }

    pub fn go(&mut self, structured: bool) {
        if structured {
            assert_eq!(self.option(option::STRUCTURED_REPLY, b""), [(option_reply::ACK, vec![])]);
            self.structured = true;
        }
        let replies = self.option(option::GO, &info_request("", &[]));
        assert_eq!(replies.last(), Some(&(option_reply::ACK, vec![])));
    }

    pub fn send_option(&mut self, option: u32, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap();
        let head = [&protocol::OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &len.to_be_bytes()];
        self.stream.write_all(&[&head.concat(), data].concat()).unwrap();
    }

    pub fn option_reply(&mut self, option: u32) -> OptionReply {
        assert_eq!(self.u64(), protocol::OPTION_REPLY_MAGIC);
        assert_eq!(self.u32(), option);
        let (kind, len) = (self.u32(), self.u32());
        (kind, self.bytes(len as usize))
    }

    /// All replies to an option, up to the acknowledgement or the error.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<OptionReply> {
        self.send_option(option, data);
        let mut replies = Vec::new();
        loop {
            replies.push(self.option_reply(option));
            let kind = replies.last().unwrap().0;
            if kind == option_reply::ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    /// Sends one request. Returns its cookie.
    pub fn send(&mut self, command: u16, flags: u16, offset_bytes: u64, len_bytes: u32, data: &[u8]) -> u64 {
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        let head = Request { flags, command, cookie, offset_bytes, len_bytes }.encode();
        self.stream.write_all(&[&head[..], data].concat()).unwrap();
        cookie
    }

    /// Receives the reply to a request for `read_bytes` bytes at `offset_bytes`; zero for other requests.
    pub fn receive(&mut self, cookie: u64, offset_bytes: u64, read_bytes: usize) -> Answer {
        let magic = self.u32();
        if magic == protocol::SIMPLE_REPLY_MAGIC {
            assert!(
                !self.structured || read_bytes == 0,
                "a simple reply to a read, although structured replies were agreed"
            );
            let error = self.u32();
            assert_eq!(self.u64(), cookie);
            return if error == 0 { Ok(self.bytes(read_bytes)) } else { Err((error, String::new())) };
        }
        assert_eq!(magic, protocol::STRUCTURED_REPLY_MAGIC);
        assert!(self.structured, "a structured reply without agreement");
        let (flags, kind) = (self.u16(), self.u16());
        assert_eq!(self.u64(), cookie);
        let payload_bytes = self.u32() as usize;
        if flags == 0 {
            // Long data are in a chunk that is not the last: an error may follow.
            assert_eq!(
                (kind, payload_bytes),
                (chunk::OFFSET_DATA, 8 + read_bytes),
                "one chunk has all the data"
            );
            assert_eq!(self.u64(), offset_bytes);
            let data = self.bytes(read_bytes);
            return self.receive(cookie, offset_bytes, 0).map(|_| data);
        }
        assert_eq!(flags, chunk::FLAG_DONE);
        match kind {
            chunk::NONE => {
                assert_eq!((payload_bytes, read_bytes), (0, 0));
                Ok(vec![])
            }
            chunk::OFFSET_DATA => {
                assert_eq!(payload_bytes, 8 + read_bytes);
                assert!(read_bytes > 0, "a chunk of data must not be empty");
                assert_eq!(self.u64(), offset_bytes);
                Ok(self.bytes(read_bytes))
            }
            chunk::ERROR => {
                let (error, len) = (self.u32(), usize::from(self.u16()));
                assert_eq!(payload_bytes, 6 + len);
                Err((error, String::from_utf8(self.bytes(len)).unwrap()))
            }
            _ => panic!("chunk of unknown type {kind}"),
        }
    }

    /// Receives replies without an error to these requests, which are not reads.
    #[track_caller]
    pub fn assert_done(&mut self, cookies: impl IntoIterator<Item = u64>) {
        cookies.into_iter().for_each(|cookie| assert_eq!(self.receive(cookie, 0, 0), Ok(vec![])));
    }

    pub fn read(&mut self, offset_bytes: u64, len_bytes: u32) -> Answer {
        let cookie = self.send(protocol::command::READ, 0, offset_bytes, len_bytes, b"");
        self.receive(cookie, offset_bytes, len_bytes as usize)
    }

    pub fn write(&mut self, offset_bytes: u64, data: &[u8]) -> Answer {
        let len = u32::try_from(data.len()).unwrap();
        self.ask(protocol::command::WRITE, 0, offset_bytes, len, data)
    }

    /// Sends a request that is not a read, and receives its reply.
    pub fn ask(
        &mut self,
        command: u16,
        flags: u16,
        offset_bytes: u64,
        len_bytes: u32,
        data: &[u8],
    ) -> Answer {
        let cookie = self.send(command, flags, offset_bytes, len_bytes, data);
        self.receive(cookie, offset_bytes, 0)
    }

    /// Whether the server has closed the connection, without more bytes.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(received) => received == 0,
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => true,
                _ => panic!("the server neither replies nor closes the connection: {error}"),
            },
        }
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.bytes(N).try_into().unwrap()
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }
}

/// The data of `INFO` and `GO`.
pub fn info_request(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&u16::try_from(kinds.len()).unwrap().to_be_bytes());
    data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// The data of the meta context options.
pub fn meta_request(name: &str, queries: &[&str]) -> Vec<u8> {
    let len_of = |text: &[u8]| u32::try_from(text.len()).unwrap().to_be_bytes();
    let mut data = [&len_of(name.as_bytes()), name.as_bytes()].concat();
    data.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
    for query in queries {
        data.extend_from_slice(&[&len_of(query.as_bytes()), query.as_bytes()].concat());
    }
    data
}

/// Random bytes, the same for the same `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}
