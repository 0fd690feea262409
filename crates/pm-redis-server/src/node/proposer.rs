//! Proposes writes to openraft: those that wait share an entry of the log, and so its replication and its fences.

use crate::peer::Outcome;
use crate::program::{Answer, Command, Map};
use openraft::Raft;
use openraft::error::ClientWriteError;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// The entries that are proposed and not applied. The writes that come meanwhile share the next one.
const ENTRIES: usize = 2;

/// The length of commands from which an entry takes no more.
const ENTRY_BYTES: usize = 256 << 10;

/// The most commands of an entry.
const COMMANDS: usize = 4096;

/// A write that waits.
pub(super) struct Proposal {
    pub(super) command: Command,
    pub(super) outcome: oneshot::Sender<Outcome>,
}

/// The writes of an entry: the clients' ends, in the order of the commands.
struct Clients(Vec<oneshot::Sender<Outcome>>);

impl Clients {
    /// Gives each its own answer.
    fn answer(self, answers: Vec<Answer>) {
        for (client, answer) in self.0.into_iter().zip(answers) {
            // A client that waits no more needs no outcome.
            drop(client.send(Outcome::Answer(answer)));
        }
    }

    fn end(self, outcome: &Outcome) {
        for client in self.0 {
            drop(client.send(outcome.clone()));
        }
    }
}

/// Proposes writes on the node with this number, in the order in which they come, until there are no more senders.
pub(super) async fn propose(raft: Raft<Map>, id: u64, mut writes: mpsc::Receiver<Proposal>) {
    let places = Arc::new(Semaphore::new(ENTRIES));
    while let Some(first) = writes.recv().await {
        // While it waits for a place, others come.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (commands, clients) = entry(first, &mut writes);
        if raft.metrics().borrow().current_leader != Some(id) {
            clients.end(&Outcome::NotExecuted("the node is not the leader".to_owned()));
            continue;
        }
        let proposed = match raft.client_write_ff(commands).await {
            Ok(proposed) => proposed,
            Err(error) => {
                clients.end(&Outcome::Unknown(error.to_string()));
                continue;
            }
        };
        tokio::spawn(async move {
            let answer = proposed.await;
            drop(place);
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

/// The commands of an entry: those that wait, up to a length.
fn entry(first: Proposal, writes: &mut mpsc::Receiver<Proposal>) -> (Vec<Command>, Clients) {
    let mut len_bytes = first.command.len_bytes();
    let (mut commands, mut clients) = (vec![first.command], Clients(vec![first.outcome]));
    while len_bytes < ENTRY_BYTES
        && commands.len() < COMMANDS
        && let Ok(Proposal { command, outcome }) = writes.try_recv()
    {
        len_bytes += command.len_bytes();
        commands.push(command);
        clients.0.push(outcome);
    }
    (commands, clients)
}
