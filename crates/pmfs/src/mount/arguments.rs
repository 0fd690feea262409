//! The arguments of `pmfs mount`.

use super::options::MountOptions;
use miette::{Result, miette};
use std::path::PathBuf;

/// Arguments of `pmfs mount`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Options of -o: ro, noexec, dev, suid (the default is rw, exec, nodev, nosuid), allow_other, strict, populate, threads=N, nonempty. \
    Those that mount(8) knows and that change nothing here, such as noatime, are accepted.\n\n\
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
}
