//! Transmission: every command, flag and error, both styles of replies, durability at replies, and the end of a server under load.

use crate::nbd_common::watched::{Watched, WatchedMemory};
use crate::nbd_common::{Answer, Client, MIB, Server, engine, engine_over, error_of, pattern, served};
use core::ops::Range;
use fastrand::Rng;
use pm_core::{Domain, Pmem, Region, RegionOptions};
use pm_testkit::{AnyPmem, Hook, Hooked};
use pmbd::nbd::protocol::{MAX_PAYLOAD_BYTES, command, command_flag, errno, option};
use pmbd::{Engine, Geometry, NbdOptions, NbdPeer, SectorSize, WriteCache};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Runs a test with a client of each style, on devices of their own.
fn both(device_bytes: u64, test: impl Fn(&mut Client)) {
    both_of(|| engine(device_bytes), test);
}

fn both_of(engine_of: impl Fn() -> Engine, test: impl Fn(&mut Client)) {
    for structured in [false, true] {
        let (_server, mut client) = served(engine_of(), structured);
        test(&mut client);
    }
}

#[test]
fn writes_are_read_back() {
    both(MIB, |client| {
        let data = pattern(1, 8192);
        assert_eq!(client.write(4096, &data), Ok(vec![]));
        assert_eq!(client.read(4096, 8192), Ok(data.clone()));
        assert_eq!(client.read(4096 + 512, 512), Ok(data[512..1024].to_vec()));
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
        assert_eq!(client.write(MIB - 512, &data[..512]), Ok(vec![]), "the last sector");
        assert_eq!(client.read(MIB - 512, 512), Ok(data[..512].to_vec()));
    });
}

#[test]
fn payloads_of_all_sizes_round_trip() {
    assert_eq!(u64::from(MAX_PAYLOAD_BYTES), 64 * MIB, "what libnbd and qemu send at most");
    both(65 * MIB, |client| {
        for len in [255 << 10, (256 << 10) - 512, 256 << 10, (256 << 10) + 512, 1 << 20, MAX_PAYLOAD_BYTES] {
            let data = pattern(len.into(), len as usize);
            assert_eq!(client.write(512, &data), Ok(vec![]));
            assert!(client.read(512, len) == Ok(data), "{len} bytes differ");
            assert_eq!(client.read(512 + u64::from(len), 512), Ok(vec![0; 512]), "beyond the payload");
        }
    });
}

