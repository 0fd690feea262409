//! The number of counters, and when groups are written back.

/// Options of [`LineCounters`](super::LineCounters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterOptions {
    pub(super) counter_count: u16,
    pub(super) lines_max: u32,
    pub(super) lag: usize,
    pub(super) is_in_order: bool,
}

impl Default for CounterOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl CounterOptions {
    /// The paper's 8,192 counters of up to 255 lines; groups are written back when 64 wait.
    #[must_use]
    pub const fn new() -> Self {
        Self { counter_count: 8192, lines_max: 255, lag: 64, is_in_order: false }
    }

    /// The number of counters, at most 65,534. The stores of a group that finds none free are written back at once, and fenced when it ends.
    #[must_use]
    pub const fn counters(mut self, count: u16) -> Self {
        self.counter_count = if count > Self::COUNTERS_MAX { Self::COUNTERS_MAX } else { count };
        self
    }

    /// The most lines of a group. Stores to more are written back at once, and the group is fenced when it ends.
    #[must_use]
    pub const fn lines_max(mut self, lines: u32) -> Self {
        self.lines_max = lines;
        self
    }

    /// The number of ended groups that wait: the thread that ends one more writes all of them back. Zero: each group is written back when it ends.
    #[must_use]
    pub const fn lag(mut self, groups: usize) -> Self {
        self.lag = groups;
        self
    }

    /// Whether a group counts as durable only when all groups that ended before it do.
    #[must_use]
    pub const fn in_order(mut self, in_order: bool) -> Self {
        self.is_in_order = in_order;
        self
    }

    /// Tags of lines have 16 bits, and one value for lines without a group.
    const COUNTERS_MAX: u16 = u16::MAX - 1;
}
