//! The seam to the library that talks to the driver: what is needed of it, and nothing of how it does it.

use super::request::Descriptor;
use super::{Affinity, DeviceIdentity, DeviceInfo, Features, Options};
use crate::{Engine, WriteCache};
use libublk_rs_sys as sys;
use pm_core::Pmem;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// What the library, or the driver behind it, answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// The driver refused.
    #[error("{0}")]
    Errno(Errno),
    /// The library did.
    #[error("{0}")]
    Library(String),
}

/// What a device is to be.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) device_id: Option<u32>,
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) max_io_bytes: u32,
    pub(super) features: Features,
    pub(super) identity: DeviceIdentity,
    pub(super) params: sys::ublk_params,
}

impl Spec {
    /// The device that serves `engine` by `options`.
    pub(super) fn new<P: Pmem>(engine: &Engine<P>, options: &Options, identity: DeviceIdentity) -> Self {
        Self {
            device_id: options.device_id,
            queues: options.queues,
            depth: options.depth,
            max_io_bytes: options.max_io_bytes,
            features: Features::WANTED,
            identity,
            params: params(engine, options),
        }
    }
}

/// Power of two of the physical sector: the page that memory is mapped in.
const PHYSICAL_SHIFT: u8 = 12;

/// What the kernel is told about the device.
fn params<P: Pmem>(engine: &Engine<P>, options: &Options) -> sys::ublk_params {
    let geometry = engine.geometry();
    let mut attrs = 0;
    if engine.is_read_only() {
        attrs |= sys::UBLK_ATTR_READ_ONLY;
    }
    if engine.write_cache() == WriteCache::WriteBack {
        // Without these the kernel sends neither FLUSH nor FUA.
        attrs |= sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
    }
    let zero_sectors = if engine.is_read_only() { 0 } else { options.max_zero_bytes >> 9 };
    sys::ublk_params {
        len: 0, // set by whoever sends it
        types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD,
        basic: sys::ublk_param_basic {
            attrs,
            logical_bs_shift: if geometry.sector().bytes() == 4096 { 12 } else { 9 },
            physical_bs_shift: PHYSICAL_SHIFT,
            // As small as the smallest: a larger optimum would be taken for a stripe by mkfs.
            io_opt_shift: PHYSICAL_SHIFT,
            io_min_shift: PHYSICAL_SHIFT,
            max_sectors: options.max_io_bytes >> 9,
            dev_sectors: geometry.capacity_bytes() >> 9,
            ..Default::default()
        },
        discard: sys::ublk_param_discard {
            discard_granularity: 1 << PHYSICAL_SHIFT,
            max_discard_sectors: zero_sectors,
            max_write_zeroes_sectors: zero_sectors,
            max_discard_segments: 1,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// How a queue's thread is to behave.
#[derive(Clone, Debug)]
pub(super) struct QueueConfig {
    /// Which queue.
    pub(super) queue: u16,
    /// How long at most to look for the next request before sleeping.
    pub(super) spin: Duration,
    /// An eventfd: the queue is to be left when it becomes readable.
    pub(super) leave: RawFd,
}

/// How a queue's thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueEnd {
    /// The driver took every tag back: the device was stopped, as a rule.
    Stopped,
    /// It was asked to leave.
    Left,
}

/// A device, on the thread that made it.
pub(super) trait Device: Sized {
    /// What the queues' threads share.
    type Io: QueueIo;

    /// Makes a new device. It stays, whatever becomes of `Self`, until it is deleted.
    fn add(spec: &Spec) -> Result<Self, TransportError>;

    /// A device that waits for a server, whose counts `spec` has. Changes nothing.
    fn waiting(device_id: u32, spec: &Spec) -> Result<Self, TransportError>;

    /// Begins the recovery of a waiting device: the driver forgets its last server. Only after
    /// [`settle`](super::settle::settle), and when everything else that can fail has been done.
    fn begin_recovery(&self) -> Result<(), TransportError>;

    /// What was granted.
    fn info(&self) -> DeviceInfo;

    /// The CPUs on which a queue's thread ought to run, by `affinity`; `None` for any.
    fn cpus(&self, queue: u16, affinity: &Affinity) -> Result<Option<Vec<usize>>, TransportError>;

    /// Becomes the device's server; for the queues' threads.
    fn attach(&mut self) -> Result<Arc<Self::Io>, TransportError>;

    /// Starts a new device, or sets a recovered one going. Every queue must be ready.
    fn start(&self) -> Result<(), TransportError>;
}

/// The queues of a device.
pub(super) trait QueueIo: Send + Sync + 'static {
    /// What a queue's thread can have before the device has a server.
    type Prepared;

    /// Makes the calling thread's ring and buffers.
    fn prepare(depth: u16, max_io_bytes: u32) -> Result<Self::Prepared, TransportError>;

    /// Serves one queue on the calling thread, which has prepared for it, until its end. Calls `ready` once, when its tags
    /// are with the driver.
    fn serve<H, R>(
        &self,
        config: &QueueConfig,
        prepared: Self::Prepared,
        handler: H,
        ready: R,
    ) -> Result<QueueEnd, TransportError>
    where
        H: FnMut(Descriptor, &mut [u8]) -> i32,
        R: FnOnce();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Geometry, SectorSize};
    use pm_core::{Domain, FenceError, Region};

    /// A region that says it is in the page domain.
    struct Paged(Region);

    impl Pmem for Paged {
        fn len_bytes(&self) -> u64 {
            self.0.len_bytes()
        }
        fn domain(&self) -> Domain {
            Domain::Page
        }
        fn load(&self, offset: u64, out: &mut [u8]) {
            self.0.load(offset, out);
        }
        fn store(&self, offset: u64, bytes: &[u8]) {
            self.0.store(offset, bytes);
        }
        fn store_nt(&self, offset: u64, bytes: &[u8]) {
            self.0.store_nt(offset, bytes);
        }
        fn load_u64(&self, offset: u64) -> u64 {
            self.0.load_u64(offset)
        }
        fn store_u64(&self, offset: u64, value: u64) {
            self.0.store_u64(offset, value);
        }
        fn store_u128(&self, offset: u64, value: u128) {
            self.0.store_u128(offset, value);
        }
        fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
            self.0.compare_exchange_u64(offset, current, new)
        }
        fn flush(&self, offset: u64, len_bytes: u64) {
            self.0.flush(offset, len_bytes);
        }
        fn fence(&self) -> Result<(), FenceError> {
            self.0.fence()
        }
    }

    fn region() -> Region {
        Region::anonymous(1 << 20).unwrap()
    }

    #[test]
    fn a_cache_is_announced_exactly_where_there_is_one() {
        let geometry = Geometry::new(0, 1 << 20, SectorSize::B512).unwrap();
        let options = Options::default();
        let through = params(&Engine::new(region(), geometry).unwrap(), &options);
        assert_eq!(through.basic.attrs, 0);
        let back = params(&Engine::new(Paged(region()), geometry).unwrap(), &options);
        assert_eq!(back.basic.attrs, sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA);
    }

    #[test]
    fn sizes_become_sectors_and_shifts() {
        let geometry = Geometry::new(4096, 1 << 19, SectorSize::B4096).unwrap();
        let engine = Engine::new(region(), geometry).unwrap();
        let options = Options { max_io_bytes: 1 << 16, max_zero_bytes: 1 << 20, ..Options::default() };
        let writable = params(&engine, &options);
        assert_eq!((writable.basic.logical_bs_shift, writable.basic.physical_bs_shift), (12, 12));
        assert_eq!((writable.basic.dev_sectors, writable.basic.max_sectors), (1 << 10, 1 << 7));
        assert_eq!(
            (writable.discard.max_discard_sectors, writable.discard.max_discard_segments),
            (1 << 11, 1)
        );
        let read_only = params(&engine.read_only(), &options);
        assert_eq!(read_only.basic.attrs, sys::UBLK_ATTR_READ_ONLY);
        assert_eq!(read_only.discard.max_write_zeroes_sectors, 0);
    }
}