#[test]
fn fragmented_payload_is_reassembled() {
    both(2 * MIB, |client| {
        for len in [4096, 1 << 20] {
            let data = pattern(5, len as usize);
            let cookie = client.send(command::WRITE, 0, 0, len, b"");
            for bite in data.chunks(len as usize / 61) {
                client.stream.write_all(bite).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
            assert_eq!(client.receive(cookie, 0, 0), Ok(vec![]));
            assert!(client.read(0, len) == Ok(data));
        }
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    both(MIB, |client| {
        let mut expected = Vec::new();
        for i in 0..64 {
            let data = pattern(i, 4096);
            let write = client.send(command::WRITE, 0, i * 4096, 4096, &data);
            let read = client.send(command::READ, 0, i * 4096, 4096, b"");
            expected.push((i, write, read, data));
        }
        for (i, write, read, data) in expected {
            assert_eq!(client.receive(write, 0, 0), Ok(vec![]));
            assert_eq!(client.receive(read, i * 4096, 4096), Ok(data));
        }
    });
}

#[test]
fn trim_and_write_zeroes_affect_only_their_range() {
    both(MIB, |client| {
        for (command, flags) in [
            (command::TRIM, 0),
            (command::TRIM, command_flag::FUA),
            (command::WRITE_ZEROES, 0),
            (command::WRITE_ZEROES, command_flag::FUA),
            (command::WRITE_ZEROES, command_flag::NO_HOLE),
            (command::WRITE_ZEROES, command_flag::FAST_ZERO | command_flag::NO_HOLE | command_flag::FUA),
        ] {
            client.write(0, &[0xff; 65536]).unwrap();
            assert_eq!(client.ask(command, flags, 512, 60_000 / 512 * 512, b""), Ok(vec![]));
            let after = client.read(0, 65536).unwrap();
            let end = 512 + 60_000 / 512 * 512;
            assert!(after[..512].iter().all(|&b| b == 0xff), "before the range");
            assert!(after[512..end].iter().all(|&b| b == 0), "the range");
            assert!(after[end..].iter().all(|&b| b == 0xff), "after the range");
        }
        // The limit of payloads does not apply to requests without one.
        let whole = u32::try_from(MIB).unwrap();
        assert_eq!(client.ask(command::WRITE_ZEROES, 0, 0, whole, b""), Ok(vec![]));
    });
}

#[test]
fn empty_requests_have_no_effect() {
    both(MIB, |client| {
        for offset in [0, 512, MIB] {
            assert_eq!(client.read(offset, 0), Ok(vec![]));
            assert_eq!(client.write(offset, b""), Ok(vec![]));
            assert_eq!(client.ask(command::TRIM, 0, offset, 0, b""), Ok(vec![]));
        }
        assert_eq!(error_of(&client.ask(command::WRITE, 0, MIB + 512, 0, b"")), errno::ENOSPC);
    });
}

#[test]
fn ranges_outside_device_are_refused() {
    both(MIB, |client| {
        let len = 1024;
        for offset in [MIB - 512, MIB, MIB + 512, u64::MAX - 511, u64::MAX] {
            assert_eq!(read_error(client, offset, len), errno::EINVAL);
            let past_end = errno::ENOSPC;
            assert_eq!(error_of(&client.write(offset, &[1; 1024])), past_end);
            assert_eq!(error_of(&client.ask(command::WRITE_ZEROES, 0, offset, len, b"")), past_end);
            assert_eq!(error_of(&client.ask(command::TRIM, 0, offset, len, b"")), errno::EINVAL);
        }
        // The last byte, and one more.
        assert_eq!(read_error(client, MIB - 1, 2), errno::EINVAL);
        assert_eq!(error_of(&client.write(MIB - 1, &[1; 2])), errno::ENOSPC);
        assert!(client.read(0, u32::try_from(MIB).unwrap()).unwrap().iter().all(|&b| b == 0), "unchanged");
    });
}

/// The error of a read. It has no data.
fn read_error(client: &mut Client, offset_bytes: u64, len_bytes: u32) -> u32 {
    let cookie = client.send(command::READ, 0, offset_bytes, len_bytes, b"");
    error_of(&receive_error(client, cookie))
}

/// An error in reply to a read.
fn receive_error(client: &mut Client, cookie: u64) -> Answer {
    client.receive(cookie, 0, usize::from(client.structured))
}

#[test]
fn oversize_requests_are_refused_without_desynchronizing() {
    both(64 * MIB, |client| {
        let too_long = MAX_PAYLOAD_BYTES + 512;
        assert_eq!(read_error(client, 0, too_long), errno::EINVAL);
        let data = vec![0xee; too_long as usize];
        assert_eq!(error_of(&client.write(0, &data)), errno::EINVAL);
        // Long, but not too long: refused for other reasons.
        let long = &data[..1 << 20];
        assert_eq!(error_of(&client.write(64 * MIB - 512, long)), errno::ENOSPC);
        assert_eq!(error_of(&client.write(u64::MAX, long)), errno::ENOSPC);
        assert_eq!(read_error(client, 64 * MIB - 512, 1 << 20), errno::EINVAL);
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]), "unchanged");
    });
}

