//! A device of a technology: when each request is due. In whatever time the caller counts: the machine's, or simulated.
//!
//! [`pm_core::emulation`] delays single accesses of the calling thread. A device behind a bus has many requests in flight, which wait for its
//! channels and its connection.

use super::technology::Technology;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The kind.
    pub kind: Kind,
    /// The first byte. Of a flush, zero.
    pub offset: u64,
    /// The length. Of a flush, zero.
    pub bytes: u64,
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data from the device.
    Read,
    /// Data to the device.
    Write,
    /// Makes what was written durable.
    Flush,
}

/// The requests that a device has served.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Reads.
    pub reads: f64,
    /// The KiB read.
    pub read_kib: f64,
    /// Writes.
    pub writes: f64,
    /// The KiB written.
    pub written_kib: f64,
    /// Flushes.
    pub flushes: f64,
    /// The seconds in which at least one of them was in the device. Zero of a device that does not tell.
    pub busy_s: f64,
}

/// The state of a device: until when its parts are occupied. Times are in nanoseconds since any moment.
#[derive(Clone, Debug)]
pub struct Device {
    technology: Technology,
    /// The end of what each channel does.
    channels: Vec<u64>,
    /// The end of what the connection transfers from and to the device. Without two directions, only the first is used.
    connection: [u64; 2],
    /// The bytes in the write cache, with the time at which they are stored, in the order of these times.
    cached: VecDeque<(u64, u64)>,
    cached_bytes: u64,
    /// The end of the last request.
    position: Option<u64>,
    counts: Counts,
    /// The end of the last request to be complete.
    busy_until: u64,
}

impl Counts {
    /// Those after another moment.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            read_kib: self.read_kib - before.read_kib,
            writes: self.writes - before.writes,
            written_kib: self.written_kib - before.written_kib,
            flushes: self.flushes - before.flushes,
            busy_s: self.busy_s - before.busy_s,
        }
    }

    /// The seconds that they take on a device of this technology, each at a random place and after the end of the one before it, and flushes after writes.
    #[must_use]
    pub fn seconds_on(self, technology: &Technology) -> f64 {
        let of = |kind, count: f64, kib: f64| {
            // The latency of a page, and of what is more than a page.
            let ns = |kib: u64| Device::latency_ns(technology, kind, kib << 10) as f64;
            count * ns(4) + (kib - 4.0 * count).max(0.0) * (ns(128) - ns(4)) / 124.0
        };
        let reads = of(Kind::Read, self.reads, self.read_kib);
        let writes = of(Kind::Write, self.writes, self.written_kib);
        (reads + writes + self.flushes * Device::flush_latency_ns(technology) as f64) / 1e9
    }
}

impl Device {
    /// One on which nothing is in flight.
    #[must_use]
    pub fn new(technology: &Technology) -> Self {
        let count = usize::try_from(technology.channels).unwrap_or(usize::MAX);
        Self {
            technology: technology.clone(),
            channels: vec![0; count],
            connection: [0; 2],
            cached: VecDeque::new(),
            cached_bytes: 0,
            position: None,
            counts: Counts::default(),
            busy_until: 0,
        }
    }

    /// What it has accepted so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Accepts a request at `now`, and returns the time at which it is complete. Times of calls must not descend.
    pub fn submit(&mut self, now: u64, request: Request) -> u64 {
        let done = match request.kind {
            Kind::Read => self.read(now, request),
            Kind::Write => self.write(now, request),
            Kind::Flush if self.technology.cache_is_durable => {
                now.max(self.transferred_by()) + self.technology.flush_ns
            }
            Kind::Flush => now.max(self.stored_by()) + self.technology.flush_ns,
        };
        let done = done + self.technology.fixed_ns;
        self.count(now, request, done);
        done
    }

    /// The latency of a single request of a device on which nothing else is in flight, at a random place.
    #[must_use]
    pub fn latency_ns(technology: &Technology, kind: Kind, bytes: u64) -> u64 {
        Self::new(technology).submit(0, Request { kind, offset: 0, bytes })
    }

    /// The latency of a flush that follows the end of a write of 4 KiB.
    #[must_use]
    pub fn flush_latency_ns(technology: &Technology) -> u64 {
        let mut device = Self::new(technology);
        let written = device.submit(0, Request { kind: Kind::Write, offset: 0, bytes: 4096 });
        device.submit(written, Request { kind: Kind::Flush, offset: 0, bytes: 0 }) - written
    }

