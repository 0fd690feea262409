//! The connection of a Redis client.

use super::member::{DEADLINE, Member, Submitted};
use crate::peer::Outcome;
use crate::program::{Answer, Registry};
use crate::redis::{Action, Read, Reply, Requests, parse};
use pm_openraft::StorageError;
use std::collections::VecDeque;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// What is read at a time.
const READ_BYTES: usize = 64 << 10;

/// The writes of a connection without an answer.
const WRITES: usize = 1024;

/// The length of replies that wait to be sent.
const REPLIES_BYTES: usize = 1 << 20;

/// The length of the values or entries of a reply.
const REPLY_BYTES: usize = 8 << 20;

/// A client.
struct Client {
    member: Arc<Member>,
    is_authenticated: bool,
    is_read_only: bool,
    /// Writes, in their order, whose outcome is not known yet.
    submitted: VecDeque<Submitted>,
    replies: Vec<u8>,
    /// Until then the requests that were read wait for a leader and for memory.
    deadline: Instant,
    stream: TcpStream,
}

/// Counts a client as long as it exists.
struct Counted(Arc<Member>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(member: Arc<Member>, mut stream: TcpStream) -> io::Result<()> {
    let count = member.clients.fetch_add(1, Ordering::Relaxed);
    let _counted = Counted(Arc::clone(&member));
    if count >= member.limits.clients as u64 {
        return stream.write_all(b"-ERR max number of clients reached\r\n").await;
    }
    let is_authenticated = !member.identity.needs_password();
    let mut client = Client {
        member,
        is_authenticated,
        is_read_only: false,
        submitted: VecDeque::new(),
        replies: Vec::new(),
        deadline: Instant::now(),
        stream,
    };
    client.serve().await
}

impl Client {
    async fn serve(&mut self) -> io::Result<()> {
        let mut requests = Requests::default();
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let count = self.stream.read(&mut bytes).await?;
            if count == 0 {
                return Ok(());
            }
            requests.push(&bytes[..count]);
            // What comes together waits together.
            self.deadline = Instant::now() + DEADLINE;
            loop {
                match requests.next() {
                    Ok(None) => break,
                    Ok(Some(request)) => {
                        let is_last = match parse(request) {
                            Ok(action) => self.act(action).await?,
                            Err(reply) => {
                                self.reply(&reply).await?;
                                false
                            }
                        };
                        if is_last {
                            return self.send().await;
                        }
                    }
                    Err(error) => {
                        self.reply(&Reply::error(format!("ERR {error}"))).await?;
                        return self.send().await;
                    }
                }
            }
            self.settle().await?;
            self.send().await?;
        }
    }

    /// Executes an action. Returns whether the connection ends.
    async fn act(&mut self, action: Action) -> io::Result<bool> {
        let reply = match action {
            Action::Auth(password) => self.authenticate(&password),
            Action::Hello(Some(password)) => match self.authenticate(&password) {
                Reply::Simple(_) => hello(),
                refused => refused,
            },
            Action::Quit => {
                self.reply(&Reply::OK).await?;
                return Ok(true);
            }
            _ if !self.is_authenticated => Reply::error("NOAUTH Authentication required."),
            Action::Write(command) => {
                if self.submitted.len() >= WRITES {
                    self.settle().await?;
                }
                let permit = match self.member.try_permit(&command) {
                    Some(permit) => Ok(permit),
                    None => {
                        // The writes before it may have the memory, until their outcomes are taken.
                        self.settle().await?;
                        self.member.permit(&command, self.deadline).await
                    }
                };
                let submitted = match permit {
                    Ok(permit) => self.member.submit(command, permit, self.deadline).await,
                    Err(reason) => Box::pin(std::future::ready(Outcome::NotExecuted(reason))),
                };
                self.submitted.push_back(submitted);
                return Ok(false);
            }
            Action::Read(read) => {
                // A read sees the writes before it on its connection.
                self.settle().await?;
                self.read(&read).await
            }
            Action::ReadOnly(is_read_only) => {
                self.is_read_only = is_read_only;
                Reply::OK
            }
            Action::Info => Reply::bulk(self.member.info()),
            Action::Status => match serde_json::to_vec(&self.member.status().await) {
                Ok(text) => Reply::Bulk(text),
                Err(error) => Reply::error(format!("ERR {error}")),
            },
            Action::Change(change) => match self.member.change(change).await {
                Ok(()) => Reply::OK,
                Err(reason) => Reply::error(format!("ERR {reason}")),
            },
            Action::Hello(None) => hello(),
            Action::Reply(reply) => reply,
        };
        self.reply(&reply).await?;
        Ok(false)
    }

    fn authenticate(&mut self, password: &[u8]) -> Reply {
        if !self.member.identity.needs_password() {
            return Reply::error("ERR AUTH called without any password configured");
        }
        if !self.member.identity.is_password(password) {
            return Reply::error("WRONGPASS invalid password");
        }
        self.is_authenticated = true;
        Reply::OK
    }

    async fn read(&mut self, read: &Read) -> Reply {
        self.member.counts.read();
        if !self.is_read_only
            && let Err(reason) = self.member.confirm().await
        {
            return Reply::error(format!("CLUSTERDOWN the read cannot be confirmed: {reason}"));
        }
        self.value(read).unwrap_or_else(|error| Reply::error(format!("ERR {error}")))
    }

    fn value(&self, read: &Read) -> Result<Reply, StorageError> {
        let reader = &self.member.reader;
        Ok(match read {
            Read::Value(key) => Reply::of(reader.get_all([key.as_slice()], usize::MAX)?.pop().flatten()),
            Read::Values(keys) => {
                let values = reader.get_all(keys.iter().map(Vec::as_slice), REPLY_BYTES)?;
                Reply::Array(values.into_iter().map(Reply::of).collect())
            }
            Read::Count(keys) => {
                let count = reader.count_of(keys.iter().map(Vec::as_slice))?;
                Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX))
            }
            Read::Len => {
                let count = reader.count()?.saturating_sub(reader.count_of([Registry::KEY])?);
                Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX))
            }
            Read::Range { from, to, limit } => {
                // One more, because the registry is none of the clients' entries.
                let entries = reader.range(from, Bound::Excluded(to), limit + 1, REPLY_BYTES)?;
                let entries = entries.into_iter().filter(|(key, _)| key != Registry::KEY).take(*limit);
                let strings = entries.flat_map(|(key, value)| [Reply::Bulk(key), Reply::Bulk(value)]);
                Reply::Array(strings.collect())
            }
        })
    }

    /// Replies to all writes.
    async fn settle(&mut self) -> io::Result<()> {
        while let Some(submitted) = self.submitted.pop_front() {
            let outcome = submitted.await;
            self.member.counts.write(&outcome);
            let reply = match outcome {
                Outcome::Answer(Answer::Done) => Reply::OK,
                Outcome::Answer(Answer::Unchanged) => Reply::Nil,
                Outcome::Answer(Answer::Number(number)) => Reply::Integer(number),
                Outcome::Answer(Answer::NoNumber) => {
                    Reply::error("ERR value is not an integer or out of range")
                }
                Outcome::Answer(Answer::Overflow) => {
                    Reply::error("ERR increment or decrement would overflow")
                }
                Outcome::NotExecuted(reason) => Reply::error(format!("TRYAGAIN not executed: {reason}")),
                Outcome::Unknown(reason) => {
                    Reply::error(format!("UNKNOWN it may have been executed, or may be later: {reason}"))
                }
            };
            self.append(&reply).await?;
        }
        Ok(())
    }

    /// Replies, after the replies to the writes before.
    async fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        self.settle().await?;
        self.append(reply).await
    }

    async fn append(&mut self, reply: &Reply) -> io::Result<()> {
        reply.encode(&mut self.replies);
        if self.replies.len() > REPLIES_BYTES { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.replies).await?;
        self.replies.clear();
        Ok(())
    }
}

fn hello() -> Reply {
    let pairs = [
        ("server", Reply::bulk("pm")),
        ("version", Reply::bulk(env!("CARGO_PKG_VERSION"))),
        ("proto", Reply::Integer(2)),
        ("mode", Reply::bulk("standalone")),
        ("role", Reply::bulk("master")),
    ];
    Reply::Array(pairs.into_iter().flat_map(|(name, value)| [Reply::bulk(name), value]).collect())
}