#[test]
fn flags_are_checked_per_command() {
    both(MIB, |client| {
        use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE};
        let commands = [
            (command::READ, if client.structured { FUA | DF } else { FUA }),
            (command::WRITE, FUA),
            (command::FLUSH, FUA),
            (command::TRIM, FUA),
            (command::WRITE_ZEROES, FUA | NO_HOLE | FAST_ZERO),
        ];
        for (command, allowed) in commands {
            let len = if command == command::FLUSH { 0 } else { 512 };
            let data = if command == command::WRITE { &[0; 512][..] } else { b"" };
            for flags in (0..16).map(|bit| 1 << bit) {
                let cookie = client.send(command, flags, 0, len, data);
                if flags & allowed != 0 {
                    let read = if command == command::READ { 512 } else { 0 };
                    assert_eq!(client.receive(cookie, 0, read), Ok(vec![0; read]), "{command} {flags}");
                } else {
                    assert_eq!(error_of(&receive_error(client, cookie)), errno::EINVAL, "{command} {flags}");
                }
            }
        }
    });
}

#[test]
fn unknown_commands_and_flushes_with_range_are_refused() {
    both(MIB, |client| {
        for unknown in [5, 7, 8, 255, u16::MAX] {
            assert_eq!(error_of(&client.ask(unknown, 0, 0, 512, b"")), errno::EINVAL);
        }
        assert_eq!(error_of(&client.ask(command::FLUSH, 0, 0, 512, b"")), errno::EINVAL);
        assert_eq!(error_of(&client.ask(command::FLUSH, 0, 512, 0, b"")), errno::EINVAL);
        assert_eq!(client.ask(command::FLUSH, 0, 0, 0, b""), Ok(vec![]));
    });
}

#[test]
fn structured_errors_have_messages() {
    let (_server, mut client) = served(engine(MIB), true);
    let (_, message) = client.write(MIB, &[0; 512]).unwrap_err();
    assert_eq!(message, "512 bytes at 1048576 end beyond the device's capacity of 1048576 bytes");
    let (_, message) = client.ask(99, 0, 0, 0, b"").unwrap_err();
    assert_eq!(message, "unknown command 99");
}

#[test]
fn read_only_device_is_read_and_flushed_but_not_changed() {
    both_of(
        || engine(MIB).read_only(),
        |client| {
            assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
            assert_eq!(client.ask(command::FLUSH, 0, 0, 0, b""), Ok(vec![]));
            assert_eq!(error_of(&client.write(0, &[1; 512])), errno::EPERM);
            assert_eq!(error_of(&client.write(0, &vec![1; 1 << 19])), errno::EPERM);
            assert_eq!(error_of(&client.ask(command::TRIM, 0, 0, 512, b"")), errno::EPERM);
            assert_eq!(error_of(&client.ask(command::WRITE_ZEROES, 0, 0, 512, b"")), errno::EPERM);
        },
    );
}

#[test]
fn byte_granular_requests_match_oracle() {
    const LEN: usize = 3 << 18;
    for sector in [SectorSize::B512, SectorSize::B4096] {
        for structured in [false, true] {
            let region = Region::anonymous(LEN as u64).unwrap();
            let geometry = Geometry::new(0, LEN as u64, sector).unwrap();
            let (_server, mut client) = served(Engine::new(region, geometry).unwrap(), structured);
            let mut oracle = vec![0; LEN];
            let mut random = Rng::with_seed(sector.bytes());
            for round in 0..200 {
                // Around words, sectors, pages and the size of the buffers.
                let lens = [1, 3, 7, 8, 9, 511, 513, 4095, 4097, 262_143, 262_145];
                let len = lens[random.usize(..lens.len())];
                let start = random.usize(..=LEN - len);
                let (range, wire_len) = (start..start + len, u32::try_from(len).unwrap());
                let at = start as u64;
                match random.u8(..4) {
                    0 => {
                        assert_eq!(client.ask(command::WRITE_ZEROES, 0, at, wire_len, b""), Ok(vec![]));
                        oracle[range.clone()].fill(0);
                    }
                    1 => {
                        let data = pattern(round, len);
                        assert_eq!(client.write(at, &data), Ok(vec![]));
                        oracle[range.clone()].copy_from_slice(&data);
                    }
                    _ => {}
                }
                assert!(client.read(at, wire_len) == Ok(oracle[range].to_vec()), "{len} bytes at {at}");
            }
            assert!(client.read(0, u32::try_from(LEN).unwrap()) == Ok(oracle), "nothing else has changed");
        }
    }
}

