//! How a device is to be served, and by what it is known again.

use std::time::Duration;

/// Where the queues' threads run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Wherever the scheduler puts them.
    #[default]
    Unpinned,
    /// Each on the CPUs whose requests its queue gets. With as many queues as CPUs a thread and its submitter
    /// then share one CPU, which can cost most of the throughput.
    Submitters,
    /// Queue `n` on the CPU at `n` modulo the list's length.
    Cpus(Vec<usize>),
}

/// How to serve. What a device that is taken over has already, its queues, depth and request size, stays as
/// it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// N of `/dev/ublkbN`; `None` for the first free one.
    pub device_id: Option<u32>,
    /// Queues, each with a thread; the driver takes no more than there are CPUs.
    pub queues: u16,
    /// Requests in flight in each queue.
    pub depth: u16,
    /// Longest read or write. Queues x depth x this is reserved for buffers; only what is used becomes
    /// memory.
    pub max_io_bytes: u32,
    /// Longest discard or zeroing, which keeps its queue busy that long. 0 for neither.
    pub max_zero_bytes: u32,
    /// Where the threads run.
    pub affinity: Affinity,
    /// How long at most a queue looks for the next request before it sleeps. It adapts: a queue whose
    /// requests come seldom goes to sleep at once. Zero never looks.
    pub spin: Duration,
    /// How long stopping and removing a device may take before it is reported as
    /// [`super::UblkError::TimedOut`].
    pub removal_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            device_id: None,
            queues: u16::try_from(cpus.min(4)).unwrap_or(4),
            depth: 128,
            max_io_bytes: 512 << 10,
            max_zero_bytes: 64 << 20,
            affinity: Affinity::Unpinned,
            spin: Duration::from_micros(50),
            removal_timeout: Duration::from_secs(10),
        }
    }
}

/// An option out of bounds.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// The number of queues.
    #[error("{0} queues: choose 1 to 4096")]
    Queues(u16),
    /// The depth.
    #[error("a depth of {0}: choose 1 to 4096")]
    Depth(u16),
    /// The longest request.
    #[error("requests of {0} bytes: choose a multiple of 4096 up to 32 MiB")]
    MaxIoBytes(u32),
    /// The longest zeroing.
    #[error("discards of {0} bytes: choose a multiple of 4096 up to 1 GiB, or 0 for none")]
    MaxZeroBytes(u32),
    /// The time spent looking for requests.
    #[error("{0:?} of spinning: choose at most a millisecond")]
    Spin(Duration),
    /// An empty list of CPUs.
    #[error("an empty list of CPUs to run on")]
    NoCpus,
}

impl Options {
    /// Checks every bound.
    ///
    /// # Errors
    /// For the first option that is out of its bounds.
    pub fn check(&self) -> Result<(), OptionsError> {
        if !(1..=4096).contains(&self.queues) {
            return Err(OptionsError::Queues(self.queues));
        }
        if !(1..=4096).contains(&self.depth) {
            return Err(OptionsError::Depth(self.depth));
        }
        if self.max_io_bytes == 0 || self.max_io_bytes > 32 << 20 || !self.max_io_bytes.is_multiple_of(4096) {
            return Err(OptionsError::MaxIoBytes(self.max_io_bytes));
        }
        if self.max_zero_bytes > 1 << 30 || !self.max_zero_bytes.is_multiple_of(4096) {
            return Err(OptionsError::MaxZeroBytes(self.max_zero_bytes));
        }
        if self.spin > Duration::from_millis(1) {
            return Err(OptionsError::Spin(self.spin));
        }
        if matches!(&self.affinity, Affinity::Cpus(cpus) if cpus.is_empty()) {
            return Err(OptionsError::NoCpus);
        }
        Ok(())
    }
}

/// By what a pool's device is known again after its server died: a mark that the driver keeps with the
/// device.
///
/// The mark lives in the kernel, next to the device itself. There is no state file that could be stale,
/// unwritable or planted, and a device of another program under the same number does not have the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceIdentity(u64);

impl DeviceIdentity {
    /// "pm" in the highest two bytes: a device of this program.
    const OURS: u64 = 0x706d << 48;

    /// From what is unique about the pool: its UUID, or its path if it has none.
    #[must_use]
    pub fn new(unique: impl AsRef<[u8]>) -> Self {
        // FNV-1a, folded to the 48 bits that are free: no more than telling the pools of one machine apart.
        let hash = unique.as_ref().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(Self::OURS | (hash ^ hash >> 48) & 0xffff_ffff_ffff)
    }

    /// The mark of a device, if it is of this program.
    #[must_use]
    pub const fn of_mark(mark: u64) -> Option<Self> {
        if mark >> 48 == Self::OURS >> 48 { Some(Self(mark)) } else { None }
    }

    pub(super) const fn mark(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_options_are_in_bounds() {
        assert_eq!(Options::default().check(), Ok(()));
    }

    #[test]
    fn each_bound_is_checked() {
        let check = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options.check()
        };
        assert_eq!(check(|o| o.queues = 0), Err(OptionsError::Queues(0)));
        assert_eq!(check(|o| o.queues = 4097), Err(OptionsError::Queues(4097)));
        assert_eq!(check(|o| o.depth = 0), Err(OptionsError::Depth(0)));
        assert_eq!(check(|o| o.max_io_bytes = 0), Err(OptionsError::MaxIoBytes(0)));
        assert_eq!(check(|o| o.max_io_bytes = 512), Err(OptionsError::MaxIoBytes(512)));
        assert_eq!(
            check(|o| o.max_io_bytes = (32 << 20) + 4096),
            Err(OptionsError::MaxIoBytes((32 << 20) + 4096))
        );
        assert_eq!(check(|o| o.max_zero_bytes = 100), Err(OptionsError::MaxZeroBytes(100)));
        assert_eq!(check(|o| o.max_zero_bytes = 0), Ok(()));
        assert_eq!(
            check(|o| o.spin = Duration::from_secs(1)),
            Err(OptionsError::Spin(Duration::from_secs(1)))
        );
        assert_eq!(check(|o| o.affinity = Affinity::Cpus(Vec::new())), Err(OptionsError::NoCpus));
    }

    #[test]
    fn an_identity_is_known_again_and_others_are_not() {
        let identity = DeviceIdentity::new("/pool/a");
        assert_eq!(DeviceIdentity::new("/pool/a"), identity);
        assert_ne!(DeviceIdentity::new("/pool/b"), identity);
        assert_eq!(DeviceIdentity::of_mark(identity.mark()), Some(identity));
        for foreign in [0, 1, u64::MAX, 0x706c << 48] {
            assert_eq!(DeviceIdentity::of_mark(foreign), None);
        }
    }
}
