//! `pmfs`: creates, mounts and checks file systems in persistent memory, and copies files into and out of them.

#![forbid(unsafe_code)]

mod copy;
mod front;
mod inspect;
mod map;
mod pool;

use clap::{Parser, Subcommand};
use front::Mounted;
use fuser::{Config, MountOption, SessionACL};
use miette::{Context as _, IntoDiagnostic as _, Result, miette};
use pm_alloc::HeapError;
use pm_cli_common::{Docs, Size, say};
use pm_core::{OpenError, Pmem as _, PoolError, RegionOptions};
use pm_fs::{Fs, FsError, FsOptions};
use pool::{at, close, open, open_with};
use rustix::mount::UnmountFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, OnceLock};
use std::thread;

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
    /// Mount a file system, and serve it until it is unmounted.
    Mount {
        /// The file.
        file: PathBuf,
        /// An empty directory.
        directory: PathBuf,
        /// The threads that serve requests.
        #[arg(long, value_name = "N", default_value_t = 2)]
        threads: usize,
        /// Fault in the whole file at the start, so that the first access to each page is as fast as later ones.
        #[arg(long)]
        populate: bool,
        /// Make each write atomic: after a crash all or none of what it overwrites is there.
        #[arg(long)]
        strict: bool,
    },
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
    /// Check that everything in a file system is accounted for. Exits with 1 if there are problems.
    Fsck {
        /// The file.
        file: PathBuf,
        /// Remove what is corrupted, and give files that have lost their names one in lost+found. Exits with 1 if there are problems afterwards.
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

fn main() -> Result<ExitCode> {
    let Arguments { json, action } = Arguments::parse();
    match action {
        Action::Mkfs { file, size, metadata_share } => mkfs(&file, size, metadata_share),
        Action::Mount { file, directory, threads, populate, strict } => {
            let options = FsOptions::new().strict(strict).region(RegionOptions::new().populate(populate));
            mount(&file, &directory, threads, &options, json)
        }
        Action::Umount { directory } => umount(&directory, false),
        Action::Info { file } => info(&file, json),
        Action::Fsck { file, repair } => fsck(&file, repair, json),
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

fn mkfs(file: &Path, size: Size, metadata_share: u32) -> Result<ExitCode> {
    let user = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let options = FsOptions::new().metadata_share(metadata_share).owner(user.0, user.1);
    let fs = Fs::create(file, size.0, &options).into_diagnostic().wrap_err_with(|| at(file))?;
    close(fs, file)?;
    Ok(ExitCode::SUCCESS)
}

fn mount(file: &Path, directory: &Path, threads: usize, options: &FsOptions, json: bool) -> Result<ExitCode> {
    // A server that was killed has left its mount, which answers no request but those that the kernel has cached. Processes may have files in it.
    if std::fs::read_dir(directory).is_err_and(|error| error.raw_os_error() == Some(ENOTCONN)) {
        umount(directory, true)?;
    }
    let fs = open_with(file, options)?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(file.display().to_string()),
        MountOption::Subtype("pmfs".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    config.acl = if rustix::process::getuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(threads.max(1));
    let fs = Arc::new(fs);
    let mounting = || format!("mounting {} at {}", file.display(), directory.display());
    let notifier = Arc::new(OnceLock::new());
    let mounted = Mounted::new(Arc::clone(&fs), Arc::clone(&notifier));
    let session = fuser::Session::new(mounted, directory, &config);
    let session = session.into_diagnostic().wrap_err_with(mounting)?;
    notifier.get_or_init(|| session.notifier());
    unmount_at_signals(directory)?;
    // A server outlives its terminal: it goes on if this cannot be printed.
    drop(match json {
        true => say(serde_json::json!({ "event": "mounted", "file": file, "directory": directory })),
        false => say(format_args!("{} is mounted at {}", file.display(), directory.display())),
    });
    let for_thread = (Arc::clone(&fs), file.to_path_buf());
    // Reads are served meanwhile, and changes wait.
    let preparing = thread::spawn(move || {
        let (fs, file) = for_thread;
        if let Err(error) = fs.prepare() {
            let file = file.display();
            warn(format_args!(
                "{file} is mounted read-only, run pmfs fsck, and keep a copy of the file: {error}"
            ));
        }
    });
    match session.run() {
        // The connection has ended while the kernel passed the last requests, to whose answers nothing waits.
        Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
        ended => ended.into_diagnostic()?,
    }
    drop(preparing.join());
    match Arc::into_inner(fs) {
        Some(fs) => close(fs, file)?,
        None => return Err(miette!("{} is still in use", file.display())),
    }
    Ok(ExitCode::SUCCESS)
}

/// Unmounts the directory at SIGTERM, SIGINT and SIGHUP, as `umount` does, and also while files in it are open: these are served until they are closed. A
/// second signal ends the server without that. Every call that has returned is durable, so the next mount has it.
fn unmount_at_signals(directory: &Path) -> Result<()> {
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP]).into_diagnostic().wrap_err("catching signals")?;
    let directory = directory.to_path_buf();
    thread::spawn(move || {
        let mut is_unmounting = false;
        for _ in signals.forever() {
            if is_unmounting {
                warn("a second signal: files that are still open are not served any more");
                std::process::exit(1);
            }
            match umount(&directory, true) {
                Ok(_) => is_unmounting = true,
                Err(error) => warn(format_args!("{error:?}")),
            }
        }
    });
    Ok(())
}

/// Prints a warning. The server goes on if that fails.
fn warn(message: impl std::fmt::Display) {
    drop(writeln!(std::io::stderr(), "{message}"));
}

/// "Transport endpoint is not connected": errno(3).
const ENOTCONN: i32 = rustix::io::Errno::NOTCONN.raw_os_error();

/// Unmounts a directory; `detaches` it at once even if files in it are open.
fn umount(directory: &Path, detaches: bool) -> Result<ExitCode> {
    // The system call needs root; fusermount3 is for other users.
    if rustix::process::getuid().is_root() {
        let flags = if detaches { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        let unmounted = rustix::mount::unmount(directory, flags);
        unmounted.into_diagnostic().wrap_err_with(|| at(directory))?;
        return Ok(ExitCode::SUCCESS);
    }
    let how = if detaches { "-uz" } else { "-u" };
    let status = Command::new("fusermount3").arg(how).arg(directory).status();
    let status = status.into_diagnostic().wrap_err("running fusermount3, of the package fuse3")?;
    if status.success() { Ok(ExitCode::SUCCESS) } else { Err(miette!("fusermount3 ended with {status}")) }
}

fn info(file: &Path, json: bool) -> Result<ExitCode> {
    let fs = open(file)?;
    let stats = fs.stats().into_diagnostic().wrap_err_with(|| at(file))?;
    let domain = fs.heap().pool().pmem().domain();
    close(fs, file)?;
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

/// Refuses a file that a repair would destroy, before it is opened for writing. A device-dax cannot be opened otherwise: its repair checks the same.
fn check_repairable(file: &Path) -> Result<()> {
    let scratch = FsOptions::new().region(RegionOptions::new().scratch().keep_pages(true));
    let fs = match Fs::open(file, &scratch) {
        Err(FsError::Heap(HeapError::Pool(PoolError::Region(OpenError::NoScratch { .. })))) => return Ok(()),
        fs => fs.into_diagnostic().wrap_err_with(|| at(file))?,
    };
    fs.check_repairable().map_err(|error| {
        let file = file.display();
        miette!(
            help = "keep a copy of the file as it is, and copy out what can be read: `pmfs cp {file} -r :/ DIRECTORY`; a file system in which a repair \
                does not know which blocks are in use is made anew from that",
            "{file}: nothing was stored: {error}"
        )
    })
}

fn fsck(file: &Path, repairs: bool, json: bool) -> Result<ExitCode> {
    if repairs {
        check_repairable(file)?;
    }
    let mut fs = open(file)?;
    let (report, repaired) = match repairs {
        true => {
            let done = fs.repair().into_diagnostic().wrap_err_with(|| at(file))?;
            (done.left, done.repaired)
        }
        false => (fs.check(), Vec::new()),
    };
    close(fs, file)?;
    let is_clean = report.problems.is_empty();
    if json {
        let report = serde_json::json!({
            "file": file, "inodes": report.inodes, "pages": report.pages, "problems": report.problems, "repaired": repaired,
        });
        say(report)?;
    } else {
        repaired.iter().try_for_each(|repaired| say(format_args!("repaired: {repaired}")))?;
        report.problems.iter().try_for_each(say)?;
        let result = if is_clean { "clean" } else { "corrupted" };
        let [files, pages] = [(report.inodes, "file"), (report.pages, "page")]
            .map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
        say(format_args!("{}: {files}, {pages}: {result}", file.display()))?;
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
