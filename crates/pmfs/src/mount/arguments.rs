//! The arguments of `pmfs mount`.

use super::options::MountOptions;
use miette::{IntoDiagnostic as _, Result, miette};
use pm_cli_common::{Emulation, Protect};
use pm_core::emulation::Speed;
use pm_core::protection::Method;
use std::path::PathBuf;

/// Arguments of `pmfs mount`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Options of -o: ro, noexec, dev, suid (the default is rw, exec, nodev, nosuid), allow_other, strict, populate, threads=N, \
    protect=METHOD, nonempty. Those that mount(8) knows and that change nothing here, such as noatime, are accepted.\n\n\
    As a line of /etc/fstab, with a link from /usr/sbin/mount.fuse.pmfs to pmfs:\n\n    \
    /srv/files.pm  /mnt/files  fuse.pmfs  noatime,nofail  0  0"
)]
pub(crate) struct Mount {
    /// The file.
    pub(super) file: PathBuf,
    /// An empty directory.
    pub(super) directory: PathBuf,
    /// Options of the mount, separated by commas.
    #[arg(short, value_name = "OPTIONS")]
    pub(super) options: Vec<String>,
    /// Serve in the foreground. Without this, the command ends when the file system is mounted.
    #[arg(short, long)]
    pub(super) foreground: bool,
    /// The threads that serve requests; 2 by default.
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Fault in the whole file at the start, so that the first access to each page is as fast as later ones.
    #[arg(long)]
    pub(super) populate: bool,
    /// Make each write atomic: after a crash all or none of what it overwrites is there.
    #[arg(long)]
    pub(super) strict: bool,
    /// This is the server in the background.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub(super) in_background: bool,
    #[command(flatten)]
    pub(super) protect: Protect,
    #[command(flatten)]
    pub(super) emulation: Emulation,
}

/// What the options say about the memory that the file system is served from.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) protect: Protect,
    /// That of a slower memory to emulate.
    pub(super) speed: Option<Speed>,
    /// That memory, for the operator.
    emulation: String,
}

impl Mount {
    /// What the arguments say.
    pub(super) fn mount_options(&self) -> Result<MountOptions> {
        let mut options = MountOptions::default();
        for list in &self.options {
            options.add(list).map_err(|error| miette!("-o {list}: {error}"))?;
        }
        options.is_strict |= self.strict;
        options.populates |= self.populate;
        options.threads = self.threads.or(options.threads);
        Ok(options)
    }

    /// The memory to serve from. Refuses options without effect.
    pub(super) fn memory(&self, options: &MountOptions) -> Result<Memory> {
        let protect = self.protect.clone().or_method(options.protection);
        protect.check()?;
        if options.is_read_only && protect.method() != Method::None {
            return Err(miette!(
                help = "a read-only mount needs no --protect",
                "-o ro maps the file privately: no store reaches it, and --protect has no effect"
            ));
        }
        let speed = self.emulation.speed();
        speed.iter().try_for_each(Speed::check).into_diagnostic()?;
        Ok(Memory { protect, speed, emulation: self.emulation.describe() })
    }
}

impl Memory {
    /// Protection and emulation as they were given, for the operator; each `None` without its options.
    pub(super) fn describe(&self) -> [Option<String>; 2] {
        [self.protect.describe(), self.emulation.clone()].map(|how| Some(how).filter(|how| !how.is_empty()))
    }
}
