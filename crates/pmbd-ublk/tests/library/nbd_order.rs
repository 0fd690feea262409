//! No older copy of a request runs after a newer one that was acknowledged, over whichever connections they arrived.

use crate::nbd_common::watched::{Watched, WatchedMemory};
use crate::nbd_common::{Client, MIB, PATIENCE, Server, engine_over, info_request};
use pm_core::Domain;
use pmbd::nbd::protocol::{
    CLIENT_FIXED_NEWSTYLE, CLIENT_NO_ZEROES, OPTION_MAGIC, Request, command, command_flag, option,
};
use pmbd::{Engine, NbdOptions, NbdServer};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Long enough for the server to run received requests, if it did.
const MOMENT: Duration = Duration::from_millis(100);
/// The server's grace for clients that do not read.
const GRACE: Duration = Duration::from_millis(200);
/// The offset that both copies of a request and the newer request write to.
const AT: u64 = 4096;
const OLD: [u8; 512] = [1; 512];
const NEW: [u8; 512] = [2; 512];

/// A connection of either kind.
trait Socket: Read + Write + Sized {
    fn connect(server: &Server) -> Client<Self>;
    fn shutdown(&self, how: Shutdown);
}

impl Socket for UnixStream {
    fn connect(server: &Server) -> Client<Self> {
        Client::ready(&server.path(), false)
    }
    fn shutdown(&self, how: Shutdown) {
        self.shutdown(how).unwrap();
    }
}

impl Socket for TcpStream {
    fn connect(server: &Server) -> Client<Self> {
        let stream = Self::connect(server.tcp.unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client::over(stream, CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES);
        client.go(false);
        client
    }
    fn shutdown(&self, how: Shutdown) {
        self.shutdown(how).unwrap();
    }
}

/// A write-back device over memory whose fences can be delayed.
fn device() -> (Arc<Watched>, Arc<Engine<WatchedMemory>>) {
    let (watched, memory) = Watched::memory(Domain::Page, 4 * MIB);
    (watched, Arc::new(engine_over(memory)))
}

/// Such a device, served on a socket and over TCP.
fn served() -> (Arc<Watched>, Server) {
    let (memory, engine) = device();
    let options = NbdOptions { shutdown_grace: GRACE, ..NbdOptions::default() };
    (memory, Server::start_shared(engine, options, true))
}

#[track_caller]
fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "the request does not run");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a request whose fence is delayed.
#[track_caller]
fn send_delayed<S: Socket>(client: &mut Client<S>, memory: &Watched) -> u64 {
    let fences = memory.fences();
    let cookie = client.send(command::WRITE, command_flag::FUA, 0, 512, &[9; 512]);
    wait_until(|| memory.fences() > fences);
    cookie
}

/// Sends a request whose fence is delayed, and the first copy of the write, in one piece: the server receives them together, and finds out
/// only after both that it cannot reply. The requests between them take a while.
#[track_caller]
fn send_first_copy<S: Socket>(client: &mut Client<S>, memory: &Watched) {
    let request = |command, flags, offset_bytes, len_bytes| {
        Request { flags, command, cookie: 7, offset_bytes, len_bytes }.encode()
    };
    let mut all = request(command::WRITE, command_flag::FUA, 0, 512).to_vec();
    all.extend([9; 512]);
    for _ in 0..16 {
        all.extend(request(command::WRITE_ZEROES, 0, 2 * MIB, 2 << 20));
    }
    all.extend(request(command::WRITE, 0, AT, 512));
    all.extend(OLD);
    let fences = memory.fences();
    client.stream.write_all(&all).unwrap();
    wait_until(|| memory.fences() > fences);
}

fn send_write<S: Socket>(client: &mut Client<S>, data: &[u8; 512]) -> u64 {
    client.send(command::WRITE, 0, AT, 512, data)
}

#[track_caller]
fn assert_newer_is_there(server: &Server) {
    let mut client = <UnixStream as Socket>::connect(server);
    assert!(client.read(AT, 512) == Ok(NEW.to_vec()), "the first copy of the write ran last");
}

/// How a client closes a connection.
type Close<S> = fn(Client<S>);