    /// The simulated time that `requests` take if `in_flight` of them are always outstanding.
    pub fn closed_loop(
        technology: &Technology,
        in_flight: usize,
        requests: impl IntoIterator<Item = Request>,
    ) -> u64 {
        let mut device = Self::new(technology);
        let mut due = BinaryHeap::new();
        let (mut now, mut end) = (0, 0);
        for request in requests {
            if due.len() >= in_flight.max(1) {
                let Reverse(first) = due.pop().unwrap_or(Reverse(now));
                now = now.max(first);
            }
            let done = device.submit(now, request);
            end = end.max(done);
            due.push(Reverse(done));
        }
        end
    }

    fn count(&mut self, now: u64, request: Request, done: u64) {
        let kib = request.bytes as f64 / 1024.0;
        let counts = &mut self.counts;
        match request.kind {
            Kind::Read => (counts.reads, counts.read_kib) = (counts.reads + 1.0, counts.read_kib + kib),
            Kind::Write => {
                (counts.writes, counts.written_kib) = (counts.writes + 1.0, counts.written_kib + kib)
            }
            Kind::Flush => counts.flushes += 1.0,
        }
        counts.busy_s += done.saturating_sub(self.busy_until.max(now)) as f64 / 1e9;
        self.busy_until = self.busy_until.max(done);
    }

    /// Rows are accessed, then the connection transfers them.
    fn read(&mut self, now: u64, request: Request) -> u64 {
        let accessed = self.access(now, request, self.technology.read_ns);
        self.transfer(accessed, 0, request.bytes, self.technology.read_mb_s)
    }

    /// The connection transfers the data, then rows are accessed. With a write cache the request is complete before that, unless the cache is full.
    fn write(&mut self, now: u64, request: Request) -> u64 {
        let direction = usize::from(self.technology.attachment.has_two_directions());
        let transferred = self.transfer(now, direction, request.bytes, self.technology.write_mb_s);
        if self.technology.write_cache_bytes < request.bytes.max(1) {
            return self.access(transferred, request, self.technology.write_ns);
        }
        let room = self.wait_for_room(transferred, request.bytes);
        let stored = self.access(room, request, self.technology.write_ns);
        let place = self.cached.partition_point(|(earlier, _)| *earlier <= stored);
        self.cached.insert(place, (stored, request.bytes));
        self.cached_bytes += request.bytes;
        room
    }

    /// The time, from `from` on, at which the write cache has room.
    fn wait_for_room(&mut self, from: u64, bytes: u64) -> u64 {
        let mut time = from;
        while let Some(&(stored, len)) = self.cached.front() {
            let is_full = self.cached_bytes + bytes > self.technology.write_cache_bytes;
            if stored > time && !is_full {
                break;
            }
            time = time.max(stored);
            self.cached_bytes -= len;
            self.cached.pop_front();
        }
        time
    }

    /// Distributes a request over the channels, each piece to the one that is free next. Returns the end of the last.
    fn access(&mut self, from: u64, request: Request, row_ns: u64) -> u64 {
        let Technology { row_bytes, overlap, stripe_bytes, seek_ns, rotation_ns, .. } = self.technology;
        let end_offset = request.offset.saturating_add(request.bytes);
        let follows = self.position == Some(request.offset);
        self.position = Some(end_offset);
        let mut moved = vec![follows || seek_ns + rotation_ns == 0; self.channels.len()];
        let (mut offset, mut end) = (request.offset, from);
        while offset < end_offset {
            let piece_end = match stripe_bytes {
                Some(stripe) => (offset / stripe).saturating_add(1).saturating_mul(stripe).min(end_offset),
                None => end_offset,
            };
            let rows = piece_end.div_ceil(row_bytes) - offset / row_bytes;
            let channel = self.next_free();
            let positioning = if moved[channel] { 0 } else { seek_ns + rotation_ns / 2 };
            moved[channel] = true;
            let accesses = rows.div_ceil(overlap).saturating_mul(row_ns);
            let done = self.channels[channel].max(from).saturating_add(positioning).saturating_add(accesses);
            self.channels[channel] = done;
            end = end.max(done);
            offset = piece_end;
        }
        end
    }

    fn next_free(&self) -> usize {
        let channels = self.channels.iter().enumerate();
        channels.min_by_key(|(_, until)| **until).map_or(0, |(channel, _)| channel)
    }

    /// The time at which everything accepted so far is stored.
    fn stored_by(&self) -> u64 {
        self.channels.iter().copied().max().unwrap_or(0).max(self.transferred_by())
    }

