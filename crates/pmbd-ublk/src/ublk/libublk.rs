//! The seam, filled by libublk 0.4. Nothing outside this file knows of that crate.
//!
//! Of libublk this uses the commands that add, recover and start a device, and a queue's ring and
//! descriptors. It does not use its `run_target`, which stops the device at the end and pins threads; its
//! executors, for a request from memory is done before another could be started; nor its state files, for the
//! driver itself keeps what recovery needs.

use super::request::Descriptor;
use super::spin::Spin;
use super::transport::{Device, QueueConfig, QueueEnd, QueueIo, Spec, TransportError};
use super::{Affinity, DeviceInfo};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder, UblkQueueAffinity};
use libublk::helpers::IoBuf;
use libublk::io::{BufDesc, BufDescList, UblkDev, UblkIOCtx, UblkQueue};
use libublk::{UblkError, UblkFlags, UblkIORes, with_task_io_ring_mut};
use libublk_rs_sys as sys;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::RawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl From<UblkError> for TransportError {
    fn from(error: UblkError) -> Self {
        match error {
            UblkError::UringIOError(code) | UblkError::OtherError(code) if code < 0 => {
                Self::Errno(Errno::from_raw_os_error(-code))
            }
            UblkError::IOError(e) => {
                Errno::from_io_error(&e).map_or(Self::Library(e.to_string()), Self::Errno)
            }
            other => Self::Library(other.to_string()),
        }
    }
}

/// libublk takes `EBUSY` for a success.
fn checked(answer: Result<i32, UblkError>) -> Result<(), TransportError> {
    match answer? {
        code if code < 0 => Err(TransportError::Errno(Errno::from_raw_os_error(-code))),
        _ => Ok(()),
    }
}

/// An empty state file of libublk's, for as long as a device is being opened for recovery.
///
/// libublk looks for the file, complains on standard error when there is none, and writes the file's contents
/// back later, wherever the name then leads to. An empty one silences it and keeps it from writing.
struct StateFile(Option<PathBuf>);

impl StateFile {
    /// Makes the file, if that can be done safely; if not, libublk complains, and nothing else is different.
    fn create(device_id: u32) -> Self {
        let path = PathBuf::from(UblkCtrl::run_dir()).join(format!("{device_id:04}.json"));
        let write = || -> std::io::Result<()> {
            if let Some(dir) = path.parent() {
                std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
            }
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            // Follows no link and overwrites nothing.
            File::create_new(&path)?.write_all(b"{}")
        };
        Self(write().is_ok().then_some(path))
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What stays behind is empty, and replaced by the next recovery.
            std::fs::remove_file(path).unwrap_or(());
        }
    }
}

/// A device by libublk. Its commands go over a ring of the thread that made it, and only there.
pub(super) struct Libublk {
    control: UblkCtrl,
    params: sys::ublk_params,
    /// There when this process is the device's server.
    io: Option<Arc<LibublkIo>>,
}

/// What its queues' threads share.
pub(super) struct LibublkIo {
    device: UblkDev,
}

impl Libublk {
    fn open(id: i32, spec: &Spec, flags: UblkFlags) -> Result<UblkCtrl, TransportError> {
        Ok(UblkCtrlBuilder::default()
            .name("pmbd")
            .id(id)
            .nr_queues(spec.queues)
            .depth(spec.depth)
            .io_buf_bytes(spec.max_io_bytes)
            .ctrl_flags(spec.features.bits())
            .ctrl_target_flags(spec.identity.mark())
            .dev_flags(flags)
            .build()?)
    }

    fn id_of(device_id: u32) -> Result<i32, TransportError> {
        i32::try_from(device_id).map_err(|_| TransportError::Errno(Errno::INVAL))
    }
}

impl Device for Libublk {
    type Io = LibublkIo;

    fn add(spec: &Spec) -> Result<Self, TransportError> {
        let id = spec.device_id.map_or(Ok(-1), Self::id_of)?;
        let control = Self::open(id, spec, UblkFlags::UBLK_DEV_F_ADD_DEV)?;
        // Otherwise the end of `control` would delete the device, and wait for it without a limit.
        control.disown();
        Ok(Self { control, params: spec.params, io: None })
    }

