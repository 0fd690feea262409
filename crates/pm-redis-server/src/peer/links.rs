//! The links to the other nodes, which change with the members of the cluster.

use super::identity::Identity;
use super::link::Link;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::sleep;

/// The time between two looks at the connection to a node.
const MEETINGS: Duration = Duration::from_millis(200);

/// The links of a node.
pub(crate) struct Links {
    identity: Arc<Identity>,
    by_id: RwLock<BTreeMap<u64, Arc<Link>>>,
}

impl Links {
    pub(crate) fn new(identity: Arc<Identity>) -> Self {
        Self { identity, by_id: RwLock::default() }
    }

    /// The link to a node.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Link>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The links to all nodes.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Link>)> {
        let by_id = self.by_id.read().unwrap_or_else(PoisonError::into_inner);
        by_id.iter().map(|(id, link)| (*id, Arc::clone(link))).collect()
    }

    /// Keeps links to these nodes, and to no others. A node with another address than before has a new link.
    pub(crate) fn set<'n>(&self, nodes: impl Iterator<Item = (u64, &'n str)>) {
        let mut by_id = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *by_id);
        for (id, address) in nodes.filter(|(id, _)| *id != self.identity.id()) {
            let link = match before.remove(&id) {
                Some(link) if link.address() == address => link,
                _ => {
                    let link = Arc::new(Link::new(Arc::clone(&self.identity), id, address.to_owned()));
                    tokio::spawn(meet(Arc::downgrade(&link)));
                    link
                }
            };
            by_id.insert(id, link);
        }
    }
}

/// Meets a node again and again, as long as there is a link to it. Followers have nothing to say to each other, but one that has never met a node's file would
/// vote with an old copy of it.
async fn meet(link: std::sync::Weak<Link>) {
    while let Some(link) = link.upgrade() {
        // A refusal was printed, and a node that is away comes back.
        drop(link.meet().await);
        drop(link);
        sleep(MEETINGS).await;
    }
}
