//! What a result depends on and a reader must know.

use jiff::Timestamp;
use serde::Serialize;
use std::fs;

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
    pub unix_time_s: i64,
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
        let now = Timestamp::now();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_mhz: field(&cpuinfo, "cpu MHz").and_then(|mhz| mhz.parse().ok()),
            clock: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            kernel: line("/proc/sys/kernel/osrelease"),
            unix_time_s: now.as_second(),
            date: now.strftime("%F").to_string(),
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

#[cfg(test)]
mod tests {
    use super::*;

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
