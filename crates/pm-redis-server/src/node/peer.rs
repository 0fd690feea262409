//! The connection of another node.

use super::member::{DEADLINE, Member, Submitted};
use super::rooms::room_here;
use crate::peer::{Body, Hello, Message, Outcome, Request, Response, Welcome, decode, encode, read_frame};
use crate::program::Map;
use openraft::{BasicNode, Snapshot, SnapshotMeta, Vote};
use pm_openraft::SnapshotData;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};

/// The requests of a connection that are answered at a time.
const REQUESTS: usize = 4096;

/// The time for the first message.
const HELLO: Duration = Duration::from_secs(2);

/// A snapshot that is received.
struct Received {
    vote: Vote<u64>,
    meta: SnapshotMeta<u64, BasicNode>,
    data: Box<SnapshotData>,
}

/// Serves the connection to its end.
pub(super) async fn serve(member: Arc<Member>, stream: TcpStream) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let hello = timeout(HELLO, read_frame(&mut reader)).await??.ok_or(io::ErrorKind::UnexpectedEof)?;
    let welcome = member.identity.welcome(&decode::<Hello>(&hello)?);
    writer.write_all(&encode(&welcome)?).await?;
    if let Welcome::Refused(reason) = welcome {
        eprintln!("a connection of another node is refused: {reason}");
        return Ok(());
    }
    let (frames, mut waiting) = mpsc::channel::<Vec<u8>>(REQUESTS);
    tokio::spawn(async move {
        while let Some(mut bytes) = waiting.recv().await {
            while bytes.len() < 1 << 20
                && let Ok(frame) = waiting.try_recv()
            {
                bytes.extend_from_slice(&frame);
            }
            if writer.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
    let permits = Arc::new(Semaphore::new(REQUESTS));
    let mut snapshot = None;
    while let Some(frame) = read_frame(&mut reader).await? {
        let Message { number, body: request } = decode(&frame)?;
        let permit = Arc::clone(&permits).acquire_owned().await.map_err(io::Error::other)?;
        let (member, frames) = (Arc::clone(&member), frames.clone());
        let answer = match request {
            // Writes join the log in the order in which they come.
            Request::Propose(command) => match member.permit(&command, Instant::now() + DEADLINE).await {
                Ok(permit) => Answer::Later(member.submit_here(command, permit).await),
                Err(reason) => Answer::Now(Ok(Body::Outcome(Outcome::NotExecuted(reason)))),
            },
            Request::SnapshotStart { .. } | Request::SnapshotPart(_) | Request::SnapshotEnd => {
                Answer::Now(receive(&member, &mut snapshot, request).await)
            }
            request => Answer::Other(request),
        };
        tokio::spawn(async move {
            let body = match answer {
                Answer::Now(response) => response,
                Answer::Later(outcome) => Ok(Body::Outcome(outcome.await)),
                Answer::Other(request) => respond(&member, request).await,
            };
            let frame = encode(&Message { number, body });
            // After the end of the connection there is no answer.
            if let Ok(frame) = frame {
                drop(frames.send(frame).await);
            }
            drop(permit);
        });
    }
    Ok(())
}

/// An answer that is there, is awaited, or is still to be found.
enum Answer {
    Now(Response),
    Later(Submitted),
    Other(Request),
}

async fn respond(member: &Member, request: Request) -> Response {
    match request {
        Request::Append(request) => {
            let response = member.raft.append_entries(request).await;
            response.map(Body::Append).map_err(|error| error.to_string())
        }
        Request::Vote(request) => {
            let response = member.raft.vote(request).await;
            response.map(Body::Vote).map_err(|error| error.to_string())
        }
        Request::ReadIndex => member.read_index().await.map(Body::ReadIndex),
        Request::Status => Ok(Body::Status(member.status_here())),
        Request::Change(change) => member.change_here(change).await.map(|()| Body::Changed),
        Request::Describe => member.describe().await.map(Body::Description),
        Request::Room { index } => room_here(&member.raft, &member.storage, index).await,
        Request::FileOf(id) => member.identity.file_of(id).map(Body::File).map_err(|error| error.to_string()),
        Request::Propose(_)
        | Request::SnapshotStart { .. }
        | Request::SnapshotPart(_)
        | Request::SnapshotEnd => Err("the request is out of order".to_owned()),
    }
}

/// Receives a part of a snapshot.
async fn receive(member: &Member, snapshot: &mut Option<Received>, request: Request) -> Response {
    match (request, snapshot.take()) {
        (Request::SnapshotStart { vote, meta }, _) => {
            let _reception = member.reception.lock().await;
            let present = member.raft.server_metrics().borrow().vote;
            // As openraft answers the end of an old leader's snapshot, so that this leader learns of the vote.
            if vote < present {
                return Ok(Body::Installed(present));
            }
            let data = member.raft.begin_receiving_snapshot().await.map_err(|error| error.to_string())?;
            *snapshot = Some(Received { vote, meta, data });
            Ok(Body::Received)
        }
        (Request::SnapshotPart(_), Some(received)) if !received.data.is_present() => {
            Err("another snapshot is received meanwhile".to_owned())
        }
        (Request::SnapshotPart(entries), Some(mut received)) => {
            if let Err(error) = received.data.add(&entries) {
                let reason = error.to_string();
                let mut told = member.reception.lock().await;
                if told.as_ref() != Some(&reason) {
                    eprintln!(
                        "the state of the cluster cannot be received beside the present one: {reason}; give this node a longer file"
                    );
                }
                *told = Some(reason.clone());
                return Err(reason);
            }
            *snapshot = Some(received);
            Ok(Body::Received)
        }
        (Request::SnapshotEnd, Some(Received { vote, meta, data })) => {
            let mut told = member.reception.lock().await;
            if !data.is_present() {
                return Err("another snapshot is received meanwhile".to_owned());
            }
            let snapshot: Snapshot<Map> = Snapshot { meta, snapshot: data };
            let response = member.raft.install_full_snapshot(vote, snapshot).await;
            *told = None;
            response.map(|response| Body::Installed(response.vote)).map_err(|error| error.to_string())
        }
        _ => Err("a part of a snapshot is out of order".to_owned()),
    }
}
