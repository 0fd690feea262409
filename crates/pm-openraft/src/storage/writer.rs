//! The thread that commits what waits.

use super::core::Core;
use crate::program::Program;
use pm_core::Pmem;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Closes the queue when the thread ends, by a panic, too: a write that no thread commits would wait for ever.
struct Closes<C: Program, P: Pmem + Send + Sync + 'static>(Arc<Core<C, P>>);

impl<C: Program, P: Pmem + Send + Sync + 'static> Drop for Closes<C, P> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The thread that commits what waits. Ends when this is dropped, after the last commit.
pub(crate) struct Writer<C: Program, P: Pmem + Send + Sync + 'static> {
    core: Arc<Core<C, P>>,
    thread: Option<JoinHandle<()>>,
}

impl<C: Program, P: Pmem + Send + Sync + 'static> Writer<C, P> {
    pub(crate) fn start(core: Arc<Core<C, P>>) -> Self {
        let shared = Arc::clone(&core);
        let thread = thread::spawn(move || {
            let closes = Closes(shared);
            while closes.0.queue().wait() {
                closes.0.drain();
            }
        });
        Self { core, thread: Some(thread) }
    }

    /// Writes wait until they are drained.
    pub(crate) const fn without_thread(core: Arc<Core<C, P>>) -> Self {
        Self { core, thread: None }
    }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> Drop for Writer<C, P> {
    fn drop(&mut self) {
        if self.thread.is_none() {
            self.core.close();
        }
        self.core.queue().close();
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
