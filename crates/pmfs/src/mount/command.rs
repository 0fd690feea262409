//! The command: its arguments, also those of a helper of mount(8).

use super::options::MountOptions;
use super::{background, server};
use miette::{Result, miette};
use std::path::PathBuf;
use std::process::ExitCode;

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
    in_background: bool,
}

/// The arguments that mount(8) passes to `mount.fuse.pmfs`: `SOURCE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
#[derive(Debug, clap::Parser)]
#[command(name = "mount.fuse.pmfs", version, about = "Mounts a file system of pmfs, for mount(8)")]
pub(crate) struct Helper {
    /// The file.
    file: PathBuf,
    /// An empty directory.
    directory: PathBuf,
    /// Options of the mount, separated by commas.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Check the options, and do not mount.
    #[arg(short)]
    fake: bool,
    /// Accept options that are not known.
    #[arg(short)]
    sloppy: bool,
    /// Has no effect.
    #[arg(short)]
    no_mtab: bool,
    /// Say what is mounted.
    #[arg(short)]
    verbose: bool,
    /// Has no effect.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

impl Mount {
    /// What the arguments say.
    fn mount_options(&self) -> Result<MountOptions> {
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

/// `pmfs mount`
pub(crate) fn run(args: &Mount, json: bool) -> Result<ExitCode> {
    // Errors of the command line are found before a server is started.
    let options = args.mount_options()?;
    if !args.foreground && !args.in_background {
        return background::start(args, json, false);
    }
    server::serve(&args.file, &args.directory, options, json, args.in_background).map(|()| ExitCode::SUCCESS)
}

/// The helper of mount(8).
pub(crate) fn run_helper(args: Helper) -> Result<ExitCode> {
    let Helper { file, directory, options, fake, sloppy, verbose, .. } = args;
    let is_known = |option: &&str| !sloppy || MountOptions::default().add(option).is_ok();
    let known = |list: &String| list.split(',').filter(is_known).collect::<Vec<_>>().join(",");
    let mount = Mount {
        file,
        directory,
        options: options.iter().map(known).collect(),
        foreground: false,
        threads: None,
        populate: false,
        strict: false,
        in_background: false,
    };
    mount.mount_options()?;
    if fake { Ok(ExitCode::SUCCESS) } else { background::start(&mount, false, !verbose) }
}
