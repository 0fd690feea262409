//! A queue and its ring: fetches requests, decodes each into a [`BlockOp`] for the engine, and commits the results.

use super::error::DriverError;
use crate::engine::{BlockError, BlockOp, Engine};
use crate::panics::AbortOnPanic;
use crate::polling::Polling;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use libublk::ctrl::UblkCtrl;
use libublk::helpers::IoBuf;
use libublk::io::{BufDesc, BufDescList, UblkDev, UblkIOCtx, UblkQueue};
use libublk::{UblkError, UblkIORes, with_task_io_ring_mut};
use libublk_rs_sys as sys;
use pm_core::Pmem;
use rustix::io::Errno;
use std::cell::RefCell;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The unit of every sector count in the descriptor, whatever the device's logical sector.
const SECTOR_BYTES: u64 = 512;

/// More requests at a time than this are many.
const MANY: u32 = 2;

/// Marks the order to leave among the ring's completions.
const LEAVE: u32 = 1;

/// How a queue's thread is to behave.
#[derive(Clone, Debug)]
pub(super) struct QueueConfig {
    /// The queue's number.
    pub(super) queue: u16,
    /// Its tags.
    pub(super) depth: u16,
    /// Longest read or write.
    pub(super) max_io_bytes: u32,
    /// The longest time to poll for the next request before sleeping.
    pub(super) spin: Duration,
    /// An eventfd: the thread leaves the queue when it becomes readable.
    pub(super) leave: RawFd,
}

/// How a queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueEnd {
    /// The driver aborted every tag: in general, the device was stopped.
    Stopped,
    /// The thread was dismissed.
    Left,
}

/// A queue that is ready to be served by the calling thread, before the device has a server.
pub(super) struct Queue {
    config: QueueConfig,
    buffers: Vec<IoBuf<u8>>,
}

impl Queue {
    /// Makes the calling thread's ring, and the buffers of the tags.
    pub(super) fn prepare(config: QueueConfig) -> Result<Self, DriverError> {
        UblkCtrl::init_queue_thread();
        init_ring(config.depth)?;
        let buffers = (0..config.depth).map(|_| IoBuf::new(config.max_io_bytes as usize)).collect();
        Ok(Self { config, buffers })
    }

    /// Serves the queue on the calling thread, which has prepared it, until its end. Sends `ready` when the driver has the tags.
    pub(super) fn serve<P: Pmem>(
        self,
        device: &UblkDev,
        engine: &Engine<P>,
        ready: &Sender<()>,
    ) -> Result<QueueEnd, DriverError> {
        let Self { config, mut buffers } = self;
        let queue = UblkQueue::new(config.queue, device)?;
        // Queued in the ring, which has room for all of them: the first turn submits them in one system call.
        let queue = queue.submit_fetch_commands_unified(BufDescList::Slices(Some(&buffers)))?;
        let mut served =
            Loop { queue: &queue, engine, found_count: 0, arrived: None, leaving: false, failed: None };
        // Before the queue is dropped, which would wait for commands that only the ring's end cancels.
        let _aborts = AbortOnPanic;
        let outcome = served.run(&config, &mut buffers, ready);
        if !matches!(outcome, Ok(QueueEnd::Stopped)) {
            // The driver still has the tags. It may copy a request's data into their buffers until the ring is closed, with this
            // thread; and dropping the queue would wait for commands that only the ring's end cancels.
            std::mem::forget(queue);
            std::mem::forget(buffers);
        }
        outcome
    }
}

/// A queue being served.
struct Loop<'q, 'd, P: Pmem> {
    queue: &'q UblkQueue<'d>,
    engine: &'q Engine<P>,
    /// The completions of this turn.
    found_count: u32,
    /// When the first of them arrived.
    arrived: Option<Instant>,
    leaving: bool,
    failed: Option<Errno>,
}