#[test]
fn concurrent_writes_of_neighbouring_bytes_are_kept() {
    const CLIENTS: usize = 3;
    let server = Server::start(engine(MIB), NbdOptions::default());
    let path = server.path();
    std::thread::scope(|threads| {
        for number in 0..CLIENTS {
            let path = &path;
            threads.spawn(move || {
                let mut client = Client::ready(path, false);
                // Each client owns every third byte of the same words, and reads back its own last values.
                for round in 1..=40_u8 {
                    let bytes = (number..96).step_by(CLIENTS).map(|byte| byte as u64);
                    for at in bytes.clone() {
                        assert_eq!(client.write(at, &[round]), Ok(vec![]));
                    }
                    for at in bytes {
                        assert_eq!(client.read(at, 1), Ok(vec![round]), "byte {at} of client {number}");
                    }
                }
            });
        }
    });
}

/// A server of a file in memory, and the file.
fn serve_file(len_bytes: u64) -> (tempfile::TempDir, std::fs::File, Server) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk");
    let region = RegionOptions::new().create(&path, len_bytes).unwrap();
    let server = Server::start(engine_over(region), NbdOptions::default());
    (dir, std::fs::OpenOptions::new().write(true).open(path).unwrap(), server)
}

#[test]
fn requests_to_truncated_file_fail_with_eio_until_it_grows_again() {
    for structured in [false, true] {
        let (_dir, file, server) = serve_file(2 * MIB);
        let mut client = Client::ready(&server.path(), structured);
        assert_eq!(client.write(0, &pattern(1, 8192)), Ok(vec![]));
        file.set_len(4096).unwrap();
        for (offset, len) in [(4096, 512), (3584, 1024), (MIB, 4096), (2 * MIB - 512, 512)] {
            assert_eq!(read_error(&mut client, offset, len), errno::EIO);
            assert_eq!(error_of(&client.write(offset, &vec![1; len as usize])), errno::EIO);
            assert_eq!(error_of(&client.ask(command::WRITE_ZEROES, 0, offset, len, b"")), errno::EIO);
        }
        // Longer than the buffers.
        assert_eq!(error_of(&client.write(0, &vec![1; 1 << 20])), errno::EIO);
        if structured {
            assert_eq!(error_of(&client.read(0, 1 << 20)), errno::EIO);
        }
        let data = pattern(2, 4096);
        assert_eq!(client.write(0, &data), Ok(vec![]), "existing bytes are still served");
        assert_eq!(client.read(0, 4096), Ok(data.clone()));
        file.set_len(2 * MIB).unwrap();
        assert_eq!(client.read(4096, 4096), Ok(vec![0; 4096]));
        assert_eq!(client.write(MIB, &data), Ok(vec![]));
        assert_eq!(client.read(MIB, 4096), Ok(data));
        // With simple replies, a failed long read ends its connection, and no other.
        if !structured {
            file.set_len(4096).unwrap();
            client.send(command::READ, 0, 0, 1 << 20, b"");
            client.stream.read_to_end(&mut Vec::new()).expect("the server hangs up");
            let mut other = Client::ready(&server.path(), structured);
            assert_eq!(other.read(0, 512).map(|data| data.len()), Ok(512));
        }
    }
}

