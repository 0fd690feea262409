//! Ten thousand malformed sessions: random bytes, valid sessions with bytes changed, cut off, repeated or left out, and disconnects anywhere.
//!
//! Every session runs against one server. Afterwards a valid client is served, the part of the device that no session addresses is
//! unchanged, and no thread or slot is left over. A failure prints the seed; `PMBD_FUZZ_SEED` replays it.

use crate::nbd_common::{Client, MIB, Server, engine, info_request, meta_request, pattern};
use fastrand::Rng;
use pmbd::NbdOptions;
use pmbd::nbd::protocol::{self, Request, option};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SESSIONS: u64 = 10_000;
/// Valid requests stay below; a mutated write to elsewhere is confined.
const PLAYGROUND_BYTES: u64 = MIB;
const DEVICE_BYTES: u64 = 4 * MIB;
static PANICS: AtomicU64 = AtomicU64::new(0);
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn malformed_sessions_do_no_harm() {
    let seed = std::env::var("PMBD_FUZZ_SEED").map_or(0x9e37_79b9, |s| s.parse().expect("a number"));
    println!("PMBD_FUZZ_SEED={seed}");
    // A panic ends only the thread of its connection, so it is counted.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, SeqCst);
        report(panic);
    }));
    let options = NbdOptions {
        handshake_timeout: Duration::from_millis(500),
        spin: Duration::ZERO,
        max_clients: 16,
        ..NbdOptions::default()
    };
    let mut server = Server::start(engine(DEVICE_BYTES), options);
    let mut valid = Client::ready(&server.path(), true);
    let untouched = pattern(seed, usize::try_from(DEVICE_BYTES - PLAYGROUND_BYTES).unwrap());
    valid.write(PLAYGROUND_BYTES, &untouched).unwrap();

    let start = Instant::now();
    let mut random = Rng::with_seed(seed);
    for session in 0..SESSIONS {
        assert!(start.elapsed() < LIMIT, "session {session} of seed {seed}: out of time");
        hold_session(&server.path(), &mut random, session % 4);
        if session % 500 == 0 {
            assert_eq!(valid.write(0, &[1; 512]), Ok(vec![]), "session {session} of seed {seed}");
        }
    }
    // The sessions that reached transmission: one half of them, the valid client, and malformed handshakes that happen to be legal.
    let counts = server.await_counts(|c| c.clients == 1 && c.clients_total > SESSIONS / 2);
    assert!(counts.requests > SESSIONS / 4, "the sessions sent requests: {counts:?}");
    assert!(counts.errors > SESSIONS / 10, "some of them illegal: {counts:?}");
    let len = u32::try_from(untouched.len()).unwrap();
    let mut other = Client::ready(&server.path(), false);
    assert!(other.read(PLAYGROUND_BYTES, len) == Ok(untouched), "seed {seed}: the device was changed");
    other.write(0, &[2; 4096]).unwrap();
    assert_eq!(valid.read(0, 4096), Ok(vec![2; 4096]));
    server.stop().unwrap();
    assert_eq!(PANICS.load(SeqCst), 0, "seed {seed}: a thread of the server panicked");
}

/// Kinds 0 and 1 send a malformed handshake, 2 and 3 a malformed transmission.
fn hold_session(path: &Path, random: &mut Rng, kind: u64) {
    let mut stream =
        if kind < 2 { Client::connect(path) } else { Client::ready(path, random.u8(..2) == 0).stream };
    let mut bytes = match kind {
        0 => random_bytes(random, 64),
        1 => handshake(random),
        2 => random_bytes(random, 256),
        _ => some_requests(random),
    };
    if kind % 2 == 1 && random.u8(..4) != 0 {
        mutate(&mut bytes, random);
    }
    if kind >= 2 {
        confine(&mut bytes);
    }
    if random.u8(..3) == 0 {
        bytes.truncate(random.usize(..=bytes.len()));
    }
    // The server may close the connection at any byte.
    if let Err(error) = stream.write_all(&bytes) {
        assert!(is_disconnect(error.kind()), "{error}");
        return;
    }
    match random.u8(..4) {
        // Disconnects, with replies unread.
        0 => {}
        // Closes its sending direction, and reads to the end.
        1 | 2 => {
            if let Err(error) = stream.shutdown(Shutdown::Write) {
                assert!(is_disconnect(error.kind()), "{error}");
            }
            if kind < 2 || random.u8(..2) == 0 {
                read_to_end(&mut stream);
            }
        }
        // Reads a little if there are replies, then disconnects.
        _ => {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            if let Err(error) = stream.read(&mut [0; 18]) {
                assert!(is_disconnect(error.kind()) || error.kind() == ErrorKind::WouldBlock, "{error}");
            }
        }
    }
}

