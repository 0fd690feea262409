//! `pmfs`: creates, mounts and checks file systems in persistent memory, and copies files into and out of them.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, reason = "an answer that cannot be written is an error")]

mod attribute_names;
mod copy;
mod front;
mod fsck;
mod inspect;
mod known_files;
mod long_calls;
mod map;
mod mount;
mod pool;
mod times;
mod warning;

use clap::{Parser, Subcommand};
use miette::{Context as _, IntoDiagnostic as _, Result};
use pm_cli_common::{Docs, Size, say};
use pm_core::{Pmem as _, RegionOptions};
use pm_fs::{Fs, FsOptions};
use pool::{at, at_file, close, open_read_only};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A POSIX file system in persistent memory: every call is durable when it returns.
#[derive(Debug, Parser)]
#[command(name = "pmfs", version, max_term_width = 100)]
struct Arguments {
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a file with an empty file system in it.
    Mkfs {
        /// The file.
        file: PathBuf,
        /// Its size.
        #[arg(long)]
        size: Size,
        /// The part of the file for metadata: one of so many.
        #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=256))]
        metadata_share: u32,
    },
    /// Mount a file system. The server goes on in the background until it is unmounted.
    Mount(mount::Mount),
    /// Unmount a file system.
    Umount {
        /// The directory.
        directory: PathBuf,
    },
    /// Show how large a file system is, and what is free.
    Info {
        /// The file.
        file: PathBuf,
    },
    /// Check that everything in a file system is accounted for. Exits with 3 if there are problems.
    Fsck {
        /// The file.
        file: PathBuf,
        /// Remove what is corrupted, and give files that have lost their names one in lost+found. Exits with 3 if there are problems afterwards.
        #[arg(long)]
        repair: bool,
    },
    /// Show which parts of a file system are in use, a character for each frame of 2 MiB or for several.
    Map {
        /// The file.
        file: PathBuf,
    },
    /// List a directory of a file system that is not mounted, or one file. Control characters are shown as `?` on a terminal.
    Ls(inspect::Ls),
    /// Print files of a file system that is not mounted.
    Cat(inspect::Cat),
    /// Copy files into a file system that is not mounted, or out of it.
    Cp(copy::Cp),
    #[command(flatten)]
    Docs(Docs),
}

/// The name with which mount(8) calls the command: see its manual page, "external helpers".
const HELPER: &str = "mount.fuse.pmfs";

fn main() -> Result<ExitCode> {
    let is_helper = |name: OsString| Path::new(&name).file_name().is_some_and(|name| name == HELPER);
    if std::env::args_os().next().is_some_and(is_helper) {
        return mount::run_helper(mount::Helper::parse());
    }
    match pm_cli_common::parse() {
        Ok(Arguments { json, action }) => pm_cli_common::end(run(action, json), json),
        Err(code) => Ok(code),
    }
}

fn run(action: Action, json: bool) -> Result<ExitCode> {
    match action {
        Action::Mkfs { file, size, metadata_share } => mkfs(&file, size, metadata_share, json),
        Action::Mount(args) => mount::run(&args, json),
        Action::Umount { directory } => mount::umount(&directory, false).map(|()| ExitCode::SUCCESS),
        Action::Info { file } => info(&file, json),
        Action::Fsck { file, repair } => fsck::run(&file, repair, json),
        Action::Map { file } => map::map(&file, json).map(|()| ExitCode::SUCCESS),
        Action::Ls(args) => inspect::ls(&args, json).map(|()| ExitCode::SUCCESS),
        Action::Cat(args) => inspect::cat(&args).map(|()| ExitCode::SUCCESS),
        Action::Cp(args) => copy::run(&args, json),
        Action::Docs(docs) => {
            docs.run(<Arguments as clap::CommandFactory>::command())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn mkfs(file: &Path, size: Size, metadata_share: u32, json: bool) -> Result<ExitCode> {
    let user = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let options = FsOptions::new().metadata_share(metadata_share).owner(user.0, user.1);
    let fs = Fs::create(file, size.0, &options).map_err(|error| at_file(file, error))?;
    close(fs, file)?;
    info(file, json)
}

fn info(file: &Path, json: bool) -> Result<ExitCode> {
    let fs = open_read_only(file)?;
    let stats = fs.prepare().and_then(|()| fs.stats()).map_err(|error| at_file(file, error))?;
    // That of scratch would be another.
    let region = RegionOptions::new().read_only().keep_pages(true).open(file);
    let domain = region.into_diagnostic().wrap_err_with(|| at(file))?.domain();
    let [all, free] = [stats.pages, stats.free_pages].map(|pages| pages * 4096);
    if json {
        let stats = serde_json::json!({
            "file": file, "data_bytes": all, "free_bytes": free, "metadata_bytes": stats.metadata_bytes,
            "domain": domain.name(),
        });
        say(stats)?;
    } else {
        let metadata = Size(stats.metadata_bytes);
        let (all, free) = (Size(all), Size(free));
        say(format_args!(
            "{}: {all:.1} for data, {free:.1} free; {metadata:.1} for metadata",
            file.display()
        ))?;
        say(format_args!("persistence domain {domain}: {}", domain.promise()))?;
    }
    Ok(ExitCode::SUCCESS)
}
