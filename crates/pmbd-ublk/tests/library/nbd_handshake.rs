//! The handshake: every option, every refusal, and the listening sockets.

use crate::nbd_common::{Client, MIB, PATIENCE, Server, engine, info_request, meta_request};
use pmbd::nbd::protocol::{self, flag, info, option, option_reply};
use pmbd::{NbdError, NbdOptions, NbdServer};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WRITABLE: u16 = flag::HAS_FLAGS
    | flag::SEND_FLUSH
    | flag::SEND_FUA
    | flag::SEND_TRIM
    | flag::SEND_WRITE_ZEROES
    | flag::SEND_FAST_ZERO
    | flag::CAN_MULTI_CONN;

fn named() -> NbdOptions {
    NbdOptions { export_name: "pm0".into(), description: "a test".into(), ..NbdOptions::default() }
}

fn export_info(flags: u16) -> (u32, Vec<u8>) {
    (option_reply::INFO, [&[0, 0][..], &MIB.to_be_bytes(), &flags.to_be_bytes()].concat())
}

/// A server, and a client in its handshake.
fn in_handshake() -> (Server, Client) {
    let server = Server::start(engine(MIB), named());
    let client = Client::in_handshake(&server.path());
    (server, client)
}

#[test]
fn export_name_answers_with_and_without_padding() {
    let server = Server::start(engine(MIB), named());
    for (flags, padding) in [(3, 0), (1, 124), (0, 124)] {
        for name in ["", "pm0"] {
            let mut client = Client::over(UnixStream::connect(server.path()).unwrap(), flags);
            client.send_option(option::EXPORT_NAME, name.as_bytes());
            assert_eq!(client.u64(), MIB);
            assert_eq!(client.u16(), WRITABLE);
            assert_eq!(client.bytes(padding), vec![0; padding]);
            assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
        }
    }
}

#[test]
fn unknown_export_name_closes_connection() {
    let (_server, mut client) = in_handshake();
    client.send_option(option::EXPORT_NAME, b"pm1");
    assert!(client.is_closed());
}

#[test]
fn abort_is_acknowledged_and_closes_connection() {
    let (_server, mut client) = in_handshake();
    assert_eq!(client.option(option::ABORT, b""), [(option_reply::ACK, vec![])]);
    assert!(client.is_closed());
}

#[test]
fn list_describes_export() {
    let (_server, mut client) = in_handshake();
    let entry = b"\0\0\0\x03pm0a test".to_vec();
    assert_eq!(
        client.option(option::LIST, b""),
        [(option_reply::SERVER, entry), (option_reply::ACK, vec![])]
    );
    assert_eq!(client.option(option::LIST, b"x")[0].0, option_reply::ERR_INVALID);
}

#[test]
fn info_returns_requested_kinds() {
    let (_server, mut client) = in_handshake();
    let nothing_special = client.option(option::INFO, &info_request("", &[]));
    assert_eq!(nothing_special, [export_info(WRITABLE), (option_reply::ACK, vec![])]);
    let kinds = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, info::EXPORT, 77];
    let all = client.option(option::INFO, &info_request("pm0", &kinds));
    let sizes = [1_u32, 4096, 64 << 20].map(u32::to_be_bytes).concat();
    let reply = |data: Vec<u8>| (option_reply::INFO, data);
    let expected = [
        export_info(WRITABLE),
        reply(b"\0\x01pm0".to_vec()),
        reply(b"\0\x02a test".to_vec()),
        reply([&[0, 3][..], &sizes].concat()),
        (option_reply::ACK, vec![]),
    ];
    assert_eq!(all, expected);
}

#[test]
fn go_succeeds_after_failures() {
    let (_server, mut client) = in_handshake();
    assert_eq!(client.option(option::GO, &info_request("pm1", &[]))[0].0, option_reply::ERR_UNKNOWN);
    for broken in [
        &b""[..],
        b"\0\0",
        b"\0\0\0\0",
        b"\0\0\0\x09pm0\0\0",
        b"\xff\xff\xff\xffpm0\0\0",
        b"\0\0\0\x03pm0\0\x01",
        b"\0\0\0\x03pm0\0\0\0\0",
    ] {
        let replies = client.option(option::GO, broken);
        assert_eq!(replies[0].0, option_reply::ERR_INVALID, "{broken:?}");
    }
    client.go(false);
    assert_eq!(client.read(512, 512), Ok(vec![0; 512]));
}

