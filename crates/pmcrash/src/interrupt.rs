//! Signals that stop the command: its temporary files do not stay behind.

use miette::{IntoDiagnostic as _, WrapErr as _};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::fs;
use std::path::PathBuf;
use std::thread;

/// From now on, a signal that stops the process removes this folder first.
pub(crate) fn remove_when_stopped(dir: PathBuf) -> miette::Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).into_diagnostic().wrap_err("catching signals")?;
    thread::spawn(move || {
        for signal in &mut signals {
            // Twice, because the check may be writing an image between the listing and the removal. What then remains cannot be reported any more.
            for _ in 0..2 {
                drop(fs::remove_dir_all(&dir));
            }
            drop(emulate_default_handler(signal));
        }
    });
    Ok(())
}
