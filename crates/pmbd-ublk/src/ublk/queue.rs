//! Serves a queue: decodes each request into a [`BlockOp`] for the engine, and answers it.

use crate::engine::{BlockError, BlockOp, Engine};
use crate::panics::AbortOnPanic;
use crate::polling::Polling;
use pm_core::Pmem;
use pm_ublk::{CharDevice, DeviceRecord, PreparedQueue, QueueError, Turn, sys};
use rustix::io::Errno;
use rustix::process::configure_io_flusher_behavior;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The unit of every sector count in the descriptor, whatever the device's logical sector.
const SECTOR_BYTES: u64 = 512;

/// More requests at a time than this are many.
const MANY: u32 = 2;

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
    /// The driver's record of the device.
    pub(super) record: DeviceRecord,
    /// An eventfd: the thread leaves the queue when it becomes readable.
    pub(super) leave: Arc<OwnedFd>,
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
    prepared: PreparedQueue,
}

impl Queue {
    /// Makes the calling thread's ring, and the buffers of the tags.
    pub(super) fn prepare(config: QueueConfig) -> Result<Self, QueueError> {
        // An allocation of this thread must not wait for write-back to its own device. A kernel that refuses, as it does without CAP_SYS_RESOURCE, serves
        // the device nevertheless.
        if let Err(why) = configure_io_flusher_behavior(true) {
            tracing::debug!(queue = config.queue, error = %why, "the queue's thread is not an I/O flusher");
        }
        let prepared = PreparedQueue::new(config.depth, config.max_io_bytes)?;
        Ok(Self { config, prepared })
    }

    /// Serves the queue on the calling thread, which has prepared it, until its end. Sends `ready` when the driver has the tags.
    pub(super) fn serve<P: Pmem>(
        self,
        device: &CharDevice,
        engine: &Engine<P>,
        ready: &Sender<()>,
    ) -> Result<QueueEnd, QueueError> {
        let Self { config, prepared } = self;
        let leave = Some(config.leave.as_fd());
        let queue = prepared.fetch(device, &config.record, config.queue, leave)?;
        let mut served = Loop { queue, engine, arrived: None };
        let _aborts = AbortOnPanic;
        served.run(&config, ready)
    }
}

/// A queue being served.
struct Loop<'e, P: Pmem> {
    queue: pm_ublk::Queue,
    engine: &'e Engine<P>,
    /// When the first request of this turn arrived.
    arrived: Option<Instant>,
}

impl<P: Pmem> Loop<'_, P> {
    fn run(&mut self, config: &QueueConfig, ready: &Sender<()>) -> Result<QueueEnd, QueueError> {
        // Submits the fetches. One that the driver refuses fails at once.
        let mut turn = self.turn(0)?;
        if turn == Turn::Stopped {
            return Ok(QueueEnd::Stopped);
        }
        ready.send(()).unwrap_or(());
        let mut polling = Polling::new(config.spin);
        loop {
            let count = match turn {
                Turn::Stopped => return Ok(QueueEnd::Stopped),
                Turn::Served { watched: true, .. } => return Ok(QueueEnd::Left),
                Turn::Served { count, .. } => count,
            };
            let idle_since = Instant::now();
            // With many requests at a time, submitting and waiting in one system call is cheaper.
            let polls = count <= MANY;
            if polls {
                self.poll(polling.budget())?;
            }
            turn = self.turn(1)?;
            if let Some(arrived) = self.arrived.filter(|_| polls) {
                polling.learn(arrived.duration_since(idle_since));
            }
        }
    }

    /// Submits the results, waits for at least `wait` completions, and serves each.
    fn turn(&mut self, wait: usize) -> Result<Turn, QueueError> {
        let Self { queue, engine, arrived } = self;
        *arrived = None;
        queue.turn(wait, |described, buffer| {
            arrived.get_or_insert_with(Instant::now);
            Descriptor::from(described).execute(engine, buffer)
        })
    }

    /// Submits the results, then polls for a completion for at most `budget`.
    fn poll(&mut self, budget: Duration) -> Result<(), QueueError> {
        if budget.is_zero() {
            return Ok(());
        }
        self.queue.submit()?;
        let started = Instant::now();
        while !self.queue.is_ready() && started.elapsed() < budget {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            // Other threads of this CPU go first, above all the submitter of the next request. crossbeam's `Backoff` yields too late.
            std::thread::yield_now();
        }
        Ok(())
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

impl From<&sys::ublksrv_io_desc> for Descriptor {
    fn from(described: &sys::ublksrv_io_desc) -> Self {
        let sys::ublksrv_io_desc { op_flags, nr_sectors: sectors, start_sector, .. } = *described;
        Self { op_flags, sectors, start_sector }
    }
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

    /// Runs the request on `engine`. Returns the number of bytes moved.
    #[inline]
    fn execute<P: Pmem>(&self, engine: &Engine<P>, buffer: &mut [u8]) -> Result<u32, Errno> {
        let capacity = buffer.len();
        let (offset_bytes, op) = self.decode(buffer)?;
        let moved = match &op {
            BlockOp::Read { out } => out.len(),
            BlockOp::Write { data, .. } => data.len(),
            BlockOp::Flush | BlockOp::Discard { .. } | BlockOp::WriteZeroes { .. } => 0,
        };
        debug_assert!(moved <= capacity);
        engine.execute(offset_bytes, op).map_err(|e| errno_of(&e))?;
        // A buffer has at most 32 MiB, so this never saturates.
        Ok(u32::try_from(moved).unwrap_or(u32::MAX))
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
        match (Descriptor { op_flags, sectors, start_sector }).execute(engine, buf) {
            Ok(moved) => i32::try_from(moved).unwrap(),
            Err(errno) => -errno.raw_os_error(),
        }
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
