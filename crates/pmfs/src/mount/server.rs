//! The server of a mount, from the opening of the file to its close.

use super::arguments::{Memory, Mount};
use super::background;
use super::options::MountOptions;
use super::umount::umount;
use crate::front::Mounted;
use crate::pool::{at, close, open_over};
use crate::warning::warn;
use fuser::{Config, Session, SessionACL};
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail, miette};
use pm_cli_common::say;
use pm_core::emulation::Emulated;
use pm_core::protection::{Method, Protected};
use pm_core::{Pmem, Region, RegionOptions};
use pm_fs::{Fs, FsError, FsOptions};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::CString;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// The threads that serve requests, unless an option says otherwise.
const THREADS: usize = 2;
/// How long a server in the background waits for the preparation before it reports that it is ready, so that its warning is still on the terminal.
const PREPARATION: Duration = Duration::from_secs(1);

/// One type for every choice of emulation and protection. A speed that delays nothing reads the clock.
type Wrapped = Emulated<Protected<Region>>;

/// Mounts the file system in a file, and serves it until it is unmounted.
pub(super) fn serve(args: &Mount, options: MountOptions, memory: &Memory, json: bool) -> Result<()> {
    end_at_panics();
    // The server in the background leaves the directory that it was started in. A directory that a dead server has left cannot be looked at.
    let absolute = |path: &Path| std::path::absolute(path).into_diagnostic().wrap_err_with(|| at(path));
    let (file, directory) = match args.in_background {
        true => (absolute(&args.file)?, absolute(&args.directory)?),
        false => (args.file.clone(), args.directory.clone()),
    };
    if args.in_background {
        std::env::set_current_dir("/").into_diagnostic().wrap_err("/")?;
    }
    // A server that was killed has left its mount, which answers no request but those that the kernel has cached. Processes may have files in it.
    if std::fs::read_dir(&directory)
        .is_err_and(|error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
    {
        umount(&directory, true)?;
    }
    check_directory(&directory, options)?;
    let fs_options = FsOptions::new().strict(options.is_strict).read_only(options.is_read_only);
    let fs_options = fs_options.region(RegionOptions::new().populate(options.populates));
    let protection = memory.protect.protection();
    let server = Server { file, directory, options, json, in_background: args.in_background };
    if protection.method() == Method::None && memory.speed.is_none() {
        return server.run(open_over(&server.file, &fs_options, Ok)?, memory);
    }
    let fs = open_over(&server.file, &fs_options, |region| -> Result<Wrapped, FsError> {
        let protected = Protected::new(region, &protection)?;
        Ok(Emulated::new(protected, &memory.speed.unwrap_or_default())?)
    })?;
    server.run(fs, memory)
}

/// Ends the process at a panic of any of its threads, after the message. A thread that ended alone would leave requests without an answer, and later ones
/// to fewer threads, at last to none: processes in the mount would hang. Without the process, the kernel answers all of them with an error.
fn end_at_panics() {
    std::panic::set_hook(Box::new(|panic| {
        // The default hook would block for ever if nothing reads standard error.
        warn(format_args!("pmfs: {panic}"));
        std::process::abort();
    }));
}

/// The server of a mount.
struct Server {
    file: PathBuf,
    directory: PathBuf,
    options: MountOptions,
    json: bool,
    in_background: bool,
}

impl Server {
    /// Mounts the file system, and serves it until it is unmounted. `memory` is what it is served from.
    fn run<P: Pmem + Debug + Send + Sync + 'static>(&self, fs: Fs<P>, memory: &Memory) -> Result<()> {
        let Self { file, directory, options, in_background, .. } = self;
        let fs = Arc::new(fs);
        let notifier = Arc::new(OnceLock::new());
        let mounted = Mounted::new(Arc::clone(&fs), Arc::clone(&notifier));
        let session = mount(mounted, file, directory, *options)
            .wrap_err_with(|| format!("mounting {} at {}", file.display(), directory.display()))?;
        notifier.get_or_init(|| session.notifier());
        unmount_at_signals(directory)?;
        let for_thread = (Arc::clone(&fs), file.clone());
        let (prepared, is_prepared) = channel();
        // Reads are served meanwhile, and changes wait.
        let preparing = thread::spawn(move || {
            let (fs, file) = for_thread;
            if let Err(error) = fs.prepare() {
                let file = file.display();
                warn(format_args!(
                    "{file} is mounted read-only, run pmfs fsck, and keep a copy of the file: {error}"
                ));
            }
            // Unless that has taken too long.
            prepared.send(()).unwrap_or(());
        });
        if *in_background {
            is_prepared.recv_timeout(PREPARATION).unwrap_or(());
        }
        self.introduce(memory);
        if *in_background {
            background::detach()?;
        }
        match session.run() {
            // The connection has ended while the kernel passed the last requests, to whose answers nothing waits.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // The mount would answer nothing.
                drop(umount(directory, true));
                return Err(error).into_diagnostic();
            }
            Ok(()) => {}
        }
        drop(preparing.join());
        match Arc::into_inner(fs) {
            Some(fs) => close(fs, file),
            None => Err(miette!("{} is still in use", file.display())),
        }
    }

    /// Says what is mounted. A server outlives its terminal: it goes on if this cannot be printed.
    fn introduce(&self, memory: &Memory) {
        let Self { file, directory, json, .. } = self;
        let [protected, emulates] = memory.describe();
        drop(if *json {
            say(serde_json::json!({
                "event": "mounted", "file": file, "directory": directory, "protected": protected, "emulates": emulates,
            }))
        } else {
            let said = [("protected", protected), ("emulates", emulates)];
            let said = said.map(|(what, how)| how.map_or(String::new(), |how| format!("; {what} {how}")));
            say(format_args!("{} is mounted at {}{}", file.display(), directory.display(), said.concat()))
        });
    }
}

