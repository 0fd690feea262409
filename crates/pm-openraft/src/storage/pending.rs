//! Purges that wait for a snapshot to be installed.

use super::queue::Done;
use crate::error::StorageError;
use openraft::LogId;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Purges that wait for a snapshot to be installed.
///
/// openraft purges the log up to a snapshot while its worker still installs it. A crash between the two would leave neither the entries nor the state
/// that includes them: entries that this node has acknowledged. So such a purge follows the switch.
#[derive(Debug, Default)]
pub(crate) struct PendingPurges(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    /// A snapshot is received, and not installed yet.
    is_receiving: bool,
    /// The state machines, one of which will install it.
    machines: usize,
    purges: Vec<(LogId<u64>, Done)>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("purges", &self.purges.len()).finish_non_exhaustive()
    }
}

impl PendingPurges {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a state machine.
    pub(crate) fn machine_starts(&self) {
        self.lock().machines += 1;
    }

    /// A state machine ends. What waits for the last one waits in vain.
    pub(crate) fn machine_ends(&self) {
        let mut pending = self.lock();
        pending.machines -= 1;
        if pending.machines == 0 {
            drop(pending);
            self.fail(&StorageError::Closed);
        }
    }

    /// A snapshot is received from now on.
    pub(crate) fn start(&self) {
        self.lock().is_receiving = true;
    }

    /// Keeps a purge until the switch. Returns its function if it need not wait. `is_applied` is asked under the lock, so that a switch meanwhile is seen
    /// or sees the purge.
    pub(crate) fn keep(
        &self,
        id: LogId<u64>,
        done: Done,
        is_applied: impl FnOnce() -> bool,
    ) -> Result<(), Done> {
        let mut pending = self.lock();
        if !pending.is_receiving || is_applied() {
            return Err(done);
        }
        if pending.machines == 0 {
            drop(pending);
            done(Err(StorageError::Closed));
            return Ok(());
        }
        pending.purges.push((id, done));
        Ok(())
    }

    /// The switch is durable: returns what has waited for it.
    pub(crate) fn end(&self) -> Vec<(LogId<u64>, Done)> {
        let mut pending = self.lock();
        pending.is_receiving = false;
        std::mem::take(&mut pending.purges)
    }

    /// The snapshot is not installed: purges that have waited fail.
    pub(crate) fn fail(&self, error: &StorageError) {
        let purges = std::mem::take(&mut self.lock().purges);
        for (_, done) in purges {
            done(Err(error.clone()));
        }
    }
}