impl<P: Pmem> Loop<'_, '_, P> {
    fn run(
        &mut self,
        config: &QueueConfig,
        buffers: &mut [IoBuf<u8>],
        ready: &Sender<()>,
    ) -> Result<QueueEnd, DriverError> {
        watch(self.queue, config.leave)?;
        // A fetch that the driver refuses fails at once.
        if self.turn(buffers, 0)? {
            return Ok(QueueEnd::Stopped);
        }
        ready.send(()).unwrap_or(());
        let mut polling = Polling::new(config.spin);
        while !self.leaving {
            let idle_since = Instant::now();
            // With many requests at a time, submitting and waiting in one system call is cheaper.
            let polls = self.found_count <= MANY;
            if polls {
                poll(polling.budget());
            }
            (self.found_count, self.arrived) = (0, None);
            if self.turn(buffers, 1)? {
                return Ok(QueueEnd::Stopped);
            }
            if let Some(arrived) = self.arrived.filter(|_| polls) {
                polling.learn(arrived.duration_since(idle_since));
            }
        }
        Ok(QueueEnd::Left)
    }

    /// Submits the results, waits for at least `wait` completions, and serves each. Whether the driver has aborted every tag.
    fn turn(&mut self, buffers: &mut [IoBuf<u8>], wait: usize) -> Result<bool, DriverError> {
        let queue = self.queue;
        let served = queue.flush_and_wake_io_tasks(
            |user_data, completion, _| self.complete(user_data, completion, buffers),
            wait,
        );
        if let Some(errno) = self.failed {
            return Err(DriverError::Errno(errno));
        }
        match served {
            Ok(_) => Ok(false),
            Err(UblkError::QueueIsDown) => Ok(true),
            Err(UblkError::IOError(e)) if e.kind() == ErrorKind::Interrupted => Ok(false),
            Err(other) => Err(other.into()),
        }
    }

    /// Handles one completion: a request, the order to leave, or an aborted tag.
    #[inline]
    fn complete(&mut self, user_data: u64, completion: &cqueue::Entry, buffers: &mut [IoBuf<u8>]) {
        self.found_count += 1;
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
        let result = descriptor.execute(self.engine, buffer.as_mut_slice());
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

/// A request as the driver describes it. Every field is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    /// Operation in bits 0 to 7, flags above.
    op_flags: u32,
    /// Its length.
    sectors: u32,
    /// Its first sector.
    start_sector: u64,
}

impl Descriptor {
    /// The offset in the device, and the operation on the tag's `buffer`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an operation that was never offered, `EINVAL` for one that does not fit the buffer or the address space.
    fn decode<'a>(&self, buffer: &'a mut [u8]) -> Result<(u64, BlockOp<'a>), Errno> {
        let op = self.op_flags & 0xff;
        if op == sys::UBLK_IO_OP_FLUSH {
            // It has no range: the block layer sends flushes with a sector of all ones.
            return Ok((0, BlockOp::Flush));
        }
        let offset_bytes = self.start_sector.checked_mul(SECTOR_BYTES).ok_or(Errno::INVAL)?;
        let len_bytes = u64::from(self.sectors) * SECTOR_BYTES;
        let fua = self.op_flags & sys::UBLK_IO_F_FUA != 0;
        let data = |buffer: &'a mut [u8]| {
            let len = usize::try_from(len_bytes).map_err(|_| Errno::INVAL)?;
            buffer.get_mut(..len).ok_or(Errno::INVAL)
        };
        let op = match op {
            sys::UBLK_IO_OP_READ => BlockOp::Read { out: data(buffer)? },
            sys::UBLK_IO_OP_WRITE => BlockOp::Write { data: data(buffer)?, fua },
            sys::UBLK_IO_OP_DISCARD => BlockOp::Discard { len_bytes },
            sys::UBLK_IO_OP_WRITE_ZEROES => BlockOp::WriteZeroes { len_bytes, fua },
            _ => return Err(Errno::OPNOTSUPP),
        };
        Ok((offset_bytes, op))
    }

    /// Runs the request on `engine`. Returns the number of bytes moved, or a negative errno.
    #[inline]
    fn execute<P: Pmem>(&self, engine: &Engine<P>, buffer: &mut [u8]) -> i32 {
        let capacity = buffer.len();
        let done = self.decode(buffer).and_then(|(offset_bytes, op)| {
            let moved = match &op {
                BlockOp::Read { out } => out.len(),
                BlockOp::Write { data, .. } => data.len(),
                BlockOp::Flush | BlockOp::Discard { .. } | BlockOp::WriteZeroes { .. } => 0,
            };
            debug_assert!(moved <= capacity);
            engine.execute(offset_bytes, op).map_err(|e| errno_of(&e))?;
            // A buffer has at most 32 MiB, so this never saturates.
            Ok(i32::try_from(moved).unwrap_or(i32::MAX))
        });
        done.unwrap_or_else(|errno| -errno.raw_os_error())
    }
}

