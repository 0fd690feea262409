//! Proposes writes to openraft: those that wait share an entry of the log, and so its replication and its fences.

use crate::peer::Outcome;
use crate::program::{Answer, Command, Map};
use crate::redis::REQUEST_BYTES;
use openraft::error::ClientWriteError;
use openraft::metrics::RaftServerMetrics;
use openraft::{BasicNode, Raft};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

/// The entries that are proposed and not applied. The writes that come meanwhile share the next one.
const ENTRIES: usize = 2;

/// The length of an entry's commands, unless it has only one.
const ENTRY_BYTES: usize = 256 << 10;

/// What a command takes of that besides its strings.
const COMMAND_BYTES: usize = 16;

/// The length of the longest entry: a command is shorter than its request.
pub(super) const LONGEST_ENTRY_BYTES: u64 = 260 << 10;
const _: () = assert!(LONGEST_ENTRY_BYTES > REQUEST_BYTES as u64 && LONGEST_ENTRY_BYTES > ENTRY_BYTES as u64);

/// How long an entry of a leader that was replaced waits for its answer. openraft gives none for entries that it then receives in a snapshot.
const REPLACED: Duration = Duration::from_secs(10);

/// The most commands of an entry.
const COMMANDS: usize = 4096;

/// A write that waits.
pub(super) struct Proposal {
    pub(super) command: Command,
    pub(super) outcome: oneshot::Sender<Outcome>,
    /// The memory that it takes until its outcome is known.
    pub(super) permit: OwnedSemaphorePermit,
}

/// The writes of an entry: the clients' ends, in the order of the commands, with the writes' memory.
struct Clients(Vec<(oneshot::Sender<Outcome>, OwnedSemaphorePermit)>);

impl Clients {
    /// Gives each its own answer.
    fn answer(self, answers: Vec<Answer>) {
        for ((client, _), answer) in self.0.into_iter().zip(answers) {
            // A client that waits no more needs no outcome.
            drop(client.send(Outcome::Answer(answer)));
        }
    }

    fn end(self, outcome: &Outcome) {
        for (client, _) in self.0 {
            drop(client.send(outcome.clone()));
        }
    }
}

/// Proposes writes on the node with this number, in the order in which they come, until there are no more senders.
pub(super) async fn propose(raft: Raft<Map>, id: u64, mut writes: mpsc::Receiver<Proposal>) {
    let places = Arc::new(Semaphore::new(ENTRIES));
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => match writes.recv().await {
                Some(first) => first,
                None => return,
            },
        };
        // While it waits for a place, others come.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (commands, clients);
        (commands, clients, next) = entry(first, &mut writes);
        if commands.is_empty() {
            continue;
        }
        let (leader, term) = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow();
            (metrics.current_leader, metrics.current_term)
        };
        if leader != Some(id) {
            clients.end(&Outcome::NotExecuted("the node is not the leader".to_owned()));
            continue;
        }
        let mut proposed = match raft.client_write_ff(commands).await {
            Ok(proposed) => proposed,
            Err(error) => {
                clients.end(&Outcome::Unknown(error.to_string()));
                continue;
            }
        };
        let raft = raft.clone();
        tokio::spawn(async move {
            let answer = tokio::select! {
                answer = &mut proposed => Some(answer),
                () = replaced(&raft, id, term) => None,
            };
            // The node may lead again before there is an answer, or without one.
            drop(place);
            let answer = match answer {
                Some(answer) => Ok(answer),
                None => timeout(REPLACED, proposed).await,
            };
            let Ok(answer) = answer else {
                return clients.end(&Outcome::Unknown("the leader has changed".to_owned()));
            };
            let reason = match answer {
                Ok(Ok(response)) => return clients.answer(response.data),
                // Another leader may have the entry, also after this one has removed it from its log.
                Ok(Err(ClientWriteError::ForwardToLeader(_))) => "the leader has changed".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the node has stopped".to_owned(),
            };
            clients.end(&Outcome::Unknown(reason));
        });
    }
}

/// Waits until the node with this number is no longer the leader of this term.
async fn replaced(raft: &Raft<Map>, id: u64, term: u64) {
    let mut metrics = raft.server_metrics();
    let is_leader = |metrics: &RaftServerMetrics<u64, BasicNode>| {
        metrics.current_leader == Some(id) && metrics.vote.leader_id.term == term
    };
    while is_leader(&metrics.borrow_and_update()) {
        // A node that has stopped answers nothing.
        if metrics.changed().await.is_err() {
            break;
        }
    }
}

/// The commands of an entry: those that wait, up to a length, and the write that is too long for it. A write that its client has given up is not executed:
/// without a majority, clients repeat theirs.
fn entry(
    first: Proposal,
    writes: &mut mpsc::Receiver<Proposal>,
) -> (Vec<Command>, Clients, Option<Proposal>) {
    let (mut len_bytes, mut next) = (0, Some(first));
    let (mut commands, mut clients) = (Vec::new(), Clients(Vec::new()));
    while let Some(Proposal { command, outcome, permit }) = next.take() {
        if !outcome.is_closed() {
            len_bytes += command.len_bytes() + COMMAND_BYTES;
            if len_bytes > ENTRY_BYTES && !commands.is_empty() {
                return (commands, clients, Some(Proposal { command, outcome, permit }));
            }
            commands.push(command);
            clients.0.push((outcome, permit));
        }
        if commands.len() < COMMANDS {
            next = writes.try_recv().ok();
        }
    }
    (commands, clients, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clients give up, for example because there is no majority, does not fill the store when there is one again.
    #[tokio::test]
    async fn writes_that_were_given_up_are_not_in_an_entry() {
        let memory = Arc::new(Semaphore::new(10));
        let (sender, mut writes) = mpsc::channel(10);
        let mut waiting = Vec::new();
        for number in 0..10_u8 {
            let (outcome, answer) = oneshot::channel();
            waiting.push(answer);
            let command = Command::Remove(vec![vec![number]]);
            let permit = Arc::clone(&memory).acquire_owned().await.unwrap();
            sender.send(Proposal { command, outcome, permit }).await.unwrap();
        }
        let mut number = 0;
        waiting.retain(|_| {
            number += 1;
            number % 3 == 0
        });
        let first = writes.recv().await.unwrap();
        let (commands, clients, _) = entry(first, &mut writes);
        assert_eq!(commands, [2_u8, 5, 8].map(|number| Command::Remove(vec![vec![number]])));
        assert_eq!(clients.0.len(), 3);
        assert_eq!(memory.available_permits(), 7, "they have no memory any more");
        drop(clients);
        assert_eq!(memory.available_permits(), 10);
    }
}