/// A client writes, closes the connection before the reply, and sends the write again, over a new connection or over another one that it
/// has. Then it writes newer data. If these are its last requests, it disconnects and closes the sending direction, as libnbd does.
fn resend<S: Socket>(close: Close<S>, has_another: bool, is_last: bool) {
    let (memory, server) = served();
    let mut another = has_another.then(|| S::connect(&server));
    let mut client = S::connect(&server);
    let closed = memory.gate.lock().unwrap();
    send_first_copy(&mut client, &memory);
    close(client);
    let mut client = another.take().unwrap_or_else(|| S::connect(&server));
    let again = send_write(&mut client, &OLD);
    let newer = send_write(&mut client, &NEW);
    if is_last {
        client.send(command::DISC, 0, 0, 0, b"");
        client.stream.shutdown(Shutdown::Write);
    }
    std::thread::sleep(MOMENT);
    drop(closed);
    client.assert_done([again, newer]);
    server.await_counts(|counts| counts.clients == u64::from(!is_last));
    assert_newer_is_there(&server);
}

#[test]
fn first_copy_of_closed_connection_never_runs_last() {
    for has_another in [false, true] {
        resend::<UnixStream>(drop, has_another, false);
        resend::<TcpStream>(drop, has_another, false);
        resend::<UnixStream>(|client| client.stream.shutdown(Shutdown::Both).unwrap(), has_another, false);
    }
}

#[test]
fn first_copy_never_runs_last_if_both_connections_are_closed() {
    for has_another in [false, true] {
        resend::<UnixStream>(drop, has_another, true);
    }
    resend::<TcpStream>(drop, false, true);
}

/// Both connections are closed before the server queries either, so only the order of closing decides which runs first.
#[test]
fn connections_run_in_order_of_closing() {
    for first_is_older in [false, true] {
        let (memory, server) = served();
        let mut clients = [(); 2].map(|()| <UnixStream as Socket>::connect(&server));
        if !first_is_older {
            clients.reverse();
        }
        let [mut first, mut second] = clients;
        let closed = memory.gate.lock().unwrap();
        send_first_copy(&mut first, &memory);
        let delayed = send_delayed(&mut second, &memory);
        drop(first);
        let again = send_write(&mut second, &OLD);
        let newer = send_write(&mut second, &NEW);
        second.stream.shutdown(Shutdown::Write).unwrap();
        drop(closed);
        second.assert_done([delayed, again, newer]);
        server.await_counts(|counts| counts.clients == 0);
        assert_newer_is_there(&server);
    }
}

/// Connections that are closed for sending, and have requests, do not wait for each other in a cycle.
#[test]
fn half_closed_connections_are_all_answered() {
    let (memory, server) = served();
    let mut clients = [(); 4].map(|()| <UnixStream as Socket>::connect(&server));
    let closed = memory.gate.lock().unwrap();
    let delayed = clients.each_mut().map(|client| send_delayed(client, &memory));
    let waiting = clients.each_mut().map(|client| {
        let waiting = send_write(client, &NEW);
        client.stream.shutdown(Shutdown::Write).unwrap();
        waiting
    });
    drop(closed);
    for ((client, delayed), waiting) in clients.iter_mut().zip(delayed).zip(waiting) {
        client.assert_done([delayed, waiting]);
        assert!(client.is_closed());
    }
}

/// Over TCP, the end of the connection waits in the client's send buffer, after a write to a slow medium.
#[test]
fn first_copy_received_with_end_of_tcp_connection_never_runs_last() {
    let (memory, server) = served();
    let mut first = <TcpStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    memory.delays_store.store(true, SeqCst);
    // Longer than the sockets' buffers.
    let long = vec![3; 2 << 20];
    first.send(command::WRITE, 0, 65536, 2 << 20, &long);
    send_write(&mut first, &OLD);
    wait_until(|| !memory.delays_store.load(SeqCst));
    drop(first);
    let mut second = <TcpStream as Socket>::connect(&server);
    let long = second.send(command::WRITE, 0, 65536, 2 << 20, &long);
    let again = send_write(&mut second, &OLD);
    let newer = send_write(&mut second, &NEW);
    second.assert_done([long, again, newer]);
    drop(closed);
    server.await_counts(|counts| counts.clients == 1);
    assert_newer_is_there(&server);
}