/// The answer to the block layer, which maps each to a status of its own and drops the details.
fn errno_of(error: &BlockError) -> Errno {
    match error {
        BlockError::OutOfRange { .. } | BlockError::Unaligned { .. } => Errno::INVAL,
        BlockError::ReadOnly => Errno::ROFS,
        BlockError::Medium(_)
        | BlockError::Fault { .. }
        | BlockError::Mismatch { .. }
        | BlockError::Discarded => Errno::IO,
    }
}

/// Makes this thread's ring, with room for every tag and the order to leave.
///
/// A request is announced by task work that runs on this thread. With these flags it runs when the thread enters the kernel, instead of
/// interrupting it, and the ring shows that such work is pending: this is what [`poll`] looks at.
fn init_ring(depth: u16) -> Result<(), DriverError> {
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

/// Makes the ring report when `leave` becomes readable.
fn watch(queue: &UblkQueue<'_>, leave: RawFd) -> Result<(), DriverError> {
    const READABLE: u32 = 1; // POLLIN
    let entry = opcode::PollAdd::new(types::Fd(leave), READABLE)
        .build()
        .user_data(UblkIOCtx::build_user_data(0, LEAVE, 0, true));
    Ok(queue.ublk_submit_sqe_sync(entry)?)
}

/// Submits the results, then polls for a completion for at most `budget`.
fn poll(budget: Duration) {
    if budget.is_zero() {
        return;
    }
    with_task_io_ring_mut(|ring| {
        // The wait that follows reports the error again.
        if ring.submit().is_err() {
            return;
        }
        let started = Instant::now();
        while ring.completion().is_empty() && !ring.submission().taskrun() && started.elapsed() < budget {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            // Other threads of this CPU go first, above all the submitter of the next request. crossbeam's `Backoff` yields too late.
            std::thread::yield_now();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Geometry, SectorSize};
    use pm_core::{Counting, Region};
    use proptest::prelude::*;

    const CAPACITY: u64 = 1 << 20;

    fn engine(sector: SectorSize) -> Engine<Counting<Region>> {
        let region = Counting::new(Region::anonymous(CAPACITY).unwrap());
        Engine::new(region, Geometry::new(0, CAPACITY, sector).unwrap()).unwrap()
    }

    fn run(
        engine: &Engine<Counting<Region>>,
        op_flags: u32,
        start_sector: u64,
        sectors: u32,
        buf: &mut [u8],
    ) -> i32 {
        Descriptor { op_flags, sectors, start_sector }.execute(engine, buf)
    }

    #[test]
    fn writes_are_read_back() {
        let engine = engine(SectorSize::B512);
        let mut buffer = vec![7; 8192];
        assert_eq!(run(&engine, sys::UBLK_IO_OP_WRITE, 8, 8, &mut buffer), 4096);
        buffer.fill(0);
        assert_eq!(run(&engine, sys::UBLK_IO_OP_READ, 7, 10, &mut buffer), 5120);
        assert!(buffer[..512].iter().all(|b| *b == 0));
        assert!(buffer[512..4608].iter().all(|b| *b == 7));
        assert!(buffer[4608..].iter().all(|b| *b == 0));
        for op in [sys::UBLK_IO_OP_DISCARD, sys::UBLK_IO_OP_WRITE_ZEROES | sys::UBLK_IO_F_FUA] {
            assert_eq!(
                run(&engine, sys::UBLK_IO_OP_WRITE | sys::UBLK_IO_F_FUA, 8, 8, &mut vec![9; 4096]),
                4096
            );
            assert_eq!(run(&engine, op, 8, 8, &mut []), 0);
            assert_eq!(run(&engine, sys::UBLK_IO_OP_READ, 8, 8, &mut buffer), 4096);
            assert!(buffer[..4096].iter().all(|b| *b == 0));
        }
        assert_eq!(run(&engine, sys::UBLK_IO_OP_FLUSH, 0, 0, &mut []), 0);
    }

    /// As the kernel's block layer sends it (`blk_rq_init`).
    #[test]
    fn flush_ignores_sector() {
        let engine = engine(SectorSize::B512);
        assert_eq!(run(&engine, sys::UBLK_IO_OP_FLUSH, u64::MAX, 0, &mut []), 0);
        assert_eq!(engine.pmem().counts().fences, 1);
    }

    #[test]
    fn write_of_4_kib_costs_64_lines_and_1_fence() {
        let engine = engine(SectorSize::B512);
        let before = engine.pmem().counts();
        assert_eq!(run(&engine, sys::UBLK_IO_OP_WRITE, 0, 8, &mut vec![1; 4096]), 4096);
        let after = engine.pmem().counts();
        assert_eq!((after.lines - before.lines, after.fences - before.fences), (64, 1));
    }

    #[test]
    fn refusals_map_to_errno() {
        let e512 = engine(SectorSize::B512);
        let mut buffer = vec![0; 4096];
        let inval = -Errno::INVAL.raw_os_error();
        assert_eq!(run(&e512, sys::UBLK_IO_OP_READ, 2048, 1, &mut buffer), inval, "past the end");
        assert_eq!(run(&e512, sys::UBLK_IO_OP_READ, u64::MAX, 1, &mut buffer), inval, "offset overflows");
        assert_eq!(run(&e512, sys::UBLK_IO_OP_WRITE, 0, 9, &mut buffer), inval, "longer than the buffer");
        assert_eq!(
            run(&e512, sys::UBLK_IO_OP_DISCARD, 0, u32::MAX, &mut buffer),
            inval,
            "longer than the device"
        );
        assert_eq!(
            run(&engine(SectorSize::B4096), sys::UBLK_IO_OP_READ, 1, 8, &mut buffer),
            inval,
            "unaligned"
        );
        for op in [sys::UBLK_IO_OP_WRITE_SAME, sys::UBLK_IO_OP_ZONE_APPEND, 0xff] {
            assert_eq!(run(&e512, op, 0, 1, &mut buffer), -Errno::OPNOTSUPP.raw_os_error());
        }
        let read_only = engine(SectorSize::B512).read_only();
        assert_eq!(run(&read_only, sys::UBLK_IO_OP_WRITE, 0, 1, &mut buffer), -Errno::ROFS.raw_os_error());
        assert_eq!(run(&read_only, sys::UBLK_IO_OP_FLUSH, 0, 0, &mut buffer), 0);
    }

    proptest! {
        /// No descriptor causes a panic, or an answer beyond its buffer.
        #[test]
        fn random_descriptors_are_answered(op_flags: u32, sectors: u32, start_sector: u64, len in 0_usize..9000) {
            let mut buffer = vec![0; len];
            let result = run(&engine(SectorSize::B512), op_flags, start_sector, sectors, &mut buffer);
            prop_assert!(result <= i32::try_from(len).unwrap());
            prop_assert!(result > -4096, "an errno");
        }

        /// The same near the end of the device, where arithmetic could overflow.
        #[test]
        fn random_descriptors_near_end_are_answered(op in 0_u32..6, sectors in 0_u32..20, start in 2030_u64..2060) {
            let mut buffer = vec![0; 4096];
            let result = run(&engine(SectorSize::B512), op, start, sectors, &mut buffer);
            let fits = start + u64::from(sectors) <= CAPACITY / 512;
            let buffered = sectors <= 8 || op > sys::UBLK_IO_OP_WRITE;
            if op != sys::UBLK_IO_OP_FLUSH && op != sys::UBLK_IO_OP_WRITE_SAME {
                prop_assert_eq!(result >= 0, fits && buffered);
            }
        }
    }
}
