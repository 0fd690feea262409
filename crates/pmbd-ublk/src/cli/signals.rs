//! The signals that end a server.

use miette::{Context as _, IntoDiagnostic as _};
use pmbd::ublk::{Shutdown, ShutdownHandle};
use tokio::signal::unix::{SignalKind, signal};

/// A wish to end, or an order.
pub(super) enum Stop {
    /// If no client uses the disk.
    Wish,
    /// In any case.
    Order,
}

/// The signals that end a server: INT and TERM wish, QUIT orders. HUP is caught and does nothing: a server outlives the
/// terminal that it was started from, and the file system on its device with it.
pub(super) struct Signals {
    hup: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
    term: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
}

impl Signals {
    /// Catches them from now on. In a runtime.
    pub(super) fn new() -> miette::Result<Self> {
        let catch = |kind| signal(kind).into_diagnostic().wrap_err("catching signals");
        Ok(Self {
            hup: catch(SignalKind::hangup())?,
            int: catch(SignalKind::interrupt())?,
            term: catch(SignalKind::terminate())?,
            quit: catch(SignalKind::quit())?,
        })
    }

    /// The next one that asks for the end.
    pub(super) async fn next(&mut self) -> Stop {
        loop {
            tokio::select! {
                _ = self.hup.recv() => {}
                _ = self.int.recv() => return Stop::Wish,
                _ = self.term.recv() => return Stop::Wish,
                _ = self.quit.recv() => return Stop::Order,
            }
        }
    }
}

/// Passes signals on to the serving thread until that has ended.
pub(super) async fn forward_signals(
    signals: &mut Signals,
    handle: &ShutdownHandle,
    mut ended: tokio::sync::oneshot::Receiver<()>,
) {
    loop {
        let how = tokio::select! {
            _ = &mut ended => return,
            stop = signals.next() => match stop {
                Stop::Wish => Shutdown::Remove,
                Stop::Order => Shutdown::RemoveForced,
            },
        };
        if !handle.request(how) {
            return;
        }
    }
}