    fn waiting(device_id: u32, spec: &Spec) -> Result<Self, TransportError> {
        let id = Self::id_of(device_id)?;
        let _state = StateFile::create(device_id);
        let control = Self::open(id, spec, UblkFlags::UBLK_DEV_F_RECOVER_DEV)?;
        Ok(Self { control, params: spec.params, io: None })
    }

    fn begin_recovery(&self) -> Result<(), TransportError> {
        checked(self.control.start_user_recover())
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo::from(&self.control.dev_info())
    }

    fn cpus(&self, queue: u16, affinity: &Affinity) -> Result<Option<Vec<usize>>, TransportError> {
        match affinity {
            Affinity::Unpinned => Ok(None),
            Affinity::Cpus(cpus) => {
                Ok(cpus.get(usize::from(queue) % cpus.len().max(1)).map(|cpu| vec![*cpu]))
            }
            Affinity::Submitters => {
                let mut cpus = UblkQueueAffinity::new();
                checked(self.control.get_queue_affinity(queue.into(), &mut cpus))?;
                Ok(Some(cpus.to_bits_vec()))
            }
        }
    }

    fn attach(&mut self) -> Result<Arc<LibublkIo>, TransportError> {
        let params = self.params;
        let device = UblkDev::new(
            "pmbd".into(),
            |device| {
                device.tgt.dev_size = params.basic.dev_sectors << 9;
                device.tgt.params = params;
                Ok(())
            },
            &self.control,
        )?;
        let io = Arc::new(LibublkIo { device });
        self.io = Some(Arc::clone(&io));
        Ok(io)
    }

    fn start(&self) -> Result<(), TransportError> {
        let io = self.io.as_ref().ok_or(TransportError::Errno(Errno::INVAL))?;
        checked(self.control.start_dev(&io.device))
    }
}

impl QueueIo for LibublkIo {
    type Prepared = Vec<IoBuf<u8>>;

    fn prepare(depth: u16, max_io_bytes: u32) -> Result<Vec<IoBuf<u8>>, TransportError> {
        UblkCtrl::init_queue_thread();
        init_ring(depth)?;
        Ok((0..depth).map(|_| IoBuf::new(max_io_bytes as usize)).collect())
    }

    fn serve<H, R>(
        &self,
        config: &QueueConfig,
        mut buffers: Vec<IoBuf<u8>>,
        handler: H,
        ready: R,
    ) -> Result<QueueEnd, TransportError>
    where
        H: FnMut(Descriptor, &mut [u8]) -> i32,
        R: FnOnce(),
    {
        let queue = UblkQueue::new(config.queue, &self.device)?;
        // Gathered in the ring, which has room for all of them: the first turn hands them over in one system call.
        let queue = queue.submit_fetch_commands_unified(BufDescList::Slices(Some(&buffers)))?;
        let outcome = Loop { queue: &queue, handler, found: 0, arrived: None, leaving: false, failed: None }
            .run(config, &mut buffers, ready);
        if !matches!(outcome, Ok(QueueEnd::Stopped)) {
            // The driver has the tags still. It may copy a request's data into their buffers until the ring
            // goes, with this thread; and the queue's own end would wait for commands that only the ring's
            // end takes back.
            std::mem::forget(queue);
            std::mem::forget(buffers);
        }
        outcome
    }
}

/// Makes this thread's ring, with room for every tag and the order to leave.
///
/// A tag whose request comes in is announced by work that runs on this thread. By the flags it runs when this
/// thread enters the kernel, instead of interrupting it, and the ring shows that there is such work: what the
/// spinning looks for.
fn init_ring(depth: u16) -> Result<(), TransportError> {
    let entries = u32::from(depth) + 1;
    let ring: IoUring<squeue::Entry, cqueue::Entry> = IoUring::builder()
        .setup_cqsize(entries * 2)
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(entries)
        .map_err(UblkError::IOError)?;
    libublk::ublk_init_task_ring(|slot| {
        slot.set(RefCell::new(ring)).map_err(|_| UblkError::OtherError(-Errno::EXIST.raw_os_error()))
    })?;
    Ok(())
}

/// Marks the order to leave among the ring's completions.
const LEAVE: u32 = 1;

/// Asks the ring to report when `leave` becomes readable.
fn watch(queue: &UblkQueue<'_>, leave: RawFd) -> Result<(), TransportError> {
    const READABLE: u32 = 1; // POLLIN
    let entry = opcode::PollAdd::new(types::Fd(leave), READABLE)
        .build()
        .user_data(UblkIOCtx::build_user_data(0, LEAVE, 0, true));
    Ok(queue.ublk_submit_sqe_sync(entry)?)
}