#[test]
fn structured_replies_add_do_not_fragment_flag() {
    let (_server, mut client) = in_handshake();
    assert_eq!(client.option(option::STRUCTURED_REPLY, b"x")[0].0, option_reply::ERR_INVALID);
    assert_eq!(client.option(option::INFO, &info_request("", &[]))[0], export_info(WRITABLE));
    assert_eq!(client.option(option::STRUCTURED_REPLY, b""), [(option_reply::ACK, vec![])]);
    let with_df = export_info(WRITABLE | flag::SEND_DF);
    assert_eq!(client.option(option::GO, &info_request("", &[]))[0], with_df);
}

#[test]
fn read_only_export_offers_no_changes() {
    let server = Server::start(engine(MIB).read_only(), named());
    let mut client = Client::in_handshake(&server.path());
    let flags = flag::HAS_FLAGS | flag::READ_ONLY | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
    assert_eq!(client.option(option::INFO, &info_request("", &[]))[0], export_info(flags));
}

#[test]
fn meta_contexts_are_empty() {
    let (_server, mut client) = in_handshake();
    for meta in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        client.structured = false;
        let request = meta_request("", &["base:allocation"]);
        if meta == option::LIST_META_CONTEXT {
            let before = client.option(meta, &request);
            assert_eq!(before[0].0, option_reply::ERR_INVALID, "replies are not structured yet");
            client.option(option::STRUCTURED_REPLY, b"");
        }
        assert_eq!(client.option(meta, &request), [(option_reply::ACK, vec![])]);
        assert_eq!(client.option(meta, &meta_request("pm0", &[])), [(option_reply::ACK, vec![])]);
        assert_eq!(client.option(meta, &meta_request("pm1", &[]))[0].0, option_reply::ERR_UNKNOWN);
        for broken in [&request[..request.len() - 1], &[request.clone(), vec![0]].concat(), b""] {
            assert_eq!(client.option(meta, broken)[0].0, option_reply::ERR_INVALID);
        }
    }
}

