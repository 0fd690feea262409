//! Proposes writes to openraft: those that wait share an entry of the log, and so its replication and its fences.

use super::admission::{Admission, Admitted, LONGEST_ENTRY_BYTES};
use super::rooms::Others;
use crate::peer::Outcome;
use crate::program::{Answer, Command, Map};
use openraft::error::ClientWriteError;
use openraft::metrics::RaftServerMetrics;
use openraft::{BasicNode, Raft, RaftMetrics};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

/// The entries that are proposed and not applied. The writes that come meanwhile share the next one.
const ENTRIES: u32 = 2;

/// The length of an entry's commands, unless it has only one.
const ENTRY_BYTES: u64 = 256 << 10;

const _: () = assert!(LONGEST_ENTRY_BYTES > ENTRY_BYTES);

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
#[derive(Default)]
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

/// The writes of the next entry.
#[derive(Default)]
struct Gathered {
    commands: Vec<Command>,
    clients: Clients,
    /// A write that is left for the entry after it.
    next: Option<Proposal>,
    /// Whether the store must be measured before that one is admitted.
    is_unclear: bool,
}

/// Proposes writes on the node with this number, in the order in which they come, until there are no more senders.
pub(super) async fn propose(
    raft: Raft<Map>,
    id: u64,
    mut others: Others,
    mut admission: Admission,
    mut writes: mpsc::Receiver<Proposal>,
) {
    let places = Arc::new(Semaphore::new(ENTRIES as usize));
    let (mut next, mut is_unclear) = (None, false);
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
        let Some(term) = led_term(&raft.metrics().borrow(), id) else {
            drop(first.outcome.send(Outcome::NotExecuted("the node is not the leader".to_owned())));
            continue;
        };
        if is_unclear || !admission.is_of(term) {
            is_unclear = false;
            let Ok(_others) = places.acquire_many(ENTRIES - 1).await else { return };
            let Some(index) = all_applied(&raft, id, term).await else {
                next = Some(first);
                continue;
            };
            let least = others.least(index, admission.store_bytes());
            if let Err(error) = admission.measure(term, least).await {
                drop(first.outcome.send(Outcome::NotExecuted(error.to_string())));
                continue;
            }
            if led_term(&raft.metrics().borrow(), id) != Some(term) {
                next = Some(first);
                continue;
            }
        }
        let gathered = gather(first, &mut writes, &mut admission);
        let Gathered { commands, clients, .. } = gathered;
        (next, is_unclear) = (gathered.next, gathered.is_unclear);
        if commands.is_empty() {
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

impl Gathered {
    fn push(&mut self, Proposal { command, outcome, permit }: Proposal) {
        self.commands.push(command);
        self.clients.0.push((outcome, permit));
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

/// The term in which the node with this number leads.
fn led_term(metrics: &RaftMetrics<u64, BasicNode>, id: u64) -> Option<u64> {
    (metrics.current_leader == Some(id)).then_some(metrics.current_term)
}

/// Waits until the state has all entries of the log, and returns the last one. `None` if the node with this number is no longer the leader of this term.
async fn all_applied(raft: &Raft<Map>, id: u64, term: u64) -> Option<Option<u64>> {
    let mut metrics = raft.metrics();
    loop {
        {
            let metrics = metrics.borrow_and_update();
            if led_term(&metrics, id) != Some(term) {
                return None;
            }
            if metrics.last_applied.map(|id| id.index) >= metrics.last_log_index {
                return Some(metrics.last_log_index);
            }
        }
        metrics.changed().await.ok()?;
    }
}

/// The writes that wait, up to a length, for which there is room. A write that its client has given up is not executed: without a majority, clients repeat
/// theirs.
fn gather(first: Proposal, writes: &mut mpsc::Receiver<Proposal>, admission: &mut Admission) -> Gathered {
    let mut gathered = Gathered::default();
    let (mut entry_bytes, mut next) = (0, Some(first));
    while let Some(proposal) = next.take() {
        let with_command = entry_bytes + proposal.command.encoded_bytes();
        if proposal.outcome.is_closed() {
            // Dropped.
        } else if with_command > ENTRY_BYTES && !gathered.commands.is_empty() {
            gathered.next = Some(proposal);
            break;
        } else {
            match admission.admit(&proposal.command, with_command) {
                Admitted::Yes => {
                    entry_bytes = with_command;
                    gathered.push(proposal);
                }
                Admitted::No(reason) => {
                    drop(proposal.outcome.send(Outcome::NotExecuted(reason)));
                }
                Admitted::Unclear => {
                    (gathered.next, gathered.is_unclear) = (Some(proposal), true);
                    break;
                }
            }
        }
        if gathered.commands.len() < COMMANDS {
            next = writes.try_recv().ok();
        }
    }
    if !gathered.commands.is_empty() {
        admission.end_entry();
    }
    gathered
}

#[cfg(test)]
mod tests {
    use super::super::admission::RoomOf;
    use super::*;
    use crate::program::Condition;
    use pm_btree::{Store, StoreOptions};
    use pm_core::Region;
    use pm_openraft::Storage;
    use std::future::ready;

    /// Writes that wait, and their clients' ends.
    struct Waiting {
        sender: mpsc::Sender<Proposal>,
        writes: mpsc::Receiver<Proposal>,
        memory: Arc<Semaphore>,
        outcomes: Vec<oneshot::Receiver<Outcome>>,
    }

    impl Waiting {
        fn new(commands: impl IntoIterator<Item = Command>) -> Self {
            let (sender, writes) = mpsc::channel(1000);
            let mut waiting =
                Self { sender, writes, memory: Arc::new(Semaphore::new(1000)), outcomes: Vec::new() };
            commands.into_iter().for_each(|command| waiting.push(command));
            waiting
        }

        fn push(&mut self, command: Command) {
            let (outcome, answer) = oneshot::channel();
            let permit = Arc::clone(&self.memory).try_acquire_owned().unwrap();
            self.sender.try_send(Proposal { command, outcome, permit }).unwrap();
            self.outcomes.push(answer);
        }

        fn gather(&mut self, next: Option<Proposal>, admission: &mut Admission) -> Gathered {
            let first = next.unwrap_or_else(|| self.writes.try_recv().unwrap());
            gather(first, &mut self.writes, admission)
        }
    }

    async fn admission() -> Admission {
        let store = Store::format(Region::anonymous(16 << 20).unwrap(), &StoreOptions::new()).unwrap();
        let mut admission = Admission::new(Arc::new(Storage::open(store).unwrap()));
        admission.measure(1, ready(None)).await.unwrap();
        admission
    }

    fn set(key: u32, len: usize) -> Command {
        Command::Set { key: key.to_string().into_bytes(), value: vec![7; len], condition: Condition::Always }
    }

    /// What clients give up, for example because there is no majority, does not fill the store when there is one again.
    #[tokio::test]
    async fn writes_that_were_given_up_are_not_in_an_entry() {
        let mut waiting = Waiting::new((0..10_u8).map(|number| Command::Remove(vec![vec![number]])));
        let mut number = 0;
        waiting.outcomes.retain(|_| {
            number += 1;
            number % 3 == 0
        });
        let gathered = waiting.gather(None, &mut admission().await);
        assert_eq!(gathered.commands, [2_u8, 5, 8].map(|number| Command::Remove(vec![vec![number]])));
        assert_eq!(gathered.clients.0.len(), 3);
        assert_eq!(waiting.memory.available_permits(), 997, "they have no memory any more");
        drop(gathered);
        assert_eq!(waiting.memory.available_permits(), 1000);
    }

    /// A write that is too long for an entry is the first of the next one, and not lost.
    #[tokio::test]
    async fn writes_keep_their_order_over_entries() {
        let lengths = [200_000, 50_000, 20_000, 10, 250_000, 10, 255_000];
        let commands: Vec<_> = (0..).zip(lengths).map(|(key, len)| set(key, len)).collect();
        let mut waiting = Waiting::new(commands.clone());
        let (mut next, mut entries) = (None, Vec::new());
        let mut admission = admission().await;
        loop {
            let gathered = waiting.gather(next.take(), &mut admission);
            assert!(!gathered.is_unclear);
            entries.push(gathered.commands);
            next = gathered.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(entries.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2, 1]);
        assert_eq!(entries.concat(), commands);
    }

    /// A store that seems to be full is measured before a write is refused.
    #[tokio::test]
    async fn store_is_measured_before_a_write_is_refused() {
        let mut admission = admission().await;
        let mut waiting = Waiting::new((0..200).map(|key| set(key, 100_000)));
        let (mut next, mut count) = (None, 0);
        loop {
            let gathered = waiting.gather(next.take(), &mut admission);
            count += gathered.commands.len();
            next = gathered.next;
            if gathered.is_unclear {
                break;
            }
        }
        assert!((20..160).contains(&count), "{count}");
        assert!(waiting.outcomes.iter_mut().all(|outcome| outcome.try_recv().is_err()));
        // Nothing was written.
        admission.measure(1, ready(None)).await.unwrap();
        let gathered = waiting.gather(next, &mut admission);
        assert!(!gathered.is_unclear && gathered.commands[0] == set(u32::try_from(count).unwrap(), 100_000));
    }

    #[tokio::test]
    async fn full_store_takes_removals() {
        let store = Store::format(Region::anonymous(16 << 20).unwrap(), &StoreOptions::new()).unwrap();
        let table = store.table::<u64, &[u8]>("others").unwrap();
        let mut number = 0;
        while store.room(LONGEST_ENTRY_BYTES).unwrap().whole_bytes() > 2 << 20 {
            table.insert(number, &[7; 50_000]).unwrap();
            number += 1;
        }
        let mut admission = Admission::new(Arc::new(Storage::open(store).unwrap()));
        admission.measure(1, ready(None)).await.unwrap();
        let removal = Command::Remove(vec![vec![1]]);
        let register = Command::Register { id: 1, file: None };
        let mut waiting =
            Waiting::new([set(1, 100_000), set(2, 10), removal.clone(), set(3, 3000), register.clone()]);
        let (mut next, mut commands) = (None, Vec::new());
        loop {
            let gathered = waiting.gather(next.take(), &mut admission);
            commands.extend(gathered.commands);
            next = gathered.next;
            if next.is_none() {
                break;
            }
            admission.measure(1, ready(None)).await.unwrap();
        }
        assert_eq!(commands, [removal, register]);
        for refused in [0, 1, 3] {
            let outcome = waiting.outcomes[refused].try_recv();
            assert!(
                matches!(&outcome, Ok(Outcome::NotExecuted(reason)) if reason == "the store is full"),
                "{outcome:?}"
            );
        }
    }

    /// Followers with equal stores have the same writes, and can have less room for them.
    #[tokio::test]
    async fn follower_with_less_room_bounds_the_writes() {
        let mut admission = admission().await;
        let room = |whole_bytes| ready(Some(RoomOf { node: 3, whole_bytes }));
        for (whole_bytes, is_admitted) in [(2 << 20, false), (4 << 20, true), (u64::MAX, true)] {
            admission.measure(1, room(whole_bytes)).await.unwrap();
            let mut waiting = Waiting::new([set(1, 100_000)]);
            assert_eq!(waiting.gather(None, &mut admission).commands.len(), usize::from(is_admitted));
            let refused = Outcome::NotExecuted("the store is full at node 3".to_owned());
            assert_eq!(waiting.outcomes[0].try_recv().ok(), (!is_admitted).then_some(refused));
        }
    }
}
