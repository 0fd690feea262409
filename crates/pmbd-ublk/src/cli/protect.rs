//! The options of `pmbd serve` that protect the disk from stray stores.

use clap::{Args, ValueEnum};
use pm_cli_common::Size;
use pm_core::protection::{Method, Protection, StrayPolicy};
use std::time::Duration;

/// Protection from stray stores of the server itself.
#[derive(Debug, Args)]
#[command(next_help_heading = "Protection from stray stores")]
pub(crate) struct Protect {
    /// How stray stores are kept out: none, page-table, async, unmapped, private-map or pkey.
    #[arg(long, value_name = "METHOD", default_value_t = Method::None)]
    protect: Method,
    /// Keep out stray loads too.
    #[arg(long)]
    protect_reads: bool,
    /// page-table and async: the size of a window, a power of two; 2M for a disk on huge pages [default: a page].
    #[arg(long, value_name = "SIZE")]
    window: Option<Size>,
    /// async: the time after which pages are closed, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 1000)]
    protect_after: u64,
    /// What happens at a stray access, after a message.
    #[arg(long, value_enum, default_value_t = OnStray::Abort)]
    on_stray: OnStray,
}

/// Names of [`StrayPolicy`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnStray {
    /// The server ends; clients of ublk wait for the next one.
    Abort,
    /// The access is made, and its page stays open until the next write to it.
    Log,
}

impl Protect {
    /// The protection.
    pub(super) fn protection(&self) -> Protection {
        let policy = match self.on_stray {
            OnStray::Abort => StrayPolicy::Abort,
            OnStray::Log => StrayPolicy::LetThrough,
        };
        let protection = Protection::new(self.protect).guard_reads(self.protect_reads);
        // One that does not fit is refused as no power of two.
        let window_bytes = self.window.map_or(0, |Size(bytes)| usize::try_from(bytes).unwrap_or(usize::MAX));
        let protection = protection.window_bytes(window_bytes).on_stray(policy);
        protection.batch(Duration::from_micros(self.protect_after))
    }

    /// The options as they were given, for the operator; empty without protection.
    pub(super) fn describe(&self) -> String {
        match (self.protect, self.protect_reads) {
            (Method::None, _) => String::new(),
            (method, false) => format!("by {method}, against stray stores"),
            (method, true) => format!("by {method}, against stray stores and loads"),
        }
    }
}