#[test]
fn clients_are_listed_while_connected() {
    let server = Server::start(engine(MIB), NbdOptions::default());
    let clients = server.clients();
    assert_eq!(clients.list(), []);
    let mut client = Client::ready(&server.path(), true);
    assert!(client.read(0, 512).is_ok());
    let [only] = &clients.list()[..] else { panic!("one client is connected: {:?}", clients.list()) };
    let pid = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(&only.peer, NbdPeer::Process { pid: peer, .. } if *peer == pid), "{only:?}");
    drop(client);
    server.await_counts(|counts| counts.clients == 0);
    assert_eq!(clients.list(), []);
}

#[test]
fn disconnect_is_served_after_pending_requests() {
    both(MIB, |client| {
        let cookie = client.send(command::READ, 0, 0, 512, b"");
        client.send(command::DISC, 0, 0, 0, b"");
        assert_eq!(client.receive(cookie, 0, 512), Ok(vec![0; 512]));
        assert!(client.is_closed());
    });
}

#[test]
fn wrong_magic_ends_only_its_connection() {
    let (server, mut bystander) = served(engine(MIB), true);
    let mut client = Client::ready(&server.path(), true);
    let cookie = client.send(command::READ, 0, 0, 512, b"");
    client.stream.write_all(&[0x77; 28]).unwrap();
    assert_eq!(client.receive(cookie, 0, 512), Ok(vec![0; 512]), "earlier requests are answered");
    assert!(client.is_closed());
    assert_eq!(bystander.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn short_write_cut_by_disconnect_has_no_effect() {
    let server = Server::start(engine(MIB), NbdOptions::default());
    for sent in [0, 27, 28, 29, 28 + 4095] {
        let mut client = Client::ready(&server.path(), false);
        let head = pmbd::nbd::protocol::Request {
            flags: 0,
            command: command::WRITE,
            cookie: 1,
            offset_bytes: 0,
            len_bytes: 4096,
        };
        let whole = [&head.encode()[..], &[0xdd; 4096]].concat();
        client.stream.write_all(&whole[..sent]).unwrap();
    }
    server.await_counts(|c| c.clients == 0 && c.clients_total == 5);
    let mut client = Client::ready(&server.path(), true);
    assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
}

#[test]
fn slow_reader_delays_neither_others_nor_shutdown() {
    let options = NbdOptions { shutdown_grace: Duration::from_millis(200), ..NbdOptions::default() };
    let mut server = Server::start(engine(64 * MIB), options);
    let mut slow = Client::ready(&server.path(), true);
    for _ in 0..4 {
        slow.send(command::READ, 0, 0, MAX_PAYLOAD_BYTES, b"");
    }
    let mut quick = Client::ready(&server.path(), true);
    for i in 0..100 {
        assert_eq!(quick.read(i * 512, 512), Ok(vec![0; 512]));
    }
    let start = Instant::now();
    server.stop().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "the slow reader kept the server alive");
    assert!(quick.is_closed());
}

#[test]
fn shutdown_waits_for_every_thread() {
    let (shutdown_grace, max_clients) = (Duration::from_millis(50), usize::MAX);
    let options = NbdOptions { shutdown_grace, max_clients, ..NbdOptions::default() };
    let mut server = Server::start(engine(4 * MIB), options);
    let mut slow = Client::ready(&server.path(), true);
    slow.send(command::READ, 0, 0, 4 << 20, b"");
    server.stop().unwrap();
    assert_eq!(server.counts().clients, 0, "its thread still runs");
}

#[test]
fn shutdown_answers_received_requests() {
    let (mut server, mut client) = served(engine(MIB), true);
    let mut half_way = Client::in_handshake(&server.path());
    let cookies: Vec<u64> = (0..32).map(|_| client.send(command::READ, 0, 0, 4096, b"")).collect();
    server.stop().unwrap();
    for cookie in cookies {
        assert_eq!(client.receive(cookie, 0, 4096), Ok(vec![0; 4096]));
    }
    assert!(client.is_closed());
    assert!(half_way.is_closed());
    assert!(!server.path().exists());
    assert_eq!(server.counts().clients, 0);
}

#[test]
fn half_closed_client_gets_replies() {
    let (_server, mut client) = served(engine(MIB), true);
    let cookie = client.send(command::READ, 0, 512, 4096, b"");
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.receive(cookie, 512, 4096), Ok(vec![0; 4096]));
    assert!(client.is_closed());
}

