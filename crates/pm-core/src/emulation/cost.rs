//! What accesses take, in ticks.

use super::clock::whole;

/// The ticks of an access: a part that each one takes, and a part for each line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) fixed: f64,
    pub(super) per_line: f64,
}

impl Cost {
    /// The cost of an access to one line, and of one to `many`.
    pub(super) fn through(one: f64, of_many: f64, many: u64) -> Self {
        let per_line = ((of_many - one) / (many - 1) as f64).max(0.0);
        Self { fixed: (one - per_line).max(0.0), per_line }
    }

    #[inline]
    pub(super) const fn is_zero(&self) -> bool {
        self.fixed == 0.0 && self.per_line == 0.0
    }

    #[inline]
    pub(super) fn of(&self, lines: u64) -> u64 {
        whole(self.fixed + self.per_line * lines as f64)
    }
}

/// The ticks of an access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) cost: Cost,
    /// The ticks for which the device serves a line; 0 if its bandwidth has no limit.
    pub(super) service: f64,
}

impl Access {
    /// Whether the access is not delayed.
    #[inline]
    pub(super) const fn is_free(&self) -> bool {
        self.cost.is_zero() && self.service == 0.0
    }
}
