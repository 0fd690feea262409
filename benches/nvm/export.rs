//! A file in memory, exported by FUSE, whose requests complete when a model of a device says so; and a loop device on it.
//!
//! The kernel keeps many requests in flight, and no thread waits for one of them. So this is the path for devices of long latency and
//! for many requests at the same time.

use crate::files;
use crate::supervisor::mount_point;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request as FuseRequest, Session, WriteFlags,
};
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_bench::nvm::deadlines::Deadlines;
use pm_bench::nvm::device::{Counts, Device, Kind, Request};
use pm_bench::nvm::journal::{Journal, Left};
use pm_bench::nvm::technology::Technology;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use xtask::{apt, process};

const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// What the kernel knows of the file never changes.
const FOREVER: Duration = Duration::from_secs(86_400);
/// More than the 16 requests that loads have in flight.
const MOST_IN_FLIGHT: u16 = 64;

/// The times that the path itself takes, in nanoseconds, by which requests complete earlier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lead {
    pub(crate) read_ns: u64,
    pub(crate) write_ns: u64,
    pub(crate) flush_ns: u64,
}

/// The block device. The journal takes it down; the server ends with it.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) device: PathBuf,
    shared: Arc<Mutex<Served>>,
    _session: BackgroundSession,
}

/// What is served at the moment.
#[derive(Debug)]
struct Served {
    device: Option<Device>,
    lead: Lead,
    begin: Instant,
}

#[derive(Debug)]
struct Server {
    memory: Mutex<Vec<u8>>,
    bytes: u64,
    shared: Arc<Mutex<Served>>,
    deadlines: Deadlines<Reply>,
}

#[derive(Debug)]
enum Reply {
    Read(ReplyData, Vec<u8>),
    Written(ReplyWrite, u32),
    Flushed(ReplyEmpty),
}

impl Export {
    /// Why there can be none, if so.
    pub(crate) fn missing() -> Option<String> {
        if !apt::is_root() {
            return Some("needs root, for block devices".into());
        }
        let drivers = [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")];
        let missing = drivers.into_iter().find(|(path, module)| !files::has_driver(path, module));
        missing.map(|(_, module)| format!("the kernel has no {module} devices"))
    }

    /// Serves a file of this length.
    pub(crate) fn add(journal: &mut Journal, bytes: u64) -> Result<Self> {
        let length = usize::try_from(bytes).into_diagnostic()?;
        let served = Served { device: None, lead: Lead::default(), begin: Instant::now() };
        let shared = Arc::new(Mutex::new(served));
        let server = Server {
            memory: Mutex::new(vec![0; length]),
            bytes,
            shared: Arc::clone(&shared),
            deadlines: Deadlines::new(Reply::send).into_diagnostic()?,
        };
        let at = mount_point("fuse");
        journal.add(Left::Mount(at.clone())).into_diagnostic()?;
        fs::create_dir_all(&at).into_diagnostic().wrap_err_with(|| at.display().to_string())?;
        let session = Session::new(server, &at, &Config::default()).and_then(Session::spawn);
        let session = session.into_diagnostic().wrap_err("cannot mount by FUSE")?;
        let file = at.join(NAME);
        journal.add(Left::Loop(file.clone())).into_diagnostic()?;
        let mut losetup = Command::new("losetup");
        let device = process::output(losetup.args(["--direct-io=on", "--show", "--find"]).arg(&file))?;
        Ok(Self { device: Path::new(device.trim()).to_owned(), shared, _session: session })
    }

    /// Serves as a device of this technology from now on; without one, as fast as possible. Nothing may be in flight.
    pub(crate) fn serve_as(&self, technology: Option<&Technology>, lead: Lead) {
        let device = technology.map(Device::new);
        *lock(&self.shared) = Served { device, lead, begin: Instant::now() };
    }

    /// The requests since it serves as this technology.
    pub(crate) fn counts(&self) -> Counts {
        lock(&self.shared).device.as_ref().map(Device::counts).unwrap_or_default()
    }
}

impl Server {
    /// The time at which a request that has arrived now is due.
    fn due(&self, request: Request) -> Instant {
        let mut served = lock(&self.shared);
        let now = served.begin.elapsed();
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let lead_ns = match request.kind {
            Kind::Read => served.lead.read_ns,
            Kind::Write => served.lead.write_ns,
            Kind::Flush => served.lead.flush_ns,
        };
        let done = served.device.as_mut().map_or(now_ns, |device| device.submit(now_ns, request));
        served.begin + Duration::from_nanos(done.saturating_sub(lead_ns))
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino == FILE;
        FileAttr {
            ino,
            size: if is_file { self.bytes } else { 0 },
            blocks: if is_file { self.bytes / 512 } else { 0 },
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// The part of the memory that a request is about, if there is such a part.
    fn range(&self, offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let begin = usize::try_from(offset).ok()?;
        let end = begin.checked_add(len)?;
        (u64::try_from(end).ok()? <= self.bytes).then_some(begin..end)
    }
}

impl Reply {
    fn send(self) {
        match self {
            Self::Read(reply, data) => reply.data(&data),
            Self::Written(reply, len) => reply.written(len),
            Self::Flushed(reply) => reply.ok(),
        }
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &FuseRequest, config: &mut KernelConfig) -> io::Result<()> {
        // The loop device's requests are asynchronous only with this.
        config
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
            .map_err(|_| io::Error::other("the kernel's FUSE has no asynchronous direct I/O"))?;
        let limits =
            [config.set_max_background(MOST_IN_FLIGHT), config.set_congestion_threshold(MOST_IN_FLIGHT)];
        if limits.iter().any(Result::is_err) {
            return Err(io::Error::other(format!("{MOST_IN_FLIGHT} FUSE requests cannot be in flight")));
        }
        Ok(())
    }

    fn lookup(&self, _: &FuseRequest, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&FOREVER, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &FuseRequest, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(ino));
    }

    fn open(&self, _: &FuseRequest, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Without a page cache, and writes do not wait for each other.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &FuseRequest,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let due = self.due(Request { kind: Kind::Read, offset, bytes: size.into() });
        match usize::try_from(size).ok().and_then(|size| self.range(offset, size)) {
            Some(range) => {
                let data = lock(&self.memory)[range].to_vec();
                self.deadlines.push(due, Reply::Read(reply, data));
            }
            None => reply.error(Errno::EINVAL),
        }
    }

    fn write(
        &self,
        _: &FuseRequest,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some((range, len)) = self.range(offset, data.len()).zip(u32::try_from(data.len()).ok()) else {
            reply.error(Errno::ENOSPC);
            return;
        };
        let due = self.due(Request { kind: Kind::Write, offset, bytes: len.into() });
        lock(&self.memory)[range].copy_from_slice(data);
        self.deadlines.push(due, Reply::Written(reply, len));
    }

    fn fsync(&self, _: &FuseRequest, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let due = self.due(Request { kind: Kind::Flush, offset: 0, bytes: 0 });
        self.deadlines.push(due, Reply::Flushed(reply));
    }

    /// A close, which says nothing about durability.
    fn flush(&self, _: &FuseRequest, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
