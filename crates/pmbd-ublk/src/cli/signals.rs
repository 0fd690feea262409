//! The signals that end a server.

use miette::{Context as _, IntoDiagnostic as _};
use tokio::signal::unix::{SignalKind, signal};

/// A request to end.
pub(super) enum Stop {
    /// If no client uses the disk.
    IfUnused,
    /// In any case.
    Force,
}

/// The signals that end a server: INT and TERM if it is unused, QUIT in any case. HUP is caught and ignored: a server outlives its terminal,
/// as does the file system on its device.
pub(super) struct Signals {
    hup: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
    term: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
}

impl Signals {
    /// Catches the signals from now on. Requires a runtime.
    pub(super) fn new() -> miette::Result<Self> {
        let catch = |kind| signal(kind).into_diagnostic().wrap_err("catching signals");
        Ok(Self {
            hup: catch(SignalKind::hangup())?,
            int: catch(SignalKind::interrupt())?,
            term: catch(SignalKind::terminate())?,
            quit: catch(SignalKind::quit())?,
        })
    }

    /// The next request to end.
    pub(super) async fn next(&mut self) -> Stop {
        loop {
            tokio::select! {
                _ = self.hup.recv() => {}
                _ = self.int.recv() => return Stop::IfUnused,
                _ = self.term.recv() => return Stop::IfUnused,
                _ = self.quit.recv() => return Stop::Force,
            }
        }
    }
}
