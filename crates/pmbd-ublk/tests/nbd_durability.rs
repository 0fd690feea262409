//! Durability of replies: fences before replies in a write-through device, fences at flushes in a write-back one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod nbd_common;

use nbd_common::watched::Watched;
use nbd_common::{Client, MIB, Server, error_of};
use pm_core::Domain;
use pmbd::nbd::protocol::{command, command_flag, errno};
use pmbd::{Engine, Geometry, NbdOptions, SectorSize, WriteCache};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn watched(domain: Domain) -> (Arc<Watched>, Engine<Arc<Watched>>) {
    let memory = Arc::new(Watched::new(domain, MIB));
    let geometry = Geometry::new(0, MIB, SectorSize::B512).unwrap();
    (Arc::clone(&memory), Engine::new(memory, geometry).unwrap())
}

#[test]
fn flush_covers_writes_of_other_connections() {
    let (memory, engine) = watched(Domain::Page);
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
fn write_through_device_fences_before_reply() {
    let (memory, engine) = watched(Domain::Adr);
    let server = Server::start(engine, NbdOptions::default());
    let mut client = Client::ready(&server.path(), true);
    for i in 1..=16 {
        client.write(i * 4096, &[1; 4096]).unwrap();
        assert_eq!(memory.fences(), i);
    }
}

#[test]
fn failing_medium_is_io_error() {
    let (memory, engine) = watched(Domain::Page);
    let server = Server::start(engine, NbdOptions::default());
    for structured in [false, true] {
        let mut client = Client::ready(&server.path(), structured);
        memory.fails.store(true, SeqCst);
        assert_eq!(error_of(&client.ask(command::FLUSH, 0, 0, 0, b"")), errno::EIO);
        assert_eq!(error_of(&client.ask(command::WRITE, command_flag::FUA, 0, 512, &[1; 512])), errno::EIO);
        // Requests without a fence succeed.
        assert_eq!(client.read(0, 512), Ok(vec![1; 512]));
    }
}
