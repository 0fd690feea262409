//! What a reply promises: fences before replies in a write-through device, fences at flushes in a write-back one, and that no
//! older copy of a request runs after it.
#![allow(clippy::unwrap_used, reason = "helpers of tests; what goes wrong in them fails the test")]

mod nbd_common;

use nbd_common::{Client, MIB, PATIENCE, Server, error_of};
use pm_core::{Domain, FenceError, Pmem, Region};
use pmbd::nbd::protocol::{CLIENT_FIXED_NEWSTYLE, CLIENT_NO_ZEROES, command, command_flag, errno};
use pmbd::{Engine, Geometry, NbdOptions, SectorSize, WriteCache};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Memory that says which domain it is in, counts fences, and delays or fails them when told to.
#[derive(Debug)]
struct Watched {
    memory: Region,
    domain: Domain,
    fences: AtomicU64,
    fails: AtomicBool,
    /// Fences wait while it is locked.
    gate: Mutex<()>,
}

impl Watched {
    fn new(domain: Domain) -> Self {
        let memory = Region::anonymous(MIB).unwrap();
        Self {
            memory,
            domain,
            fences: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            gate: Mutex::new(()),
        }
    }

    fn fences(&self) -> u64 {
        self.fences.load(SeqCst)
    }
}

impl Pmem for Watched {
    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }
    fn domain(&self) -> Domain {
        self.domain
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.memory.load(offset, out);
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.memory.store(offset, bytes);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.memory.store_nt(offset, bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.memory.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.memory.store_u64(offset, value);
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.memory.store_u128(offset, value);
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.memory.compare_exchange_u64(offset, current, new)
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.memory.flush(offset, len_bytes);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.fences.fetch_add(1, SeqCst);
        drop(self.gate.lock().unwrap());
        if self.fails.load(SeqCst) { Err(FenceError::Poisoned) } else { self.memory.fence() }
    }
}

#[test]
fn a_flush_makes_other_connections_writes_durable_in_a_write_back_device() {
    let memory = Arc::new(Watched::new(Domain::Page));
    let engine = Engine::new(Arc::clone(&memory), Geometry::new(0, MIB, SectorSize::B512).unwrap()).unwrap();
    assert_eq!(engine.write_cache(), WriteCache::WriteBack);
    let server = Server::start(engine, NbdOptions::default());
    let mut writer = Client::ready(&server.path(), true);
    let mut flusher = Client::ready(&server.path(), false);
    writer.write(0, &[1; 4096]).unwrap();
    writer.ask(command::TRIM, 0, 0, 512, b"").unwrap();
    assert_eq!(memory.fences(), 0);
    flusher.ask(command::FLUSH, 0, 0, 0, b"").unwrap();
    assert_eq!(memory.fences(), 1);
    let fua = command_flag::FUA;
    writer.ask(command::WRITE, fua, 0, 4096, &[2; 4096]).unwrap();
    assert_eq!(memory.fences(), 2);
    writer.ask(command::TRIM, fua, 0, 4096, b"").unwrap();
    assert_eq!(memory.fences(), 3);
    writer.ask(command::WRITE_ZEROES, fua, 0, 4096, b"").unwrap();
    assert_eq!(memory.fences(), 4);
    let long = 1 << 19;
    writer.ask(command::WRITE, fua, 0, long, &vec![3; long as usize]).unwrap();
    assert_eq!(memory.fences(), 5, "one fence for all pieces of a long write");
}

#[test]
fn a_write_through_device_has_fenced_before_it_answers() {
    let memory = Arc::new(Watched::new(Domain::Adr));
    let engine = Engine::new(Arc::clone(&memory), Geometry::new(0, MIB, SectorSize::B512).unwrap()).unwrap();
    let server = Server::start(engine, NbdOptions::default());
    let mut client = Client::ready(&server.path(), true);
    for i in 1..=16 {
        client.write(i * 4096, &[1; 4096]).unwrap();
        assert_eq!(memory.fences(), i);
    }
}