#[test]
fn unknown_and_oversize_options_do_not_end_session() {
    let (_server, mut client) = in_handshake();
    for unknown in [0, 4, 5, 11, 0xffff_ffff] {
        assert_eq!(client.option(unknown, b"data")[0].0, option_reply::ERR_UNSUP);
    }
    assert_eq!(client.option(option::GO, &[0; 8193])[0].0, option_reply::ERR_TOO_BIG);
    assert_eq!(client.option(99, &vec![7; 1 << 20])[0].0, option_reply::ERR_TOO_BIG);
    client.go(true);
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn unanswerable_messages_close_connection() {
    let server = Server::start(engine(MIB), named());
    let client = || Client::in_handshake(&server.path());

    let mut endless = client();
    let head = [&protocol::OPTION_MAGIC.to_be_bytes()[..], &[0, 0, 0, 7], &[0xff; 4]].concat();
    endless.stream.write_all(&head).unwrap();
    assert!(endless.is_closed());

    let mut no_magic = client();
    no_magic.stream.write_all(&[0x55; 16]).unwrap();
    assert!(no_magic.is_closed());

    let stream = UnixStream::connect(server.path()).unwrap();
    assert!(Client::over(stream, 0xff).is_closed(), "unknown client flags");

    let stream = UnixStream::connect(server.path()).unwrap();
    let mut not_fixed = Client::over(stream, 0);
    not_fixed.send_option(option::LIST, b"");
    assert!(not_fixed.is_closed(), "only EXPORT_NAME without the fixed newstyle");
}

#[test]
fn incomplete_handshake_times_out() {
    let options = NbdOptions { handshake_timeout: Duration::from_millis(100), ..named() };
    let server = Server::start(engine(MIB), options);
    let mut client = Client::in_handshake(&server.path());
    client.stream.write_all(&protocol::OPTION_MAGIC.to_be_bytes()[..5]).unwrap();
    assert!(client.is_closed());
    // Transmission has no deadline.
    let mut patient = Client::ready(&server.path(), true);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(patient.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn client_beyond_limit_is_refused_until_another_disconnects() {
    let server = Server::start(engine(MIB), NbdOptions { max_clients: 2, ..named() });
    let first = Client::ready(&server.path(), true);
    let mut shaking_hands = Client::in_handshake(&server.path());
    let mut refused = UnixStream::connect(server.path()).unwrap();
    refused.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(refused.read(&mut [0; 1]).unwrap(), 0, "closed without a greeting");
    assert_eq!(server.await_counts(|c| c.clients_refused == 1).clients, 1);
    drop(first);
    server.await_counts(|c| c.clients == 0);
    shaking_hands.go(false);
    // The slot is released a moment after the counter changes.
    let start = Instant::now();
    loop {
        let mut next = UnixStream::connect(server.path()).unwrap();
        if next.read(&mut [0; 1]).unwrap() == 1 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the slot is not released");
    }
}

#[test]
fn socket_of_dead_server_only_is_replaced() {
    let mut server = Server::start(engine(MIB), named());
    let path = server.path();
    let bind = || NbdServer::bind_unix(&path, Arc::new(engine(MIB)), named());
    assert!(matches!(bind(), Err(NbdError::SocketInUse { .. })));
    assert_eq!(Client::ready(&path, true).read(0, 512), Ok(vec![0; 512]));
    server.stop().unwrap();
    assert!(!path.exists(), "removed at the end");

    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the socket of a dead server");
    let taken_over = bind().unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    drop(taken_over);
    assert!(!path.exists());

    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(), Err(NbdError::NotASocket { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn foreign_socket_is_not_removed() {
    let mut server = Server::start(engine(MIB), named());
    let path = server.path();
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    server.stop().unwrap();
    assert!(path.exists());
    drop(other);
}

#[test]
fn invalid_sockets_and_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bind = |path: &std::path::Path, options| NbdServer::bind_unix(path, Arc::new(engine(MIB)), options);
    assert!(matches!(bind(&dir.path().join("no/s"), named()), Err(NbdError::BindUnix { .. })));
    assert!(matches!(bind(&dir.path().join("x".repeat(120)), named()), Err(NbdError::BindUnix { .. })));
    assert!(matches!(bind(dir.path(), named()), Err(NbdError::NotASocket { .. })));
    let path = dir.path().join("s");
    let no_clients = NbdOptions { max_clients: 0, ..named() };
    assert!(matches!(bind(&path, no_clients), Err(NbdError::NoClients)));
    let long = NbdOptions { export_name: "x".repeat(4097), ..named() };
    assert!(matches!(bind(&path, long), Err(NbdError::TextTooLong { what: "name", len_bytes: 4097 })));
    assert!(!path.exists());
    let mut server = bind(&path, named()).unwrap();
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    assert!(matches!(server.bind_tcp(everywhere), Err(NbdError::NotLoopback { .. })));
    let bound = server.bind_tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    assert!(matches!(server.bind_tcp(bound), Err(NbdError::BindTcp { .. })), "the port is taken");
}

#[test]
fn tcp_and_socket_serve_same_device() {
    let server = Server::start_shared(Arc::new(engine(MIB)), named(), true);
    let stream = TcpStream::connect(server.tcp.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut remote = Client::over(stream, 3);
    remote.go(true);
    assert_eq!(remote.write(4096, &[9; 1024]), Ok(vec![]));
    let mut local = Client::ready(&server.path(), false);
    assert_eq!(local.read(4096, 1024), Ok(vec![9; 1024]));
}

/// Every user of the machine may connect over TCP: the socket is for the disk's user.
#[test]
fn tcp_clients_do_not_lock_out_the_socket() {
    let options = NbdOptions { max_clients: 4, ..named() };
    let server = Server::start_shared(Arc::new(engine(MIB)), options, true);
    let connect = || {
        let stream = std::net::TcpStream::connect(server.tcp.unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut idle: Vec<_> = (0..3).map(|_| connect()).collect();
    for stream in &mut idle {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 1, "greeted");
    }
    assert_eq!(connect().read(&mut [0; 1]).unwrap_or(0), 0, "closed without a greeting");
    server.await_counts(|counts| counts.clients_refused == 1);
    let mut client = Client::ready(&server.path(), true);
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
}
