//! Loads of many requests in flight, and a device that serves them in this process.
//!
//! One thread polls: it submits requests to a [`Device`], and completes each, with a copy of its data, when it is due. So it keeps more in flight than
//! there are cores, which threads that spin could not.

use super::device::{Device, Kind, Request};
use super::technology::{MovedBy, Technology};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The threads of the paper's loads.
const THREADS: usize = 16;
/// The cores of the paper's machine, of which each has one request in flight if it moves the data itself.
const CORES: usize = 8;
/// The memory behind the device.
const STORE_BYTES: u64 = 256 << 20;

/// What is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes in turn.
    Mixed,
}

/// Requests of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// What they do.
    pub direction: Direction,
    /// The length of each.
    pub bytes: u64,
    /// Whether one follows the other, or they are at random places.
    pub is_sequential: bool,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.is_sequential { "sequential" } else { "random" };
        let direction = match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
            Direction::Mixed => "mixed",
        };
        write!(f, "{order}-{}k/{direction}", self.bytes >> 10)
    }
}

impl Load {
    /// Its requests, without end.
    pub fn requests(self) -> impl Iterator<Item = Request> {
        let mut random = fastrand::Rng::with_seed(1);
        let places = STORE_BYTES / self.bytes;
        (0..).map(move |number: u64| {
            let place = if self.is_sequential { number % places } else { random.u64(..places) };
            let kind = match self.direction {
                Direction::Read => Kind::Read,
                Direction::Write => Kind::Write,
                Direction::Mixed if number.is_multiple_of(2) => Kind::Read,
                Direction::Mixed => Kind::Write,
            };
            Request { kind, offset: place * self.bytes, bytes: self.bytes }
        })
    }

    /// The bandwidth of the model in megabytes (10^6) a second.
    #[must_use]
    pub fn asked_mb_s(self, technology: &Technology) -> f64 {
        // Long enough that neither an empty device at the start nor a write cache, of which it fills the largest twice, counts.
        let count = (technology.write_cache_bytes.max(20 << 20) * 4 / self.bytes).max(500);
        let requests = self.requests().take(usize::try_from(count).unwrap_or(usize::MAX));
        let ns = Device::closed_loop(technology, in_flight(technology), requests);
        self.bytes as f64 * count as f64 * 1e3 / ns as f64
    }
}

/// The number of requests that the paper's 16 threads have in flight.
#[must_use]
pub const fn in_flight(technology: &Technology) -> usize {
    match technology.moved_by {
        MovedBy::Cores => CORES,
        MovedBy::Dma => THREADS,
    }
}

/// Memory, and the thread that polls.
#[derive(Debug)]
pub struct Poller {
    store: Vec<u8>,
}

impl Default for Poller {
    fn default() -> Self {
        // Written, so that its pages exist.
        Self { store: (0..STORE_BYTES).map(|at| at.to_le_bytes()[1]).collect() }
    }
}

impl Poller {
    /// Keeps requests of this load in flight for a time. Returns megabytes (10^6) a second.
    ///
    /// # Panics
    /// Never: the requests of a load are within the memory.
    pub fn run(&mut self, technology: &Technology, load: Load, time: Duration) -> f64 {
        let begin = Instant::now();
        let clock = || u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let end = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (bytes, ns) = self.run_until(technology, load, end, clock);
        bytes as f64 * 1e3 / ns as f64
    }

