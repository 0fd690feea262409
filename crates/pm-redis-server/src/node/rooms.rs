//! The room in the stores of the other nodes. Equal contents can leave different rooms, so the leader asks.

use super::admission::{LONGEST_ENTRY_BYTES, RoomOf, store_bytes};
use crate::peer::{Body, Links, Request};
use crate::program::Map;
use openraft::Raft;
use pm_openraft::Storage;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

/// How long the others may take. One that does not answer lags, and its room is not known.
const ANSWER: Duration = Duration::from_millis(100);

/// How long one that did not answer is not asked again.
const SILENCE: Duration = Duration::from_secs(1);

/// How long an answer counts of a node that is silent after it.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The other nodes.
pub(super) struct Others {
    links: Arc<Links>,
    known: BTreeMap<u64, Known>,
}

/// What is known of a node.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The last answer.
    store: Option<(Instant, OtherStore)>,
    silent_since: Option<Instant>,
}

/// The length of another node's store, and of its room.
#[derive(Clone, Copy)]
struct OtherStore {
    store_bytes: u64,
    whole_bytes: u64,
}

impl Others {
    pub(super) const fn new(links: Arc<Links>) -> Self {
        Self { links, known: BTreeMap::new() }
    }

    /// The least room of them, when they have an entry in their states. Nodes with shorter stores than `store_bytes` are full before others, and end alone: they
    /// count only if the cluster has no majority without them. Of a node that does not answer, its last answer counts for some time.
    pub(super) async fn least(&mut self, index: Option<u64>, store_bytes: u64) -> Option<RoomOf> {
        let links = self.links.all();
        let majority = links.len().div_ceil(2);
        self.known.retain(|node, _| links.iter().any(|(id, _)| id == node));
        let mut calls = JoinSet::new();
        for (node, link) in links {
            let known = self.known.entry(node).or_default();
            if known.silent_since.is_some_and(|since| since.elapsed() < SILENCE) {
                continue;
            }
            calls.spawn(async move {
                let answer = timeout(ANSWER, link.call(&Request::Room { index })).await;
                (node, answer.ok().and_then(Result::ok).and_then(Result::ok))
            });
        }
        for (node, answer) in calls.join_all().await {
            let (known, now) = (self.known.entry(node).or_default(), Instant::now());
            match answer {
                Some(Body::Room { store_bytes, whole_bytes }) if whole_bytes <= store_bytes => {
                    *known = Known {
                        store: Some((now, OtherStore { store_bytes, whole_bytes })),
                        silent_since: None,
                    };
                }
                _ => known.silent_since = Some(now),
            }
        }
        let stores = self.known.iter().filter_map(|(node, known)| {
            let (at, store) = known.store?;
            (at.elapsed() < REMEMBERED).then_some((*node, store))
        });
        least(&stores.collect::<Vec<_>>(), store_bytes, majority)
    }
}

/// The least room of stores of at least this length; of all stores, if those are fewer than `majority`, which the leader needs besides itself.
fn least(stores: &[(u64, OtherStore)], store_bytes: u64, majority: usize) -> Option<RoomOf> {
    let is_long = |store: &OtherStore| store.store_bytes >= store_bytes;
    let counts_short = stores.iter().filter(|(_, store)| is_long(store)).count() < majority;
    let counted = stores.iter().filter(|(_, store)| counts_short || is_long(store));
    counted
        .map(|(node, store)| RoomOf { node: *node, whole_bytes: store.whole_bytes })
        .min_by_key(|room| room.whole_bytes)
}

/// The answer to the leader's question.
pub(super) async fn room_here(
    raft: &Raft<Map>,
    storage: &Arc<Storage<Map>>,
    index: Option<u64>,
) -> Result<Body, String> {
    let applied = raft.wait(Some(ANSWER)).applied_index_at_least(index, "the room").await;
    applied.map_err(|error| error.to_string())?;
    let storage = Arc::clone(storage);
    let room = spawn_blocking(move || {
        let room = storage.room(LONGEST_ENTRY_BYTES)?;
        Ok(Body::Room { store_bytes: store_bytes(&storage), whole_bytes: room.whole_bytes() })
    });
    match room.await {
        Ok(room) => room.map_err(|error: pm_openraft::StorageError| error.to_string()),
        Err(panic) => Err(panic.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with a short store does not end the writes, and two of them do not end the cluster.
    #[test]
    fn short_stores_count_for_a_majority() {
        let store = |node, store_bytes, whole_bytes| (node, OtherStore { store_bytes, whole_bytes });
        let least = |stores: &[_], majority| least(stores, 100, majority).map(|room| room.node);
        assert_eq!(least(&[store(2, 100, 50), store(3, 50, 0)], 1), Some(2));
        assert_eq!(least(&[store(2, 99, 50), store(3, 50, 20)], 1), Some(3));
        assert_eq!(least(&[store(2, 200, 60), store(3, 100, 50)], 1), Some(3));
        // One of two is no majority of five.
        assert_eq!(
            least(&[store(2, 100, 50), store(3, 50, 0), store(4, 50, 9), store(5, 60, 9)], 2),
            Some(3)
        );
        assert_eq!(least(&[store(2, 50, 0)], 1), Some(2));
        assert_eq!(least(&[], 1), None);
    }
}
