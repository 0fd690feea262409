//! Answers: lines for people, objects for machines, and bars on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::io::Write as _;

/// A line of the answer. Nobody to read it is no reason to stop: a repair goes on.
pub(crate) fn say(line: impl Display) {
    writeln!(std::io::stdout(), "{line}").unwrap_or_default();
}

/// One line of an answer for people.
pub(crate) fn field(name: &str, value: impl Display) {
    say(format_args!("  {name:<9} {value}"));
}

/// A number of bytes, roughly.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let unit = UNITS.iter().zip(1_u32..).take_while(|(_, power)| bytes >> (10 * power) > 0).last();
    let Some((name, power)) = unit else { return format!("{bytes} bytes") };
    let whole = 1_u64 << (10 * power);
    if bytes.is_multiple_of(whole) {
        format!("{} {name}", bytes / whole)
    } else {
        // For people only: what is cut off is said by nobody.
        format!("{:.1} {name}", bytes as f64 / whole as f64)
    }
}

/// How many of something there are.
pub(crate) fn count(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// A bar on the terminal, if there is one, for so many bytes to look at.
pub(crate) fn progress(most: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {elapsed}");
    let bar = ProgressBar::new(most).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}

/// A moment in UTC, from seconds since 1970.
///
/// # Source
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`: years that begin in March, so that the odd
/// day is the last one.
pub(crate) fn utc(seconds: u64) -> String {
    const DAYS_TO_1970: u64 = 719_468;
    let (days, second) = (seconds / 86_400 + DAYS_TO_1970, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_for_people() {
        let told = [0, 1023, 1024, 1536, 64 << 20, (3 << 30) + (1 << 29), 5 << 40, 1 << 60].map(bytes);
        assert_eq!(
            told,
            ["0 bytes", "1023 bytes", "1 KiB", "1.5 KiB", "64 MiB", "3.5 GiB", "5 TiB", "1048576 TiB"]
        );
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (seconds, moment) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), moment);
        }
    }
}