#[test]
fn a_failing_medium_is_an_io_error() {
    let memory = Arc::new(Watched::new(Domain::Page));
    let engine = Engine::new(Arc::clone(&memory), Geometry::new(0, MIB, SectorSize::B512).unwrap()).unwrap();
    let server = Server::start(engine, NbdOptions::default());
    for structured in [false, true] {
        let mut client = Client::ready(&server.path(), structured);
        memory.fails.store(true, SeqCst);
        assert_eq!(error_of(&client.ask(command::FLUSH, 0, 0, 0, b"")), errno::EIO);
        assert_eq!(error_of(&client.ask(command::WRITE, command_flag::FUA, 0, 512, &[1; 512])), errno::EIO);
        // What needs no fence goes on.
        assert_eq!(client.read(0, 512), Ok(vec![1; 512]));
    }
}

/// A connection of either kind, with the calls that both have and no trait offers.
trait Socket: Read + Write {
    fn set_read_timeout(&self, timeout: Duration);
}

impl Socket for UnixStream {
    fn set_read_timeout(&self, timeout: Duration) {
        self.set_read_timeout(Some(timeout)).unwrap();
    }
}

impl Socket for TcpStream {
    fn set_read_timeout(&self, timeout: Duration) {
        self.set_read_timeout(Some(timeout)).unwrap();
    }
}

/// A write-back device over memory whose fences can be held up, served on a socket and over TCP.
fn held_up() -> (Arc<Watched>, Server) {
    let memory = Arc::new(Watched::new(Domain::Page));
    let engine = Engine::new(Arc::clone(&memory), Geometry::new(0, MIB, SectorSize::B512).unwrap()).unwrap();
    let options = NbdOptions { shutdown_grace: Duration::from_millis(300), ..NbdOptions::default() };
    (memory, Server::start_shared(Arc::new(engine), options, true))
}

fn unix(server: &Server) -> Client<UnixStream> {
    Client::ready(&server.path(), false)
}

fn tcp(server: &Server) -> Client<TcpStream> {
    let stream = TcpStream::connect(server.tcp.unwrap()).unwrap();
    let mut client = Client::over(stream, CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES);
    client.go(false);
    client
}

/// A client writes, hangs up before the reply, and sends the write again, over a new connection or another one that it had
/// all along. When that is acknowledged, it writes something newer.
fn resend<S: Socket>(connect: fn(&Server) -> Client<S>, hang_up: fn(Client<S>), has_another: bool) {
    let (memory, server) = held_up();
    let mut another = has_another.then(|| connect(&server));
    let mut client = connect(&server);
    let closed = memory.gate.lock().unwrap();
    // While the server is at the first request, the second one waits in a buffer.
    client.send(command::WRITE, command_flag::FUA, 0, 512, &[1; 512]);
    client.send(command::WRITE, 0, 4096, 512, &[1; 512]);
    let start = Instant::now();
    while memory.fences() == 0 {
        assert!(start.elapsed() < PATIENCE, "the first request does not run");
        std::thread::sleep(Duration::from_millis(1));
    }
    hang_up(client);
    let mut client = another.take().unwrap_or_else(|| connect(&server));
    let again = client.send(command::WRITE, 0, 4096, 512, &[1; 512]);
    let newer = client.send(command::WRITE, 0, 4096, 512, &[2; 512]);
    // Time for the server to run both, if it would.
    std::thread::sleep(Duration::from_millis(100));
    drop(closed);
    client.stream.set_read_timeout(PATIENCE);
    assert_eq!(client.receive(again, 0, 0), Ok(vec![]));
    assert_eq!(client.receive(newer, 0, 0), Ok(vec![]));
    server.await_counts(|counts| counts.clients == 1);
    assert_eq!(client.read(4096, 512), Ok(vec![2; 512]), "the first copy of the write ran last");
}

#[test]
fn request_of_a_closed_connection_does_not_run_after_its_copy() {
    for has_another in [false, true] {
        resend(unix, drop, has_another);
        resend(tcp, drop, has_another);
        resend(unix, |client| client.stream.shutdown(Shutdown::Both).unwrap(), has_another);
    }
}

/// A client that has closed its sending direction can still read, so its requests run; but it does not read.
#[test]
fn closed_connection_that_does_not_read_does_not_hold_up_others_for_good() {
    let (_memory, server) = held_up();
    let mut client = unix(&server);
    for _ in 0..16 {
        client.send(command::READ, 0, 0, 1 << 20, b"");
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut other = unix(&server);
    other.write(0, &[1; 512]).unwrap();
    assert_eq!(server.await_counts(|counts| counts.clients == 1).clients_total, 2);
    drop(client);
}
