//! That no older copy of a request runs after a newer one that was acknowledged, whichever connections they came over.
#![allow(clippy::unwrap_used, reason = "helpers of tests; what goes wrong in them fails the test")]

mod nbd_common;

use nbd_common::watched::Watched;
use nbd_common::{Client, MIB, PATIENCE, Server, info_request};
use pm_core::Domain;
use pmbd::nbd::protocol::{
    CLIENT_FIXED_NEWSTYLE, CLIENT_NO_ZEROES, OPTION_MAGIC, Request, command, command_flag, option,
};
use pmbd::{Engine, Geometry, NbdOptions, NbdServer, SectorSize};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Enough for the server to run what it has received, if it would.
const MOMENT: Duration = Duration::from_millis(100);
/// How long a server waits for clients, before it cuts them.
const GRACE: Duration = Duration::from_millis(200);
/// What both copies of a request write to, and the newer request.
const AT: u64 = 4096;
const OLD: [u8; 512] = [1; 512];
const NEW: [u8; 512] = [2; 512];

/// A connection of either kind, with the calls that both have and no trait offers.
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

/// A write-back device over memory whose fences can be held up.
fn device() -> (Arc<Watched>, Arc<Engine<Arc<Watched>>>) {
    let len_bytes = 4 * MIB;
    let memory = Arc::new(Watched::new(Domain::Page, len_bytes));
    let geometry = Geometry::new(0, len_bytes, SectorSize::B512).unwrap();
    let engine = Engine::new(Arc::clone(&memory), geometry).unwrap();
    (memory, Arc::new(engine))
}

/// Such a device, served on a socket and over TCP.
fn held_up() -> (Arc<Watched>, Server) {
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

/// Sends a request whose fence is held up.
#[track_caller]
fn send_held_up<S: Socket>(client: &mut Client<S>, memory: &Watched) -> u64 {
    let fences = memory.fences();
    let cookie = client.send(command::WRITE, command_flag::FUA, 0, 512, &[9; 512]);
    wait_until(|| memory.fences() > fences);
    cookie
}

/// Sends a request whose fence is held up, and the first copy of the write, in one piece: the server receives them together, and
/// learns only after both that it cannot reply. What lies between takes a while.
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

/// How a client gives a connection up.
type HangUp<S> = fn(Client<S>);

/// A client writes, hangs up before the reply, and sends the write again, over a new connection or another one that it had
/// all along. When that is acknowledged, it writes something newer. Then it may have no more to send: it disconnects, and closes
/// that direction, as libnbd does.
fn resend<S: Socket>(hang_up: HangUp<S>, has_another: bool, is_last: bool) {
    let (memory, server) = held_up();
    let mut another = has_another.then(|| S::connect(&server));
    let mut client = S::connect(&server);
    let closed = memory.gate.lock().unwrap();
    send_first_copy(&mut client, &memory);
    hang_up(client);
    let mut client = another.take().unwrap_or_else(|| S::connect(&server));
    let again = send_write(&mut client, &OLD);
    let newer = send_write(&mut client, &NEW);
    if is_last {
        client.send(command::DISC, 0, 0, 0, b"");
        client.stream.shutdown(Shutdown::Write);
    }
    std::thread::sleep(MOMENT);
    drop(closed);
    assert_eq!(client.receive(again, 0, 0), Ok(vec![]));
    assert_eq!(client.receive(newer, 0, 0), Ok(vec![]));
    server.await_counts(|counts| counts.clients == u64::from(!is_last));
    assert_newer_is_there(&server);
}

#[test]
fn request_of_a_closed_connection_does_not_run_after_its_copy() {
    for has_another in [false, true] {
        resend::<UnixStream>(drop, has_another, false);
        resend::<TcpStream>(drop, has_another, false);
        resend::<UnixStream>(|client| client.stream.shutdown(Shutdown::Both).unwrap(), has_another, false);
    }
}

#[test]
fn request_of_a_closed_connection_does_not_run_after_its_copy_on_one_that_is_closed_too() {
    for has_another in [false, true] {
        resend::<UnixStream>(drop, has_another, true);
    }
    resend::<TcpStream>(drop, false, true);
}

/// Both connections are closed before the server looks at either, so that only the order in which they were tells which of them
/// goes first.
#[test]
fn connections_run_in_the_order_in_which_they_were_closed() {
    for first_is_older in [false, true] {
        let (memory, server) = held_up();
        let mut clients = [(); 2].map(|()| <UnixStream as Socket>::connect(&server));
        if !first_is_older {
            clients.reverse();
        }
        let [mut first, mut second] = clients;
        let closed = memory.gate.lock().unwrap();
        send_first_copy(&mut first, &memory);
        let held_up = send_held_up(&mut second, &memory);
        drop(first);
        let again = send_write(&mut second, &OLD);
        let newer = send_write(&mut second, &NEW);
        second.stream.shutdown(Shutdown::Write).unwrap();
        drop(closed);
        for cookie in [held_up, again, newer] {
            assert_eq!(second.receive(cookie, 0, 0), Ok(vec![]));
        }
        server.await_counts(|counts| counts.clients == 0);
        assert_newer_is_there(&server);
    }
}

/// Two connections that are closed for sending, and have requests, do not wait for each other.
#[test]
fn half_closed_connections_are_all_answered() {
    let (memory, server) = held_up();
    let mut clients = [(); 4].map(|()| <UnixStream as Socket>::connect(&server));
    let closed = memory.gate.lock().unwrap();
    let held_up = clients.each_mut().map(|client| send_held_up(client, &memory));
    let waiting = clients.each_mut().map(|client| {
        let waiting = send_write(client, &NEW);
        client.stream.shutdown(Shutdown::Write).unwrap();
        waiting
    });
    drop(closed);
    for ((client, held_up), waiting) in clients.iter_mut().zip(held_up).zip(waiting) {
        assert_eq!(client.receive(held_up, 0, 0), Ok(vec![]));
        assert_eq!(client.receive(waiting, 0, 0), Ok(vec![]));
        assert!(client.is_hung_up());
    }
}

/// Over TCP, the end of the connection waits in the client's send buffer, behind a write that the medium takes its time for.
#[test]
fn request_that_comes_with_the_end_of_a_tcp_connection_does_not_run_after_its_copy() {
    let (memory, server) = held_up();
    let mut first = <TcpStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    memory.holds_up_store.store(true, SeqCst);
    // More than the sockets' buffers take.
    let long = vec![3; 2 << 20];
    first.send(command::WRITE, 0, 65536, 2 << 20, &long);
    send_write(&mut first, &OLD);
    wait_until(|| !memory.holds_up_store.load(SeqCst));
    drop(first);
    let mut second = <TcpStream as Socket>::connect(&server);
    let long = second.send(command::WRITE, 0, 65536, 2 << 20, &long);
    let again = send_write(&mut second, &OLD);
    let newer = send_write(&mut second, &NEW);
    for cookie in [long, again, newer] {
        assert_eq!(second.receive(cookie, 0, 0), Ok(vec![]));
    }
    drop(closed);
    server.await_counts(|counts| counts.clients == 1);
    assert_newer_is_there(&server);
}

/// The server is told to end while a connection waits for one that was closed.
#[test]
fn request_of_a_closed_connection_does_not_run_after_its_copy_while_the_server_ends() {
    let (memory, mut server) = held_up();
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
        // Nothing comes, or the connection is cut.
        assert!(!matches!(replied, Ok(1)), "a reply, while the first copy has not run: {replied:?}");
    });
}

