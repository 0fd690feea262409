//! The options of `pmbd serve` that protect the disk from stray stores.

use clap::{Args, ValueEnum};
use miette::miette;
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
    #[arg(long, requires = "protect")]
    protect_reads: bool,
    /// page-table and async: the size of a window, a power of two; 2M for a disk on huge pages [default: a page].
    #[arg(long, value_name = "SIZE", requires = "protect")]
    window: Option<Size>,
    /// async: the time after which pages are closed, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 1000, requires = "protect")]
    protect_after: u64,
    /// What happens at a stray access, after a message.
    #[arg(long, value_enum, default_value_t = OnStray::Abort, requires = "protect")]
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
    /// Refuses options that the method has no use for.
    pub(super) fn check(&self) -> miette::Result<()> {
        let has_windows = matches!(self.protect, Method::PageTable | Method::Async);
        if self.protect == Method::None
            && (self.protect_reads || self.window.is_some() || matches!(self.on_stray, OnStray::Log))
        {
            return Err(miette!(
                help = "choose a method, as in --protect unmapped",
                "--protect-reads, --window and --on-stray have no effect with --protect none"
            ));
        }
        if self.window.is_some() && !has_windows {
            return Err(miette!("--window is for --protect page-table and async, and not {}", self.protect));
        }
        Ok(())
    }

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
