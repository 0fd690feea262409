//! The options of `pmbd serve` that choose how writes are stored.

use clap::{Args, ValueEnum};
use miette::{IntoDiagnostic as _, miette};
use pm_core::RegionOptions;
use pm_core::insn::FlushInsn;
use pmbd::{WritePolicy, WriteScheme};

/// How writes are stored and made durable.
#[derive(Debug, Args)]
#[command(next_help_heading = "Writes")]
pub(crate) struct Writes {
    /// How writes reach the medium.
    #[arg(long, value_enum, default_value_t = Scheme::Movnt)]
    scheme: Scheme,
    /// Store only the lines that change. PMBD's `subupdate`.
    #[arg(long)]
    subupdate: bool,
    /// Read back each write, and fail it if other bytes are found. PMBD's `wrverify`.
    #[arg(long)]
    wrverify: bool,
}

/// Names of [`WriteScheme`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scheme {
    /// Non-temporal stores and a fence.
    Movnt,
    /// Stores, a write-back of each line by --flush or the best instruction of this CPU, and a fence.
    Clwb,
    /// Stores, a write-back of each line by clflush, and a fence.
    Clflush,
    /// Stores alone. Flush and FUA write back: the device reports a write-back cache. Not with --raw.
    Deferred,
}

impl Writes {
    /// Refuses an instruction that the scheme does not use.
    pub(super) fn check(&self, flush: Option<FlushInsn>) -> miette::Result<()> {
        match (self.scheme, flush) {
            (Scheme::Clflush, Some(flush)) if flush != FlushInsn::Clflush => Err(miette!(
                help = "--scheme clwb uses the instruction of --flush",
                "--scheme clflush writes back by clflush, and not by the instruction of --flush"
            )),
            _ => Ok(()),
        }
    }

    /// The policy of the engine.
    pub(super) fn policy(&self) -> WritePolicy {
        let scheme = match self.scheme {
            Scheme::Movnt => WriteScheme::NonTemporal,
            Scheme::Clwb | Scheme::Clflush => WriteScheme::WriteBack,
            Scheme::Deferred => WriteScheme::Deferred,
        };
        WritePolicy { scheme, only_changed: self.subupdate, verify: self.wrverify }
    }

    /// The region with the scheme's flush instruction.
    ///
    /// # Errors
    /// When the CPU lacks it.
    pub(super) fn region(&self, region: RegionOptions) -> miette::Result<RegionOptions> {
        match self.scheme {
            Scheme::Clflush => region.flush_insn(FlushInsn::Clflush).into_diagnostic(),
            _ => Ok(region),
        }
    }

    /// The options as they were given, for the operator; empty for the defaults.
    pub(super) fn describe(&self) -> String {
        let scheme = match self.scheme {
            Scheme::Movnt => None,
            Scheme::Clwb => Some("through the cache, written back before they complete"),
            Scheme::Clflush => Some("through the cache, written back by clflush before they complete"),
            Scheme::Deferred => Some("through the cache, written back by Flush and FUA"),
        };
        let parts = [
            scheme,
            self.subupdate.then_some("only lines that change"),
            self.wrverify.then_some("read back and compared"),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}