    /// The bytes of the requests that are complete, and the time at which the last of them was.
    fn run_until(
        &mut self,
        technology: &Technology,
        load: Load,
        end: u64,
        mut clock: impl FnMut() -> u64,
    ) -> (u64, u64) {
        let mut device = Device::new(technology);
        let mut requests = load.requests();
        let mut buffer = vec![0; usize::try_from(load.bytes).expect("a request fits into memory")];
        let mut due = BinaryHeap::new();
        for number in 0..in_flight(technology) {
            let request = requests.next().expect("a load has no end");
            due.push(Reverse((
                device.submit(clock(), request),
                number,
                request.offset,
                request.kind == Kind::Read,
            )));
        }
        let mut bytes = 0;
        loop {
            let mut now = clock();
            while let Some(&Reverse((time, number, offset, is_read))) = due.peek()
                && time <= now
                && now < end
            {
                due.pop();
                let begin = usize::try_from(offset).expect("the store is in memory");
                let place = &mut self.store[begin..begin + buffer.len()];
                if is_read {
                    buffer.copy_from_slice(place);
                } else {
                    place.copy_from_slice(&buffer);
                }
                black_box(&mut buffer);
                bytes += load.bytes;
                now = clock();
                let request = requests.next().expect("a load has no end");
                let next = device.submit(now, request);
                due.push(Reverse((next, number, request.offset, request.kind == Kind::Read)));
            }
            if now >= end {
                return (bytes, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::technology::Technologies;
    use super::*;

    const PAGES: Load = Load { direction: Direction::Read, bytes: 4096, is_sequential: false };

    #[test]
    fn requests_are_as_described() {
        let mixed = Load { direction: Direction::Mixed, bytes: 4 << 20, is_sequential: true };
        let requests: Vec<Request> = mixed.requests().take(3).collect();
        assert_eq!(requests.iter().map(|request| request.offset >> 22).collect::<Vec<_>>(), [0, 1, 2]);
        let kinds = [Kind::Read, Kind::Write, Kind::Read];
        assert_eq!(requests.iter().map(|request| request.kind).collect::<Vec<_>>(), kinds);
        assert_eq!(mixed.requests().nth(64).unwrap().offset, 0, "begins again");
        let places: std::collections::HashSet<u64> =
            PAGES.requests().take(1000).map(|request| request.offset).collect();
        assert!(places.len() > 900);
        assert!(places.iter().all(|offset| offset % 4096 == 0 && *offset < STORE_BYTES));
        assert_eq!([PAGES, mixed].map(|load| load.to_string()), ["random-4k/read", "sequential-4096k/mixed"]);
    }

    #[test]
    fn poller_keeps_all_channels_busy_and_copies_data() {
        let haste = Technologies::built_in().get("haste-dram").unwrap().with_latency(51_200);
        let mut poller = Poller { store: vec![7; usize::try_from(STORE_BYTES).unwrap()] };
        for (direction, stored) in [(Direction::Read, 7), (Direction::Write, 0)] {
            let load = Load { direction, ..PAGES };
            let mut time = 0;
            let clock = || {
                time += 100;
                time
            };
            let (bytes, ns) = poller.run_until(&haste, load, 10_000_000, clock);
            let reached = bytes as f64 / 4096.0 * 51_200.0 / ns as f64;
            assert!((reached / 8.0 - 1.0).abs() < 0.05, "{reached} of 8 channels");
            let offset = usize::try_from(load.requests().next().unwrap().offset).unwrap();
            assert_eq!(poller.store[offset], stored);
        }
    }

    #[test]
    fn device_without_delay_ends_in_time() {
        let instant = Technology {
            fixed_ns: 0,
            request_ns: 0,
            read_mb_s: u64::MAX,
            ..Technologies::built_in().get("haste-dram").unwrap().with_latency(0)
        };
        let mut time = 0;
        let clock = || {
            time += 100;
            time
        };
        let (bytes, ns) = Poller { store: vec![0; usize::try_from(STORE_BYTES).unwrap()] }
            .run_until(&instant, PAGES, 1_000_000, clock);
        assert!((1_000_000..=1_000_100).contains(&ns), "{ns}");
        assert!(bytes / 4096 >= 9000, "{bytes}");
    }

    #[test]
    fn model_is_flat_until_channels_are_the_limit() {
        let technologies = Technologies::built_in();
        let haste = technologies.get("haste-dram").unwrap();
        let mb_s = |ns| PAGES.asked_mb_s(&haste.with_latency(ns));
        assert!((mb_s(25) / 1330.0 - 1.0).abs() < 0.01, "1.33 GB/s in the paper; {}", mb_s(25));
        assert!((mb_s(12_800) / mb_s(25) - 1.0).abs() < 0.01, "flat to 12.8 us");
        assert!(mb_s(25_600) / mb_s(25) < 0.97, "falls at 25.6 us: {}", mb_s(25_600));
        // 8 * 4096 bytes in 51.2 us.
        assert!((mb_s(51_200) / 640.0 - 1.0).abs() < 0.01, "{}", mb_s(51_200));
        let fusion = technologies.get("fusion-io").unwrap();
        assert!((PAGES.asked_mb_s(fusion) / 280.0 - 1.0).abs() < 0.01, "280 MB/s in the paper");
        // Writes of a cache are as fast as the rows behind it in the end.
        let writes = Load { direction: Direction::Write, ..PAGES };
        let flash = Technology { channels: 4, write_cache_bytes: 1 << 20, ..fusion.clone() };
        assert!((writes.asked_mb_s(&flash) / (4.0 * 4096.0 / 200.0) - 1.0).abs() < 0.4);
    }
}