/// The server is told to end; then a client closes a TCP connection, all of which has reached the server, and sends again over
/// another, which the server does not receive from until the first copy may run.
#[test]
fn request_of_a_tcp_connection_closed_while_the_server_ends_does_not_run_after_its_copy() {
    let (memory, mut server) = held_up();
    let mut first = <TcpStream as Socket>::connect(&server);
    let mut second = <TcpStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    send_first_copy(&mut first, &memory);
    let held_up = send_held_up(&mut second, &memory);
    std::thread::scope(|threads| {
        let stop = threads.spawn(|| server.stop().unwrap());
        std::thread::sleep(GRACE / 4);
        drop(first);
        send_write(&mut second, &OLD);
        send_write(&mut second, &NEW);
        std::thread::sleep(GRACE / 10);
        drop(closed);
        assert_eq!(second.receive(held_up, 0, 0), Ok(vec![]), "it was received before");
        assert!(second.is_hung_up(), "requests that came too late are answered");
        stop.join().unwrap();
    });
}

/// The connection that does not read comes first in the order, as nothing tells that its client did not close it.
#[test]
fn connection_that_does_not_read_does_not_keep_others_from_being_answered_while_the_server_ends() {
    let (memory, mut server) = held_up();
    let mut first = <UnixStream as Socket>::connect(&server);
    let mut second = <UnixStream as Socket>::connect(&server);
    for _ in 0..16 {
        first.send(command::READ, 0, 0, 1 << 20, b"");
    }
    let closed = memory.gate.lock().unwrap();
    let held_up = send_held_up(&mut second, &memory);
    let waiting = send_write(&mut second, &NEW);
    std::thread::scope(|threads| {
        let stop = threads.spawn(|| server.stop().unwrap());
        std::thread::sleep(GRACE / 4);
        drop(closed);
        for cookie in [held_up, waiting] {
            assert_eq!(second.receive(cookie, 0, 0), Ok(vec![]));
        }
        stop.join().unwrap();
    });
}

