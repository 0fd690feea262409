//! Times, as the kernel gives them and as they are stored.

use fuser::TimeOrNow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A stored time.
pub(crate) fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// A time to set, to the range of what is stored, the years 1677 to 2262.
pub(crate) fn time_ns(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    let ns = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
    // Before 1970, fuser 0.18 subtracts the nanoseconds that the kernel means to be added to the seconds.
    let ns_before =
        |distance: Duration| i64::from(distance.subsec_nanos()) - ns(Duration::from_secs(distance.as_secs()));
    time.duration_since(UNIX_EPOCH).map_or_else(|before| ns_before(before.duration()), ns)
}
