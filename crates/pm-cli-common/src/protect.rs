//! The options of servers that protect persistent memory from stray stores.

use crate::size::Size;
use clap::{Args, ValueEnum};
use miette::miette;
use pm_core::protection::{Method, Protection, StrayPolicy};
use std::time::Duration;

/// Protection from stray stores of the server itself.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Protection from stray stores")]
pub struct Protect {
    /// How stray stores are kept out: none, page-table, async, unmapped, private-map or pkey [default: none].
    #[arg(long, value_name = "METHOD")]
    protect: Option<Method>,
    /// Keep out stray loads too.
    #[arg(long, requires = "protect")]
    protect_reads: bool,
    /// page-table and async: the size of a window, a power of two; 2M for a file on huge pages [default: a page].
    #[arg(long, value_name = "SIZE", requires = "protect")]
    window: Option<Size>,
    /// async: the time after which pages are closed, in microseconds [default: 1000].
    #[arg(long, value_name = "US", requires = "protect")]
    protect_after: Option<u64>,
    /// What happens at a stray access, after a message [default: abort].
    #[arg(long, value_enum, requires = "protect")]
    on_stray: Option<OnStray>,
}

/// Names of [`StrayPolicy`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnStray {
    /// The server ends: clients of ublk wait for the next one, and a mount of pmfs answers with errors.
    Abort,
    /// The access is made, and its page stays open until the next write to it.
    Log,
}

impl Protect {
    /// With this method, unless the options choose one.
    #[must_use]
    pub fn or_method(mut self, method: Option<Method>) -> Self {
        self.protect = self.protect.or(method);
        self
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.protect.unwrap_or(Method::None)
    }

    /// Refuses options that the method has no use for.
    ///
    /// # Errors
    /// The options, and the methods that have a use for them.
    pub fn check(&self) -> miette::Result<()> {
        let method = self.method();
        let Self { protect_reads, window, protect_after, on_stray, .. } = self;
        let is_any = *protect_reads || window.is_some() || protect_after.is_some() || on_stray.is_some();
        if method == Method::None && is_any {
            return Err(miette!(
                help = "choose a method, as in --protect unmapped",
                "--protect-reads, --window, --protect-after and --on-stray have no effect with --protect none"
            ));
        }
        if window.is_some() && !matches!(method, Method::PageTable | Method::Async) {
            return Err(miette!("--window is for --protect page-table and async, and not {method}"));
        }
        if protect_after.is_some() && method != Method::Async {
            return Err(miette!("--protect-after is for --protect async, and not {method}"));
        }
        Ok(())
    }

    /// The protection.
    #[must_use]
    pub fn protection(&self) -> Protection {
        let policy = match self.on_stray {
            None | Some(OnStray::Abort) => StrayPolicy::Abort,
            Some(OnStray::Log) => StrayPolicy::LetThrough,
        };
        let protection = Protection::new(self.method()).guard_reads(self.protect_reads).on_stray(policy);
        // One that does not fit is refused as no power of two.
        let window_bytes = self.window.map_or(0, |Size(bytes)| usize::try_from(bytes).unwrap_or(usize::MAX));
        let protection = protection.window_bytes(window_bytes);
        match self.protect_after {
            Some(us) => protection.batch(Duration::from_micros(us)),
            None => protection,
        }
    }

    /// The options as they were given, for the operator; empty without protection.
    #[must_use]
    pub fn describe(&self) -> String {
        match (self.method(), self.protect_reads) {
            (Method::None, _) => String::new(),
            (method, false) => format!("by {method}, against stray stores"),
            (method, true) => format!("by {method}, against stray stores and loads"),
        }
    }
}