    fn transferred_by(&self) -> u64 {
        self.connection.iter().copied().max().unwrap_or(0)
    }

    /// Waits for the connection from `from` on, and returns the end of the transfer.
    fn transfer(&mut self, from: u64, direction: usize, bytes: u64, mb_s: u64) -> u64 {
        let ns = u64::try_from(u128::from(bytes) * 1000 / u128::from(mb_s)).unwrap_or(u64::MAX / 4);
        let until = &mut self.connection[direction];
        *until = from.max(*until).saturating_add(self.technology.request_ns).saturating_add(ns);
        *until
    }
}

#[cfg(test)]
mod tests {
    use super::super::technology::{Attachment, MovedBy};
    use super::*;

    /// Without cost besides the rows'.
    fn plain() -> Technology {
        Technology {
            name: "plain".into(),
            alias: None,
            source: "a test".into(),
            attachment: Attachment::Pcie,
            moved_by: MovedBy::Dma,
            read_ns: 10_000,
            write_ns: 40_000,
            flush_ns: 7000,
            row_bytes: 8192,
            overlap: 1,
            channels: 8,
            stripe_bytes: None,
            read_mb_s: u64::MAX,
            write_mb_s: u64::MAX,
            request_ns: 0,
            fixed_ns: 0,
            write_cache_bytes: 0,
            cache_is_durable: false,
            seek_ns: 0,
            rotation_ns: 0,
        }
    }

    fn request(kind: Kind, page: u64) -> Request {
        Request { kind, offset: page * 4096, bytes: 4096 }
    }

    const FLUSH: Request = Request { kind: Kind::Flush, offset: 0, bytes: 0 };

    #[test]
    fn sixteen_requests_on_eight_channels_reach_eight_a_latency() {
        let random = |at: u64| request(Kind::Read, at * 7919 % 1000);
        for (in_flight, expected) in [(1, 1.0), (4, 4.0), (8, 8.0), (16, 8.0)] {
            let took = Device::closed_loop(&plain(), in_flight, (0..8000).map(random));
            let reached = 8000.0 * 10_000.0 / took as f64;
            assert!((reached / expected - 1.0).abs() < 0.01, "{in_flight}: {reached}");
        }
    }

    #[test]
    fn latency_is_once_a_row_and_lines_overlap() {
        let haste = plain();
        assert_eq!(Device::latency_ns(&haste, Kind::Read, 4096), 10_000);
        assert_eq!(Device::latency_ns(&haste, Kind::Read, 8192), 10_000);
        assert_eq!(Device::latency_ns(&haste, Kind::Read, 8193), 20_000);
        let lines = Technology { row_bytes: 64, overlap: 4, ..plain() };
        assert_eq!(Device::latency_ns(&lines.with_latency(800), Kind::Read, 4096), 64 * 800 / 4);
        // Bytes of two rows are two accesses.
        let across = Request { kind: Kind::Read, offset: 8000, bytes: 400 };
        assert_eq!(Device::new(&haste).submit(0, across), 20_000);
    }

    #[test]
    fn connection_is_shared_and_fixed_cost_is_not() {
        let technology = Technology { read_mb_s: 1000, request_ns: 904, fixed_ns: 50_000, ..plain() };
        assert_eq!(Device::latency_ns(&technology, Kind::Read, 4096), 10_000 + 4096 + 904 + 50_000);
        let mut device = Device::new(&technology);
        let first = device.submit(0, request(Kind::Read, 0));
        // On another channel, but after the first on the connection.
        assert_eq!(device.submit(0, request(Kind::Read, 5)), first + 5000);
        // The other direction is free.
        assert_eq!(device.submit(0, request(Kind::Write, 9)), 904 + 40_000 + 50_000);
        let mut sata = Device::new(&Technology { attachment: Attachment::Sata, ..technology });
        sata.submit(0, request(Kind::Read, 0));
        assert_eq!(sata.submit(0, request(Kind::Write, 9)), 15_000 + 904 + 40_000 + 50_000, "one direction");
    }

    #[test]
    fn flush_is_after_all_that_was_accepted() {
        let mut device = Device::new(&plain());
        assert_eq!(device.submit(0, FLUSH), 7000);
        assert_eq!(device.submit(100, request(Kind::Write, 1)), 40_100);
        assert_eq!(device.submit(200, FLUSH), 47_100);
        assert_eq!(device.submit(90_000, FLUSH), 97_000);
    }