#[test]
fn counters_match_requests() {
    let server = Server::start(engine(MIB), NbdOptions::default());
    let mut client = Client::in_handshake(&server.path());
    client.option(option::LIST, b"");
    assert_eq!(server.counts().clients, 0, "a client in the handshake does not count");
    client.go(true);
    client.write(0, &[1; 4096]).unwrap();
    client.read(0, 1024).unwrap();
    client.ask(command::TRIM, 0, 0, 512, b"").unwrap();
    client.ask(99, 0, 0, 512, b"").unwrap_err();
    let counts = server.await_counts(|c| c.requests == 4);
    assert_eq!((counts.clients, counts.clients_total, counts.errors), (1, 1, 1));
    assert_eq!((counts.read_bytes, counts.written_bytes), (1024, 4096));
    drop(client);
    server.await_counts(|c| c.clients == 0);
}

fn watched(domain: Domain) -> (Arc<Watched>, Engine<WatchedMemory>) {
    let (watched, memory) = Watched::memory(domain, MIB);
    (watched, engine_over(memory))
}

#[test]
fn flush_covers_writes_of_other_connections() {
    let (memory, engine) = watched(Domain::Page);
    assert_eq!(engine.write_cache(), WriteCache::WriteBack);
    let (server, mut writer) = served(engine, true);
    let mut flusher = Client::ready(&server.path(), false);
    writer.write(0, &[1; 4096]).unwrap();
    writer.ask(command::TRIM, 0, 0, 512, b"").unwrap();
    assert_eq!(memory.fences(), 0);
    flusher.ask(command::FLUSH, 0, 0, 0, b"").unwrap();
    assert_eq!(memory.fences(), 1);
    // The last write has several pieces, and one fence.
    let long = 1 << 19;
    let requests = [
        (command::WRITE, 4096),
        (command::TRIM, 4096),
        (command::WRITE_ZEROES, 4096),
        (command::WRITE, long),
    ];
    for (fences, (command, len)) in (2..).zip(requests) {
        let data = vec![2; if command == command::WRITE { len as usize } else { 0 }];
        writer.ask(command, command_flag::FUA, 0, len, &data).unwrap();
        assert_eq!(memory.fences(), fences, "command {command}, {len} bytes");
    }
}

#[test]
fn write_through_device_fences_before_reply() {
    let (memory, engine) = watched(Domain::Adr);
    let (_server, mut client) = served(engine, true);
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

/// Panics at a store to the second sector.
struct Panics;

impl<R: Pmem> Hook<R> for Panics {
    fn before_store(&self, range: Range<u64>) {
        assert_ne!(range.start, 512, "a bug in the way of a request");
    }
}

/// A thread that serves a client ends the process when it panics, with its message: the other clients' requests would be served by what the panic has
/// left half done, and this one's never be answered.
#[test]
fn panic_in_a_client_thread_ends_the_process() {
    const CHILD: &str = "PM_PANIC_IN_CLIENT";
    if std::env::var_os(CHILD).is_some() {
        let engine = engine_over(AnyPmem::other(Hooked::new(Region::anonymous(MIB).unwrap(), Panics)));
        let (_server, mut client) = served(engine, true);
        assert_eq!(client.write(0, &[1; 512]), Ok(vec![]));
        let answer = client.write(512, &[1; 512]);
        panic!("the process goes on: {answer:?}");
    }
    let name = "nbd_requests::panic_in_a_client_thread_ends_the_process";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{text}");
    assert!(text.contains("a bug in the way of a request") && !text.contains("goes on"), "{text}");
}