/// A client closes a connection for sending when it has sent its first write, and before the server's runtime has come to the end
/// of the handshake.
#[test]
fn request_of_a_connection_closed_in_its_handshake_does_not_run_after_its_copy() {
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
        let mut first = Client::haggle(&path);
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
        assert_eq!(second.receive(again, 0, 0), Ok(vec![]));
        assert_eq!(second.receive(newer, 0, 0), Ok(vec![]));
        std::thread::sleep(MOMENT);
        assert!(second.read(AT, 512) == Ok(NEW.to_vec()), "the first copy of the write ran last");
        stop.send(()).unwrap();
    });
}

/// A client that has closed its sending direction can still read, so its requests run; but it does not read.
#[test]
fn closed_connection_that_does_not_read_does_not_hold_up_others_for_good() {
    let (_memory, server) = held_up();
    let mut client = <UnixStream as Socket>::connect(&server);
    for _ in 0..16 {
        client.send(command::READ, 0, 0, 1 << 20, b"");
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut other = <UnixStream as Socket>::connect(&server);
    other.write(0, &[1; 512]).unwrap();
    assert_eq!(server.await_counts(|counts| counts.clients == 1).clients_total, 2);
    drop(client);
}

/// Others that come and go meanwhile do not prolong the wait.
#[test]
fn closed_connection_that_does_not_read_does_not_hold_up_others_while_clients_come_and_go() {
    let (_memory, server) = held_up();
    let mut client = <UnixStream as Socket>::connect(&server);
    for _ in 0..16 {
        client.send(command::READ, 0, 0, 1 << 20, b"");
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
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
fn closed_connection_whose_requests_take_long_gets_its_reply_while_another_waits() {
    let (memory, server) = held_up();
    let mut client = <UnixStream as Socket>::connect(&server);
    let mut other = <UnixStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    let fence_count = memory.fences();
    client.send(command::WRITE, command_flag::FUA, AT, 512, &OLD);
    wait_until(|| memory.fences() > fence_count);
    client.stream.shutdown(Shutdown::Write).unwrap();
    other.send(command::WRITE, 0, 0, 512, &NEW);
    std::thread::sleep(2 * GRACE);
    drop(closed);
    let mut reply = [0; 16];
    client.stream.read_exact(&mut reply).unwrap();
    other.stream.read_exact(&mut reply).unwrap();
}

/// The same where the server ends: what waits for the medium is not given up before the grace is over.
#[test]
fn closed_connection_whose_requests_take_long_gets_its_reply_while_the_server_ends() {
    const GRACE: Duration = Duration::from_secs(2);
    let (memory, engine) = device();
    let options = NbdOptions { shutdown_grace: GRACE, ..NbdOptions::default() };
    let mut server = Server::start_shared(engine, options, true);
    let mut client = <UnixStream as Socket>::connect(&server);
    let mut other = <UnixStream as Socket>::connect(&server);
    let closed = memory.gate.lock().unwrap();
    let fence_count = memory.fences();
    client.send(command::WRITE, command_flag::FUA, AT, 512, &OLD);
    wait_until(|| memory.fences() > fence_count);
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
fn connection_closed_in_its_handshake_that_does_not_read_does_not_hold_up_others() {
    let (_memory, server) = held_up();
    let mut client = Client::haggle(&server.path());
    client.stream.set_nonblocking(true).unwrap();
    // Until the server is stuck in its replies, and reads no more.
    let list = [&OPTION_MAGIC.to_be_bytes()[..], &option::LIST.to_be_bytes(), &[0; 4]].concat();
    let start = Instant::now();
    let mut stuck_since = Instant::now();
    while stuck_since.elapsed() < MOMENT {
        assert!(start.elapsed() < PATIENCE, "the server goes on");
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

/// A client that has closed its sending direction and reads a little now and then.
#[test]
fn closed_connection_that_reads_slowly_does_not_hold_up_others_for_long() {
    let (_memory, server) = held_up();
    let mut client = <UnixStream as Socket>::connect(&server);
    for _ in 0..64 {
        client.send(command::READ, 0, 0, 1 << 20, b"");
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut other = <UnixStream as Socket>::connect(&server);
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // Twice for each of the server's sends, at most.
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