/// The server ends while a connection waits for a closed one.
#[test]
fn first_copy_never_runs_last_while_server_ends() {
    let (memory, mut server) = served();
    let mut first = <UnixStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    send_first_copy(&mut first, &memory);
    drop(first);
    let mut second = <UnixStream as Socket>::connect(&server);
    second.stream.set_read_timeout(Some(2 * GRACE)).unwrap();
    send_write(&mut second, &OLD);
    send_write(&mut second, &NEW);
    std::thread::scope(|threads| {
        let stop = threads.spawn(|| server.stop().unwrap());
        let replied = second.stream.read(&mut [0]);
        drop(closed);
        stop.join().unwrap();
        // There is no reply, or the connection is cut.
        assert!(!matches!(replied, Ok(1)), "a reply, while the first copy has not run: {replied:?}");
    });
}

/// The server begins to end; then a client closes a TCP connection whose data have all arrived, and sends again over another, from which
/// the server does not receive until the first copy may run.
#[test]
fn first_copy_over_tcp_never_runs_last_while_server_ends() {
    let (memory, mut server) = served();
    let mut first = <TcpStream as Socket>::connect(&server);
    let mut second = <TcpStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    send_first_copy(&mut first, &memory);
    let delayed = send_delayed(&mut second, &memory);
    std::thread::scope(|threads| {
        let stop = threads.spawn(|| server.stop().unwrap());
        std::thread::sleep(GRACE / 4);
        drop(first);
        send_write(&mut second, &OLD);
        send_write(&mut second, &NEW);
        std::thread::sleep(GRACE / 10);
        drop(closed);
        assert_eq!(second.receive(delayed, 0, 0), Ok(vec![]), "it was received before");
        assert!(second.is_closed(), "requests that arrived too late are answered");
        stop.join().unwrap();
    });
}

/// The connection that does not read is first in the order, as its client may have closed it.
#[test]
fn unread_connection_does_not_block_replies_while_server_ends() {
    let (memory, mut server) = served();
    let mut first = <UnixStream as Socket>::connect(&server);
    let mut second = <UnixStream as Socket>::connect(&server);
    for _ in 0..16 {
        first.send(command::READ, 0, 0, 1 << 20, b"");
    }
    let closed = memory.gate.lock().unwrap();
    let delayed = send_delayed(&mut second, &memory);
    let waiting = send_write(&mut second, &NEW);
    std::thread::scope(|threads| {
        let stop = threads.spawn(|| server.stop().unwrap());
        std::thread::sleep(GRACE / 4);
        drop(closed);
        second.assert_done([delayed, waiting]);
        stop.join().unwrap();
    });
}

/// A client closes a connection for sending after its first write, and before the server's runtime has completed the handshake.
#[test]
fn first_copy_of_connection_closed_in_handshake_never_runs_last() {
    let (_memory, engine) = device();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = NbdServer::bind_unix(&path, engine, NbdOptions::default()).unwrap();
    let runtime_may_go_on = Arc::new(Mutex::new(()));
    let ((hold_up, held_up), (stop, stopped)) = (oneshot::channel::<()>(), oneshot::channel::<()>());
    let gate = Arc::clone(&runtime_may_go_on);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let ended = async move {
                held_up.await.unwrap();
                drop(gate.lock().unwrap());
                stopped.await.unwrap();
            };
            runtime.block_on(server.run(ended)).unwrap();
        });
        let mut second = Client::ready(&path, false);
        let mut first = Client::in_handshake(&path);
        first.option(option::LIST, b"");
        let held_up = runtime_may_go_on.lock().unwrap();
        hold_up.send(()).unwrap();
        std::thread::sleep(MOMENT);
        first.send_option(option::GO, &info_request("", &[]));
        send_write(&mut first, &OLD);
        first.stream.shutdown(Shutdown::Write).unwrap();
        let again = send_write(&mut second, &OLD);
        let newer = send_write(&mut second, &NEW);
        std::thread::sleep(MOMENT);
        drop(held_up);
        second.assert_done([again, newer]);
        std::thread::sleep(MOMENT);
        assert!(second.read(AT, 512) == Ok(NEW.to_vec()), "the first copy of the write ran last");
        stop.send(()).unwrap();
    });
}

