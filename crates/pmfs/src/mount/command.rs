//! The commands: `pmfs mount`, and the helper of mount(8).

use super::arguments::Mount;
use super::options::MountOptions;
use super::{background, server};
use miette::Result;
use pm_cli_common::{Emulation, Protect};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

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

/// `pmfs mount`
pub(crate) fn run(args: &Mount, json: bool) -> Result<ExitCode> {
    // Errors of the command line are found before a server is started.
    let options = args.mount_options()?;
    let memory = args.memory(&options)?;
    if !args.foreground && !args.in_background {
        return background::start(std::env::args_os().skip(1), false);
    }
    server::serve(args, options, &memory, json).map(|()| ExitCode::SUCCESS)
}

/// The helper of mount(8).
pub(crate) fn run_helper(args: Helper) -> Result<ExitCode> {
    let Helper { file, directory, options, fake, sloppy, verbose, .. } = args;
    let is_known = |option: &&str| !sloppy || MountOptions::default().add(option).is_ok();
    let known = |list: &String| list.split(',').filter(is_known).collect::<Vec<_>>().join(",");
    let options: Vec<String> = options.iter().map(known).collect();
    let lists = options.iter().flat_map(|list| ["-o", list]).map(OsString::from);
    let words = ["mount".into()].into_iter().chain(lists);
    let words: Vec<OsString> =
        words.chain(["--".into(), file.clone().into(), directory.clone().into()]).collect();
    let mount = Mount {
        file,
        directory,
        options,
        foreground: false,
        threads: None,
        populate: false,
        strict: false,
        in_background: false,
        protect: Protect::default(),
        emulation: Emulation::default(),
    };
    mount.memory(&mount.mount_options()?)?;
    if fake { Ok(ExitCode::SUCCESS) } else { background::start(words, !verbose) }
}