    #[test]
    fn cached_write_is_complete_before_it_is_stored_and_flush_waits() {
        let cached = Technology { write_cache_bytes: 8192, channels: 1, write_mb_s: 4096, ..plain() };
        let mut device = Device::new(&cached);
        assert_eq!(device.submit(0, request(Kind::Write, 1)), 1000);
        assert_eq!(device.submit(1000, request(Kind::Write, 5)), 2000);
        // The cache is full until the first write is stored, at 41,000.
        assert_eq!(device.submit(2000, request(Kind::Write, 9)), 41_000);
        assert_eq!(device.submit(50_000, FLUSH), 41_000 + 2 * 40_000 + 7000);
        let mut durable = Device::new(&Technology { cache_is_durable: true, ..cached.clone() });
        durable.submit(0, request(Kind::Write, 1));
        assert_eq!(durable.submit(1000, FLUSH), 8000);
        // More than the cache holds is written through.
        let long = Request { kind: Kind::Write, offset: 0, bytes: 16_384 };
        assert_eq!(Device::new(&cached).submit(0, long), 4000 + 2 * 40_000);
    }

    #[test]
    fn long_requests_are_striped() {
        let striped = Technology { stripe_bytes: Some(8192), ..plain() };
        assert_eq!(Device::latency_ns(&striped, Kind::Read, 8 * 8192), 10_000);
        assert_eq!(Device::latency_ns(&striped, Kind::Read, 9 * 8192), 20_000);
        assert_eq!(Device::latency_ns(&plain(), Kind::Read, 9 * 8192), 90_000);
    }

    #[test]
    fn heads_move_unless_a_request_follows_the_last() {
        let disk = Technology {
            read_ns: 0,
            write_ns: 0,
            flush_ns: 0,
            seek_ns: 3_000_000,
            rotation_ns: 8_000_000,
            channels: 1,
            read_mb_s: 100,
            ..plain()
        };
        let mut device = Device::new(&disk);
        let first = device.submit(0, request(Kind::Read, 3));
        assert_eq!(first, 7_000_000 + 40_960);
        assert_eq!(device.submit(first, request(Kind::Read, 4)), first + 40_960);
        let later = 100_000_000;
        assert_eq!(device.submit(later, request(Kind::Read, 4)), later + 7_040_960);
    }

    #[test]
    fn counted_requests_take_as_long_as_one_after_the_other() {
        let disk = Technology {
            seek_ns: 3_000_000,
            rotation_ns: 8_000_000,
            channels: 1,
            read_mb_s: 100,
            write_mb_s: 100,
            fixed_ns: 40_000,
            ..plain()
        };
        let cached = Technology { write_cache_bytes: 1 << 20, ..plain() };
        for technology in [disk, plain(), cached] {
            let mut device = Device::new(&technology);
            let mut now = 0;
            for number in 0..300 {
                let kind = if number % 2 == 0 { Kind::Read } else { Kind::Write };
                now = device.submit(now, request(kind, number * 7));
                if kind == Kind::Write {
                    now = device.submit(now, FLUSH);
                }
            }
            let counts = device.counts();
            assert_eq!((counts.reads, counts.writes, counts.flushes), (150.0, 150.0, 150.0));
            assert_eq!((counts.read_kib, counts.written_kib), (600.0, 600.0));
            let took = now as f64 / 1e9;
            for predicted in [counts.seconds_on(&technology), counts.busy_s] {
                assert!(
                    (predicted / took - 1.0).abs() < 0.01,
                    "{}: {predicted}, {took}",
                    technology.channels
                );
            }
            assert_eq!(counts.since(counts), Counts::default());
        }
    }

    #[test]
    fn device_is_busy_once_while_requests_overlap() {
        let mut device = Device::new(&plain());
        for page in 0..8 {
            device.submit(1000, request(Kind::Read, page));
        }
        assert_eq!(device.counts().busy_s, 10e-6, "eight channels");
        device.submit(6000, request(Kind::Read, 9));
        assert!((device.counts().busy_s - 20e-6).abs() < 1e-12, "after the first eight");
        device.submit(1_000_000, request(Kind::Read, 9));
        assert!((device.counts().busy_s - 30e-6).abs() < 1e-12, "and later");
    }

    #[test]
    fn extreme_requests_do_not_overflow() {
        let disk = Technology { stripe_bytes: Some(u64::MAX), row_bytes: 1, ..plain() };
        let mut device = Device::new(&disk);
        device.submit(0, Request { kind: Kind::Read, offset: u64::MAX - 5, bytes: 4096 });
        device.submit(1, Request { kind: Kind::Write, offset: 0, bytes: 0 });
    }
}
