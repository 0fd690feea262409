//! What a result depends on and a reader must know.

use serde::Serialize;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The facts about the machine that a result was measured on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name, as it gives it.
    pub cpu: String,
    /// How many processors this process may use.
    pub cpu_count: usize,
    /// The processor's frequency at the start, as the kernel sees it; none where it does not tell.
    pub cpu_mhz: Option<f64>,
    /// What the kernel takes time from.
    pub clock: String,
    /// The kernel's release.
    pub kernel: String,
    /// When the measurement began, in seconds since 1970, UTC.
    pub unix_time_s: u64,
    /// The same day as people write it.
    pub date: String,
    /// How many tasks were running or waiting to run, averaged over the minute before the start. More than
    /// one means that the machine had other things to do.
    pub load: Option<f64>,
}

impl Machine {
    /// This one, now. What the system does not tell is "unknown".
    #[must_use]
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let unix_time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_mhz: field(&cpuinfo, "cpu MHz").and_then(|mhz| mhz.parse().ok()),
            clock: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            kernel: line("/proc/sys/kernel/osrelease"),
            unix_time_s,
            date: date(unix_time_s),
            load: line("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()),
        }
    }
}

/// The first value of `name` in a list of `name : value` lines.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next()
}

fn line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// The day of a time in seconds since 1970, by the Gregorian calendar.
///
/// Years are counted from March here, so that the leap day is the last of a year, and in whole eras of 400
/// years, which all have the same length.
fn date(unix_time_s: u64) -> String {
    const DAYS_FROM_MARCH_OF_YEAR_0: u64 = 719_468;
    const ERA_DAYS: u64 = 146_097;
    let days = unix_time_s / 86_400 + DAYS_FROM_MARCH_OF_YEAR_0;
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / (ERA_DAYS - 1)) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next_year) =
        if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    format!("{:04}-{month:02}-{day_of_month:02}", era * 400 + year_of_era + next_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (unix_time_s, day) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(unix_time_s), day, "{unix_time_s}");
        }
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 2\nmodel name\t: A CPU: the second\n";
        assert_eq!(field(text, "model name"), Some("A CPU: the second"));
        assert_eq!(field(text, "name"), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_processor() {
        let here = Machine::here();
        assert_ne!(here.kernel, "unknown");
        assert!(here.cpu_count >= 1);
    }
}
