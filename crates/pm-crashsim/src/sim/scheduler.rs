//! The scheduler of threads: selects the next thread, and identifies the current one.

/// A scheduler, with the object that its threads synchronise on.
#[derive(Clone, Debug, Default)]
pub(crate) enum Scheduler {
    /// The operating system's.
    #[default]
    Std,
    /// One execution of loom. Each access to the region is also an access to this atomic.
    #[cfg(feature = "loom")]
    Loom(std::sync::Arc<::loom::sync::atomic::AtomicUsize>),
    /// One execution of shuttle; likewise.
    #[cfg(feature = "shuttle")]
    Shuttle(std::sync::Arc<::shuttle::sync::atomic::AtomicUsize>),
}

/// The identity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadKey {
    Std(std::thread::ThreadId),
    #[cfg(feature = "loom")]
    Loom(::loom::thread::ThreadId),
    #[cfg(feature = "shuttle")]
    Shuttle(::shuttle::thread::ThreadId),
}

impl Scheduler {
    /// For the execution of loom that runs now.
    #[cfg(feature = "loom")]
    pub(crate) fn loom() -> Self {
        Self::Loom(std::sync::Arc::new(::loom::sync::atomic::AtomicUsize::new(0)))
    }

    /// For the execution of shuttle that runs now.
    #[cfg(feature = "shuttle")]
    pub(crate) fn shuttle() -> Self {
        Self::Shuttle(std::sync::Arc::new(::shuttle::sync::atomic::AtomicUsize::new(0)))
    }

    /// Lets other threads run before the next access.
    ///
    /// Every two accesses of different threads are tried in both orders, even if they are to different lines: a store before another thread's fence
    /// can be durable while the data that the fence waits for is not yet; a store after it can not. Loads would commute, but a read-modify-write is
    /// the only access to an atomic of which loom keeps all orders: of a store after several loads, it compares the store with the last of them only.
    pub(crate) fn switch(&self) {
        match self {
            Self::Std => {}
            #[cfg(feature = "loom")]
            Self::Loom(accesses) => {
                accesses.fetch_add(1, ::loom::sync::atomic::Ordering::AcqRel);
            }
            #[cfg(feature = "shuttle")]
            Self::Shuttle(accesses) => {
                accesses.fetch_add(1, ::shuttle::sync::atomic::Ordering::SeqCst);
            }
        }
    }

    /// The calling thread.
    pub(crate) fn current_thread(&self) -> ThreadKey {
        match self {
            Self::Std => ThreadKey::Std(std::thread::current().id()),
            #[cfg(feature = "loom")]
            Self::Loom(_) => ThreadKey::Loom(::loom::thread::current().id()),
            #[cfg(feature = "shuttle")]
            Self::Shuttle(_) => ThreadKey::Shuttle(::shuttle::thread::current().id()),
        }
    }
}
