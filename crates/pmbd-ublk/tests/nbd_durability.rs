//! What a reply promises: fences before replies in a write-through device, fences at flushes in a write-back one.
#![allow(clippy::unwrap_used, reason = "helpers of tests; what goes wrong in them fails the test")]

mod nbd_common;

use nbd_common::{Client, MIB, Server, error_of};
use pm_core::{Domain, FenceError, Pmem, Region};
use pmbd::nbd::protocol::{command, command_flag, errno};
use pmbd::{Engine, Geometry, NbdOptions, SectorSize, WriteCache};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Memory that says which domain it is in, counts fences, and fails them when told to.
#[derive(Debug)]
struct Watched {
    memory: Region,
    domain: Domain,
    fences: AtomicU64,
    fails: AtomicBool,
}

impl Watched {
    fn new(domain: Domain) -> Self {
        let memory = Region::anonymous(MIB).unwrap();
        Self { memory, domain, fences: AtomicU64::new(0), fails: AtomicBool::new(false) }
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