/// A client with unread replies that has closed its sending direction.
fn unread_and_closed(server: &Server, reads: u32) -> Client {
    let mut client = <UnixStream as Socket>::connect(server);
    for _ in 0..reads {
        client.send(command::READ, 0, 0, 1 << 20, b"");
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    client
}

/// A client that has closed its sending direction may still read, so its requests run; but it does not read.
#[test]
fn unread_closed_connection_is_cut() {
    let (_memory, server) = served();
    let client = unread_and_closed(&server, 16);
    let mut other = <UnixStream as Socket>::connect(&server);
    other.write(0, &[1; 512]).unwrap();
    assert_eq!(server.await_counts(|counts| counts.clients == 1).clients_total, 2);
    drop(client);
}

/// Other clients that connect and disconnect meanwhile do not prolong the wait.
#[test]
fn new_clients_do_not_prolong_wait_for_unread_connection() {
    let (_memory, server) = served();
    let client = unread_and_closed(&server, 16);
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let start = Instant::now();
            while !is_answered.load(SeqCst) && start.elapsed() < PATIENCE {
                drop(<UnixStream as Socket>::connect(&server));
                std::thread::sleep(GRACE / 4);
            }
        });
        let mut other = <UnixStream as Socket>::connect(&server);
        let start = Instant::now();
        other.write(0, &[1; 512]).unwrap();
        is_answered.store(true, SeqCst);
        assert!(start.elapsed() < 4 * GRACE, "after {:?}", start.elapsed());
    });
    drop(client);
}

/// Its requests take longer than the grace, but it reads: its reply is sent.
#[test]
fn closed_connection_with_slow_requests_gets_reply() {
    let (memory, server) = served();
    let mut client = <UnixStream as Socket>::connect(&server);
    let mut other = <UnixStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    send_delayed(&mut client, &memory);
    client.stream.shutdown(Shutdown::Write).unwrap();
    other.send(command::WRITE, 0, 0, 512, &NEW);
    std::thread::sleep(2 * GRACE);
    drop(closed);
    let mut reply = [0; 16];
    client.stream.read_exact(&mut reply).unwrap();
    other.stream.read_exact(&mut reply).unwrap();
}

/// The same while the server ends: a request that waits for the medium is not cut before the grace is over.
#[test]
fn closed_connection_with_slow_requests_gets_reply_while_server_ends() {
    const GRACE: Duration = Duration::from_secs(2);
    let (memory, engine) = device();
    let options = NbdOptions { shutdown_grace: GRACE, ..NbdOptions::default() };
    let mut server = Server::start_shared(engine, options, true);
    let mut client = <UnixStream as Socket>::connect(&server);
    let mut other = <UnixStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    send_delayed(&mut client, &memory);
    client.stream.shutdown(Shutdown::Write).unwrap();
    send_write(&mut other, &NEW);
    std::thread::scope(|threads| {
        let stop = threads.spawn(|| server.stop().unwrap());
        std::thread::sleep(GRACE * 5 / 8);
        drop(closed);
        client.stream.read_exact(&mut [0; 16]).unwrap();
        stop.join().unwrap();
    });
}

/// A client that does not read the server's half of the handshake.
#[test]
fn unread_handshake_is_cut() {
    let (_memory, server) = served();
    let mut client = Client::in_handshake(&server.path());
    client.stream.set_nonblocking(true).unwrap();
    // Until the server blocks in sending its replies, and no longer reads.
    let list = [&OPTION_MAGIC.to_be_bytes()[..], &option::LIST.to_be_bytes(), &[0; 4]].concat();
    let start = Instant::now();
    let mut stuck_since = Instant::now();
    while stuck_since.elapsed() < MOMENT {
        assert!(start.elapsed() < PATIENCE, "the server does not block");
        match client.stream.write(&list) {
            Ok(len) => {
                assert_eq!(len, list.len());
                stuck_since = Instant::now();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut other = <UnixStream as Socket>::connect(&server);
    let start = Instant::now();
    other.write(0, &[1; 512]).unwrap();
    assert!(start.elapsed() < 20 * GRACE, "after {:?}", start.elapsed());
    drop(client);
}

/// A client that has closed its sending direction and reads slowly.
#[test]
fn slowly_read_closed_connection_is_cut() {
    let (_memory, server) = served();
    let mut client = unread_and_closed(&server, 64);
    let mut other = <UnixStream as Socket>::connect(&server);
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // At most two reads for each of the server's sends.
            let mut replies = vec![0; 128 << 10];
            let start = Instant::now();
            while !is_answered.load(SeqCst) && start.elapsed() < PATIENCE {
                if client.stream.read_exact(&mut replies).is_err() {
                    return;
                }
                std::thread::sleep(GRACE / 4);
            }
        });
        let start = Instant::now();
        let answered = other.write(0, &[1; 512]);
        is_answered.store(true, SeqCst);
        answered.unwrap();
        assert!(start.elapsed() < 20 * GRACE, "after {:?}", start.elapsed());
    });
}
