//! The time stamp counter as a clock, and the time of threads that it does not show.

use super::error::EmulationError;
use crate::insn::ticks;
use core::cell::Cell;
use core::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

/// Two measurements of the counter's frequency may differ by this factor.
const FREQUENCY_TOLERANCE: f64 = 0.02;
/// The longest overshoot that is taken from the next accesses. Interrupts and other virtual machines cause such. After a longer one, the accesses that
/// follow would not be delayed for too long.
const CARRY_MAX: Duration = Duration::from_micros(100);
/// A wait that is longer sleeps first.
const SLEEP_MIN: Duration = Duration::from_micros(200);
/// The time by which a sleep may be too long.
const SLEEP_MARGIN: Duration = Duration::from_micros(100);

thread_local! {
    static THREAD: ThreadTime = const { ThreadTime { carry: Cell::new(0), ahead_ps: Cell::new(0) } };
}

/// What a thread's time differs from the counter by.
struct ThreadTime {
    /// The ticks that the last wait has overshot by.
    carry: Cell<u64>,
    /// The picoseconds by which simulated time is ahead of real time.
    ahead_ps: Cell<i64>,
}

/// The frequency of the time stamp counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    ticks_per_ns: f64,
    carry_max: u64,
    sleep_min: u64,
}

impl Clock {
    /// Measures the frequency twice, for some milliseconds.
    pub(super) fn measure() -> Result<Self, EmulationError> {
        let (first, second) = (ticks_per_ns(), ticks_per_ns());
        if !first.is_finite() || first <= 0.0 || (second / first - 1.0).abs() > FREQUENCY_TOLERANCE {
            return Err(EmulationError::UnsteadyClock);
        }
        let ticks_per_ns = f64::midpoint(first, second);
        let to_ticks = |time: Duration| whole(time.as_nanos() as f64 * ticks_per_ns);
        Ok(Self { ticks_per_ns, carry_max: to_ticks(CARRY_MAX), sleep_min: to_ticks(SLEEP_MIN) })
    }

    /// A clock for which each overshoot is too long.
    #[cfg(test)]
    pub(super) const fn without_carry(self) -> Self {
        Self { carry_max: 0, ..self }
    }

    /// A time in ticks.
    pub(super) fn to_ticks(self, time: Duration) -> f64 {
        time.as_nanos() as f64 * self.ticks_per_ns
    }

    pub(super) fn to_duration(self, ticks: u64) -> Duration {
        Duration::from_secs_f64(ticks as f64 / self.ticks_per_ns / 1e9)
    }

    /// The ticks by which this thread's waits have overshot, and which were not taken from an access yet.
    #[inline]
    pub(super) fn carry() -> u64 {
        THREAD.with(|thread| thread.carry.get())
    }

    /// Takes an overshoot from the next accesses, and returns the part of it for which it is too long.
    #[inline]
    pub(super) fn set_carry(self, ticks: u64) -> u64 {
        THREAD.with(|thread| thread.carry.set(ticks.min(self.carry_max)));
        ticks.saturating_sub(self.carry_max)
    }

    /// The present moment of this thread's simulated time, in ticks, if the counter shows `now`.
    #[inline]
    pub(super) fn simulated(self, now: u64) -> u64 {
        let ahead = THREAD.with(|thread| thread.ahead_ps.get()) as f64 / 1000.0 * self.ticks_per_ns;
        whole(now as f64 + ahead)
    }

    /// Advances this thread's simulated time by the difference of two numbers of ticks.
    #[inline]
    pub(super) fn advance(self, asked: u64, own: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "a conversion of a float saturates")]
        let ps = ((asked as f64 - own as f64) / self.ticks_per_ns * 1000.0) as i64;
        THREAD.with(|thread| thread.ahead_ps.set(thread.ahead_ps.get().saturating_add(ps)));
    }

    /// Waits from `now` until the counter shows `due`. The thread's next accesses take less time, by what this overshoots. Returns the ticks of a longer
    /// overshoot, such as that of a thread that was preempted, which no access makes up for.
    #[inline]
    pub(super) fn wait(self, mut now: u64, due: u64) -> u64 {
        while now < due {
            if due - now > self.sleep_min {
                thread::sleep(self.to_duration(due - now) - SLEEP_MARGIN);
            }
            // Without PAUSE, for which a hypervisor may run another virtual machine.
            now = ticks();
        }
        self.set_carry(now - due)
    }
}

/// The ticks between two moments, by the system's clock.
fn ticks_per_ns() -> f64 {
    let (begin_ticks, begin) = both_clocks();
    while begin.elapsed() < Duration::from_millis(5) {
        spin_loop();
    }
    let (end_ticks, end) = both_clocks();
    (end_ticks - begin_ticks) as f64 / (end - begin).as_nanos() as f64
}

/// The counter and the system's clock at the same moment: of some readings the one that took the shortest time.
fn both_clocks() -> (u64, Instant) {
    let reading = || {
        let before = ticks();
        let now = Instant::now();
        (ticks() - before, before, now)
    };
    let (took, before, now) =
        (0..20).map(|_| reading()).min_by_key(|reading| reading.0).expect("20 readings");
    (before + took / 2, now)
}

/// Rounds down, and a negative number to 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a conversion of a float saturates"
)]
pub(super) const fn whole(ticks: f64) -> u64 {
    ticks as u64
}

/// A moment in the simulated time of a thread: its real time, corrected by what the thread's accesses to [simulated](super::Speed::simulated) memories
/// would have taken longer or shorter.
///
/// Simulated time belongs to a thread: moments of different threads cannot be compared.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedInstant {
    real: Instant,
    ahead_ps: i64,
}

impl SimulatedInstant {
    /// The present moment of the calling thread.
    #[must_use]
    pub fn now() -> Self {
        Self { real: Instant::now(), ahead_ps: THREAD.with(|thread| thread.ahead_ps.get()) }
    }

    /// The simulated time since this moment; zero if the accesses since then would have taken less than no time.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        let now = Self::now();
        let real_ps = (now.real - self.real).as_nanos().saturating_mul(1000);
        let ahead_ps = i128::from(now.ahead_ps) - i128::from(self.ahead_ps);
        let simulated_ps = i128::try_from(real_ps).unwrap_or(i128::MAX).saturating_add(ahead_ps);
        Duration::from_nanos(u64::try_from(simulated_ps.max(0) / 1000).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overshoot_is_carried_up_to_a_limit_and_the_rest_is_returned() {
        let clock = Clock { ticks_per_ns: 1.0, carry_max: 1000, sleep_min: u64::MAX };
        assert_eq!((clock.wait(5000, 4500), Clock::carry()), (0, 500));
        assert_eq!((clock.wait(5000, 4000), Clock::carry()), (0, 1000));
        assert_eq!((clock.wait(9000, 4000), Clock::carry()), (4000, 1000));
        clock.set_carry(0);
    }
}
