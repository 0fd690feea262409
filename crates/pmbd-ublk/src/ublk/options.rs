//! How a device is served.

use super::error::OptionsError;
use std::time::Duration;

/// Where the queues' threads run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// On any CPU.
    #[default]
    Unpinned,
    /// On the CPUs whose requests the queue gets. With as many queues as CPUs, a thread and its submitter share one CPU, which can cost
    /// most of the throughput.
    Submitters,
    /// Queue `n` on the CPU at `n` modulo the list's length.
    Cpus(Vec<usize>),
}

/// How to serve. A device that is taken over keeps its queues, depth and request size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// N of `/dev/ublkbN`; `None` for the first free one.
    pub device_id: Option<u32>,
    /// Queues, each with a thread; the driver grants no more than there are CPUs.
    pub queues: u16,
    /// Requests in flight in each queue.
    pub depth: u16,
    /// Longest read or write. Queues x depth x this is reserved for buffers; only what is used becomes memory.
    pub max_io_bytes: u32,
    /// Longest discard or zeroing, which keeps its queue busy that long. 0 for neither.
    pub max_zero_bytes: u32,
    /// Where the threads run.
    pub affinity: Affinity,
    /// The longest time for which a queue polls for the next request before it sleeps. It adapts: a queue whose requests are rare sleeps
    /// at once. Zero never polls.
    pub spin: Duration,
    /// The longest time that stopping or removing a device takes before it fails with [`UblkError::TimedOut`](super::UblkError::TimedOut).
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
        const TOO_LONG: u32 = (32 << 20) + 4096;
        const SECOND: Duration = Duration::from_secs(1);
        assert_eq!(check(|o| o.queues = 0), Err(OptionsError::Queues(0)));
        assert_eq!(check(|o| o.queues = 4097), Err(OptionsError::Queues(4097)));
        assert_eq!(check(|o| o.depth = 0), Err(OptionsError::Depth(0)));
        assert_eq!(check(|o| o.max_io_bytes = 0), Err(OptionsError::MaxIoBytes(0)));
        assert_eq!(check(|o| o.max_io_bytes = 512), Err(OptionsError::MaxIoBytes(512)));
        assert_eq!(check(|o| o.max_io_bytes = TOO_LONG), Err(OptionsError::MaxIoBytes(TOO_LONG)));
        assert_eq!(check(|o| o.max_zero_bytes = 100), Err(OptionsError::MaxZeroBytes(100)));
        assert_eq!(check(|o| o.max_zero_bytes = 0), Ok(()));
        assert_eq!(check(|o| o.spin = SECOND), Err(OptionsError::Spin(SECOND)));
        assert_eq!(check(|o| o.affinity = Affinity::Cpus(Vec::new())), Err(OptionsError::NoCpus));
    }
}
