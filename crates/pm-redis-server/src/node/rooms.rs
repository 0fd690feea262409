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

/// The other nodes.
pub(super) struct Others {
    links: Arc<Links>,
    /// Those that did not answer, and when.
    silent: BTreeMap<u64, Instant>,
}

impl Others {
    pub(super) const fn new(links: Arc<Links>) -> Self {
        Self { links, silent: BTreeMap::new() }
    }

    /// The least room of them, when they have an entry in their states. A node with a shorter store than `store_bytes` is full before others, and ends alone.
    pub(super) async fn least(&mut self, index: Option<u64>, store_bytes: u64) -> Option<RoomOf> {
        self.silent.retain(|_, since| since.elapsed() < SILENCE);
        let mut calls = JoinSet::new();
        for (node, link) in self.links.all() {
            if self.silent.contains_key(&node) {
                continue;
            }
            calls.spawn(async move {
                let answer = timeout(ANSWER, link.call(&Request::Room { index })).await;
                (node, answer.ok().and_then(Result::ok).and_then(Result::ok))
            });
        }
        let mut least: Option<RoomOf> = None;
        for (node, answer) in calls.join_all().await {
            match answer {
                Some(Body::Room { store_bytes: its, whole_bytes }) => {
                    if its >= store_bytes && least.is_none_or(|least| whole_bytes < least.whole_bytes) {
                        least = Some(RoomOf { node, whole_bytes });
                    }
                }
                _ => drop(self.silent.insert(node, Instant::now())),
            }
        }
        least
    }
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