/// Refuses a directory that is none, or whose entries the mount would hide.
fn check_directory(directory: &Path, options: MountOptions) -> Result<()> {
    let found = std::fs::metadata(directory).into_diagnostic().wrap_err_with(|| at(directory))?;
    if !found.is_dir() {
        bail!("{} is no directory", directory.display());
    }
    // A directory of another user may be unreadable; what it has is then not known.
    let has_entries = std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
    if has_entries && !options.may_hide {
        bail!(
            help = "choose an empty directory; -o nonempty hides what is there",
            "{} is not empty",
            directory.display()
        );
    }
    Ok(())
}

/// Mounts the file system. Root does so by mount(2), with the type `fuse.pmfs`; other users need fusermount3.
fn mount<P: Pmem + Send + Sync + 'static>(
    mounted: Mounted<P>,
    file: &Path,
    directory: &Path,
    options: MountOptions,
) -> Result<Session<Mounted<P>>> {
    let user = rustix::process::getuid();
    let mut config = Config::default();
    config.n_threads = Some(options.threads.unwrap_or(THREADS).max(1));
    config.acl = if user.is_root() || options.allows_others { SessionACL::All } else { SessionACL::Owner };
    if !user.is_root() {
        config.mount_options = options.for_fusermount(file.display().to_string());
        return Session::new(mounted, directory, &config).into_diagnostic();
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let device: File = device.into_diagnostic().wrap_err("opening /dev/fuse")?;
    let mode = std::fs::metadata(directory).into_diagnostic()?.mode();
    let group = rustix::process::getgid();
    let data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    let data = CString::new(data).into_diagnostic()?;
    rustix::mount::mount(file, directory, "fuse.pmfs", options.flags(), data.as_c_str()).into_diagnostic()?;
    let acl = config.acl;
    Session::from_fd(mounted, OwnedFd::from(device), acl, config)
        .inspect_err(|_| {
            // The mount would answer nothing.
            drop(umount(directory, true));
        })
        .into_diagnostic()
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
                Ok(()) => is_unmounting = true,
                Err(error) => warn(format_args!("{error:?}")),
            }
        }
    });
    Ok(())
}
