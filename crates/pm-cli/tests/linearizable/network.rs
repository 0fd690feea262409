//! The connections between nodes: a proxy before each node, through which the others reach it, and by which links are cut and delayed.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often a thread looks whether a link is healed.
const LOOK: Duration = Duration::from_millis(2);

/// What is read at a time.
const READ_BYTES: usize = 64 << 10;

/// Bytes from one node to another.
#[derive(Default)]
struct Direction {
    is_cut: AtomicBool,
    delay_ms: AtomicU64,
}

#[derive(Default)]
struct State {
    /// By the places of the sender and the receiver.
    directions: [[Direction; 3]; 3],
    /// Both ends of each connection, with the nodes, by its number.
    connections: Mutex<BTreeMap<u64, (usize, usize, TcpStream, TcpStream)>>,
    accepted: AtomicU64,
    is_ended: AtomicBool,
}

/// The network between three nodes.
pub(crate) struct Network {
    state: Arc<State>,
    proxies: Vec<u16>,
}

impl Network {
    /// Listens at the ports `proxies`, before nodes that listen at `nodes`.
    pub(crate) fn start(proxies: &[u16], nodes: &[u16]) -> Self {
        let state = Arc::new(State::default());
        for (to, (proxy, node)) in proxies.iter().zip(nodes).enumerate() {
            let listener = TcpListener::bind(("127.0.0.1", *proxy)).unwrap();
            let (state, node) = (Arc::clone(&state), *node);
            thread::spawn(move || accept(&state, &listener, to, node));
        }
        Self { state, proxies: proxies.to_vec() }
    }

    /// Holds what a node sends to another one, on all connections between them, until they are healed.
    pub(crate) fn cut(&self, from: usize, to: usize) {
        self.state.directions[from][to].is_cut.store(true, Ordering::Relaxed);
    }

    /// Ends the connections between two nodes.
    pub(crate) fn reset(&self, one: usize, other: usize) {
        for (from, to, near, far) in self.state.connections.lock().unwrap().values() {
            if [(one, other), (other, one)].contains(&(*from, *to)) {
                end(near, far);
            }
        }
    }

    /// Delays what any node sends.
    pub(crate) fn delay(&self, mut delay: impl FnMut() -> Duration) {
        for direction in self.state.directions.iter().flatten() {
            let delay_ms = u64::try_from(delay().as_millis()).unwrap();
            direction.delay_ms.store(delay_ms, Ordering::Relaxed);
        }
    }

    /// No link is cut or slow any more.
    pub(crate) fn heal(&self) {
        for direction in self.state.directions.iter().flatten() {
            direction.is_cut.store(false, Ordering::Relaxed);
            direction.delay_ms.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.state.is_ended.store(true, Ordering::Relaxed);
        self.heal();
        for (_, _, near, far) in self.state.connections.lock().unwrap().values() {
            end(near, far);
        }
        for proxy in &self.proxies {
            // Wakes the thread that accepts; it may have ended.
            drop(TcpStream::connect(("127.0.0.1", *proxy)));
        }
    }
}

fn end(near: &TcpStream, far: &TcpStream) {
    for stream in [near, far] {
        // It may have ended by itself.
        drop(stream.shutdown(Shutdown::Both));
    }
}

/// Accepts connections to a node.
fn accept(state: &Arc<State>, listener: &TcpListener, to: usize, node: u16) {
    for near in listener.incoming() {
        if state.is_ended.load(Ordering::Relaxed) {
            return;
        }
        let state = Arc::clone(state);
        // The near end may go before its first message, and the node may be dead: then the connection ends.
        thread::spawn(move || near.and_then(|near| connect(&state, near, to, node)));
    }
}

/// Connects the near end to the node, when it has named itself.
fn connect(state: &Arc<State>, mut near: TcpStream, to: usize, node: u16) -> io::Result<()> {
    let mut length = [0; 4];
    near.read_exact(&mut length)?;
    let mut hello = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
    near.read_exact(&mut hello)?;
    let from = sender(&hello).ok_or(io::ErrorKind::InvalidData)?;
    let far = TcpStream::connect(("127.0.0.1", node))?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
    }
    let ends = (from, to, near.try_clone()?, far.try_clone()?);
    let number = state.accepted.fetch_add(1, Ordering::Relaxed);
    state.connections.lock().unwrap().insert(number, ends);
    let ended = forward(state, [near, far], &[&length[..], &hello].concat(), from, to);
    state.connections.lock().unwrap().remove(&number);
    ended
}

/// Sends the first message, and then copies what both ends send.
fn forward(
    state: &Arc<State>,
    [near, mut far]: [TcpStream; 2],
    hello: &[u8],
    from: usize,
    to: usize,
) -> io::Result<()> {
    let (near_reader, far_reader) = (near.try_clone()?, far.try_clone()?);
    wait(state, from, to);
    far.write_all(hello)?;
    let back = Arc::clone(state);
    thread::spawn(move || copy(&back, far_reader, near, to, from));
    copy(state, near_reader, far, from, to);
    Ok(())
}

/// The place of the node that has sent the first message, whose fields are the version, the name of the cluster, and the sender's id, as in postcard.
fn sender(hello: &[u8]) -> Option<usize> {
    let [version, length, ..] = *hello else { return None };
    let id = *hello.get(2 + usize::from(length))?;
    // Varints of one byte.
    ([version, length].iter().all(|byte| *byte < 128) && (1..=3).contains(&id)).then(|| usize::from(id) - 1)
}

/// Waits until bytes may go on.
fn wait(state: &State, from: usize, to: usize) {
    let direction = &state.directions[from][to];
    let delay_ms = direction.delay_ms.load(Ordering::Relaxed);
    if delay_ms > 0 {
        thread::sleep(Duration::from_millis(delay_ms));
    }
    while direction.is_cut.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
    }
}

/// Copies bytes until one end is gone; then the other one goes, too.
fn copy(state: &State, mut reader: TcpStream, mut writer: TcpStream, from: usize, to: usize) {
    let mut bytes = vec![0; READ_BYTES];
    while let Ok(count @ 1..) = reader.read(&mut bytes) {
        wait(state, from, to);
        if writer.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    end(&reader, &writer);
}