/// More requests at a time than this are many.
const MANY: u32 = 2;

/// A queue being served.
struct Loop<'q, 'd, H> {
    queue: &'q UblkQueue<'d>,
    handler: H,
    /// Completions seen in this turn.
    found: u32,
    /// When the first of them was.
    arrived: Option<Instant>,
    leaving: bool,
    failed: Option<Errno>,
}

impl<H: FnMut(Descriptor, &mut [u8]) -> i32> Loop<'_, '_, H> {
    fn run(
        &mut self,
        config: &QueueConfig,
        buffers: &mut [IoBuf<u8>],
        ready: impl FnOnce(),
    ) -> Result<QueueEnd, TransportError> {
        watch(self.queue, config.leave)?;
        // A fetch that the driver does not take fails at once.
        if self.turn(buffers, 0)? {
            return Ok(QueueEnd::Stopped);
        }
        ready();
        let mut spin = Spin::new(config.spin);
        while !self.leaving {
            let idle_since = Instant::now();
            // A queue that finds many requests at a time is not short of them: handing over and waiting in
            // one system call is the cheaper way then.
            let looks = self.found <= MANY;
            if looks {
                look(spin.budget());
            }
            (self.found, self.arrived) = (0, None);
            if self.turn(buffers, 1)? {
                return Ok(QueueEnd::Stopped);
            }
            if let Some(arrived) = self.arrived.filter(|_| looks) {
                spin.learn(arrived.duration_since(idle_since));
            }
        }
        Ok(QueueEnd::Left)
    }

    /// Hands over what was completed, waits for at least `wait` completions, and serves each. Whether the
    /// driver has taken every tag back.
    fn turn(&mut self, buffers: &mut [IoBuf<u8>], wait: usize) -> Result<bool, TransportError> {
        let queue = self.queue;
        let served = queue.flush_and_wake_io_tasks(
            |user_data, completion, _| self.complete(user_data, completion, buffers),
            wait,
        );
        if let Some(errno) = self.failed {
            return Err(TransportError::Errno(errno));
        }
        match served {
            Ok(_) => Ok(false),
            Err(UblkError::QueueIsDown) => Ok(true),
            Err(UblkError::IOError(e)) if e.kind() == ErrorKind::Interrupted => Ok(false),
            Err(other) => Err(other.into()),
        }
    }

    /// One completion: a request to serve, the order to leave, or a tag taken back.
    #[inline]
    fn complete(&mut self, user_data: u64, completion: &cqueue::Entry, buffers: &mut [IoBuf<u8>]) {
        self.found += 1;
        self.arrived.get_or_insert_with(Instant::now);
        if user_data & libublk::UblkUringData::Target as u64 != 0 {
            self.leaving = true;
            return;
        }
        match completion.result() {
            0 => {}
            aborted if aborted == -Errno::NODEV.raw_os_error() => return,
            failed => {
                self.failed = Some(Errno::from_raw_os_error(failed.saturating_neg()));
                return;
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "a tag has 16 bits")]
        let tag = UblkIOCtx::user_data_to_tag(user_data) as u16;
        let buffer = &mut buffers[usize::from(tag)];
        let described = self.queue.get_iod(tag);
        let descriptor = Descriptor {
            op_flags: described.op_flags,
            sectors: described.nr_sectors,
            start_sector: described.start_sector,
        };
        let result = (self.handler)(descriptor, buffer.as_mut_slice());
        let outcome = self.queue.complete_io_cmd_unified(
            tag,
            BufDesc::Slice(buffer.as_slice()),
            Ok(UblkIORes::Result(result)),
        );
        if outcome.is_err() {
            self.failed = Some(Errno::INVAL);
        }
    }
}

/// Hands over what was completed, then looks for something to do for at most `budget`.
fn look(budget: Duration) {
    if budget.is_zero() {
        return;
    }
    with_task_io_ring_mut(|ring| {
        // An error shows again in the wait that follows, where it is dealt with.
        if ring.submit().is_err() {
            return;
        }
        let started = Instant::now();
        while ring.completion().is_empty() && !ring.submission().taskrun() && started.elapsed() < budget {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            // Whoever else wants this CPU, above all the submitter of the next request, goes first.
            std::thread::yield_now();
        }
    });
}
