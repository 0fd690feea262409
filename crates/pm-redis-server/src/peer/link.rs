//! A connection to a node, made when it is needed, over which requests are answered in any order.

use super::identity::Identity;
use super::wire::{Message, Request, Response, Welcome, decode, encode, read_frame};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::time::timeout;

/// The time for a connection and the first messages.
const CONNECT: Duration = Duration::from_secs(2);

/// The time after a failure in which no other connection is tried.
const PAUSE: Duration = Duration::from_millis(100);

/// The number of requests that wait to be sent.
const WAITING: usize = 256;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The other node does not have the request.
    #[error(transparent)]
    NotSent(#[from] io::Error),
    /// The other node may have the request.
    #[error("the connection to the node was lost")]
    Lost,
}

/// Requests without an answer, by their number. `None` when the connection has ended.
type Pending = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Response>>>>>;

struct Connection {
    frames: mpsc::Sender<Vec<u8>>,
    pending: Pending,
    next: u64,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    failed_at: Option<Instant>,
    /// The last refusal that was printed.
    refusal: Option<String>,
}

/// A connection to a node.
pub(crate) struct Link {
    identity: Arc<Identity>,
    target: u64,
    address: String,
    state: AsyncMutex<State>,
}

impl Link {
    pub(crate) fn new(identity: Arc<Identity>, target: u64, address: String) -> Self {
        Self { identity, target, address, state: AsyncMutex::default() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Connects, if there is no connection: both nodes learn which file the other one has.
    pub(crate) async fn meet(&self) -> io::Result<()> {
        let mut state = self.state.lock().await;
        let met = self.connected(&mut state).await.map(drop);
        // A request does not pay for it: it tries by itself.
        state.failed_at = None;
        met
    }

    /// Sends a request, after those of earlier calls.
    pub(crate) async fn send(&self, request: &Request) -> Result<oneshot::Receiver<Response>, CallError> {
        let mut state = self.state.lock().await;
        let connection = self.connected(&mut state).await?;
        let number = connection.next;
        connection.next += 1;
        let frame = encode(&Message { number, body: request })?;
        let (sender, receiver) = oneshot::channel();
        // First: a caller that stops to wait here leaves nothing behind.
        let place =
            connection.frames.reserve().await.map_err(|_| io::Error::from(io::ErrorKind::NotConnected))?;
        match &mut *connection.pending.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(pending) => drop(pending.insert(number, sender)),
            None => return Err(io::Error::from(io::ErrorKind::NotConnected).into()),
        }
        // The end of the connection fails the request, too.
        place.send(frame);
        Ok(receiver)
    }

    /// Sends a request, and returns its answer.
    pub(crate) async fn call(&self, request: &Request) -> Result<Response, CallError> {
        self.send(request).await?.await.map_err(|_| CallError::Lost)
    }

    /// The connection, which is made if there is none.
    async fn connected<'s>(&self, state: &'s mut State) -> io::Result<&'s mut Connection> {
        let is_open = |connection: &Connection| {
            connection.pending.lock().unwrap_or_else(PoisonError::into_inner).is_some()
        };
        if !state.connection.as_ref().is_some_and(is_open) {
            state.connection = None;
            if state.failed_at.is_some_and(|at| at.elapsed() < PAUSE) {
                return Err(io::ErrorKind::NotConnected.into());
            }
            match timeout(CONNECT, self.connect(&mut state.refusal))
                .await
                .unwrap_or_else(|late| Err(late.into()))
            {
                Ok(connection) => state.connection = Some(connection),
                Err(error) => {
                    state.failed_at = Some(Instant::now());
                    return Err(error);
                }
            }
        }
        state.connection.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    async fn connect(&self, printed: &mut Option<String>) -> io::Result<Connection> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        let hello = self.identity.hello(self.target).map_err(io::Error::other)?;
        writer.write_all(&encode(&hello)?).await?;
        let welcome = read_frame(&mut reader).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let checked = match decode(&welcome)? {
            Welcome::Accepted(other) if other.id != self.target => Err(format!("it is node {}", other.id)),
            Welcome::Accepted(other) => self.identity.check(&other),
            Welcome::Refused(reason) => Err(reason),
        };
        if let Err(reason) = checked {
            if printed.as_ref() != Some(&reason) {
                eprintln!("node {} at {}: {reason}", self.target, self.address);
                *printed = Some(reason.clone());
            }
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        *printed = None;
        let (frames, waiting) = mpsc::channel(WAITING);
        let pending = Pending::new(Mutex::new(Some(HashMap::new())));
        tokio::spawn(write(writer, waiting, Arc::clone(&pending)));
        tokio::spawn(read(reader, Arc::clone(&pending)));
        Ok(Connection { frames, pending, next: 0 })
    }
}

/// Ends a connection: requests without an answer are lost.
fn end(pending: &Pending) {
    drop(pending.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Writes frames until the link is dropped, or the connection ends.
async fn write(mut writer: OwnedWriteHalf, mut frames: mpsc::Receiver<Vec<u8>>, pending: Pending) {
    let mut bytes = Vec::new();
    while let Some(frame) = frames.recv().await {
        bytes.extend_from_slice(&frame);
        while bytes.len() < 1 << 20
            && let Ok(frame) = frames.try_recv()
        {
            bytes.extend_from_slice(&frame);
        }
        if writer.write_all(&bytes).await.is_err() {
            break;
        }
        bytes.clear();
    }
    end(&pending);
}

/// Reads answers until the connection ends.
async fn read(mut reader: BufReader<OwnedReadHalf>, pending: Pending) {
    while let Ok(Some(frame)) = read_frame(&mut reader).await {
        let Ok(Message { number, body }) = decode::<Message<Response>>(&frame) else { break };
        let waiting = match &mut *pending.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(pending) => pending.remove(&number),
            None => break,
        };
        // A caller that waits no more needs no answer.
        if let Some(waiting) = waiting {
            drop(waiting.send(body));
        }
    }
    end(&pending);
}