fn is_disconnect(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected)
}

fn read_to_end(stream: &mut UnixStream) {
    let mut sink = [0; 65536];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                assert!(is_disconnect(error.kind()), "the server neither continues nor disconnects: {error}");
                return;
            }
        }
    }
}

fn random_bytes(random: &mut Rng, max: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.usize(..max)];
    random.fill(&mut bytes);
    bytes
}

fn put_option(bytes: &mut Vec<u8>, option: u32, data: &[u8]) {
    bytes.extend_from_slice(&protocol::OPTION_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(data);
}

/// Client flags and a few valid options.
fn handshake(random: &mut Rng) -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    for _ in 0..=random.u8(..4) {
        match random.u8(..8) {
            0 => put_option(&mut bytes, option::LIST, b""),
            1 => put_option(&mut bytes, option::STRUCTURED_REPLY, b""),
            2 => put_option(&mut bytes, option::INFO, &info_request("", &[1, 2, 3])),
            3 => put_option(&mut bytes, option::SET_META_CONTEXT, &meta_request("", &["base:allocation"])),
            4 => put_option(&mut bytes, option::LIST_META_CONTEXT, &meta_request("no", &[])),
            5 => put_option(&mut bytes, option::GO, &info_request("nobody", &[])),
            6 => put_option(&mut bytes, option::ABORT, b""),
            _ => put_option(&mut bytes, option::EXPORT_NAME, b"nobody"),
        }
    }
    bytes
}

/// A few requests, valid except for plausible mistakes.
fn some_requests(random: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=random.u8(..6) {
        let len_bytes = 512 * random.u32(..16);
        let offset = 512 * random.u64(..(PLAYGROUND_BYTES - 8192) / 512);
        let command = [0, 0, 1, 1, 2, 3, 4, 6, 7, 99][random.usize(..10)];
        let request = Request {
            flags: [0, 0, 0, 1, 2, 4, 16, 32, 0x8000][random.usize(..9)],
            command,
            cookie: random.u64(..),
            offset_bytes: if random.u8(..8) == 0 { offset + 1 } else { offset },
            len_bytes,
        };
        bytes.extend_from_slice(&request.encode());
        bytes.resize(bytes.len() + request.payload_bytes() as usize, 0xa5);
    }
    bytes
}

/// One to three faults: a byte changed, a bit flipped, a stretch doubled, left out, or overwritten by an extreme.
fn mutate(bytes: &mut Vec<u8>, random: &mut Rng) {
    for _ in 0..=random.u8(..3) {
        if bytes.is_empty() {
            return;
        }
        // More often in the first messages, whose heads matter most.
        let within = if random.u8(..2) == 0 { bytes.len().min(64) } else { bytes.len() };
        let at = random.usize(..within);
        let end = bytes.len().min(at + 1 + random.usize(..12));
        match random.u8(..5) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] ^= 1 << random.u8(..8),
            2 => {
                let doubled = bytes[at..end].to_vec();
                bytes.splice(at..at, doubled);
            }
            3 => drop(bytes.drain(at..end)),
            _ => bytes[at..end].fill([0x00, 0x7f, 0x80, 0xff][random.usize(..4)]),
        }
    }
}

/// Redirects every legal change of the device beyond the playground into it: this test is about illegal requests. Decodes the bytes as a
/// server does, and stops where a server disconnects.
fn confine(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + protocol::REQUEST_BYTES) {
        let Some(mut request) = Request::decode(head.try_into().unwrap()) else { return };
        if request.command != protocol::command::READ {
            let legal_end = request.offset_bytes.checked_add(request.len_bytes.into());
            if legal_end.is_some_and(|end| end > PLAYGROUND_BYTES && end <= DEVICE_BYTES) {
                request.offset_bytes = 0;
                request.len_bytes = request.len_bytes.min(65536);
                bytes[at..at + protocol::REQUEST_BYTES].copy_from_slice(&request.encode());
            }
        }
        at += protocol::REQUEST_BYTES + request.payload_bytes() as usize;
    }
}
