//! Which processes have a file open, so that no other can open it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The processes that hold a lock of this file, as far as they are in the same namespace of processes: "process 17 (cp), process 19 (mv)". `None` if there are
/// none, or the kernel does not say.
///
/// # Source
/// proc_locks(5)
pub(crate) fn holders(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let mut text = String::new();
    for pid in locks.lines().filter_map(|line| pid_of_lock(line, file.dev(), file.ino())) {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}process {pid} ({})", command.trim_end());
    }
    (!text.is_empty()).then_some(text)
}

/// The process of a lock of the file with this device and inode, if the line is one: `1: FLOCK  ADVISORY  WRITE 123 08:02:4567 0 EOF`.
fn pid_of_lock(line: &str, dev: u64, ino: u64) -> Option<u32> {
    let mut words = line.split_whitespace();
    // What waits for a lock has "->" here.
    words.next().filter(|number| number.ends_with(':'))?;
    words.next().filter(|kind| *kind == "FLOCK")?;
    let (pid, file) = (words.nth(2)?, words.next()?);
    let mut parts = file.split(':');
    let [major, minor] = [parts.next()?, parts.next()?].map(|part| u64::from_str_radix(part, 16).ok());
    let is_file = major == Some(u64::from(rustix::fs::major(dev)))
        && minor == Some(u64::from(rustix::fs::minor(dev)))
        && parts.next()?.parse() == Ok(ino);
    pid.parse().ok().filter(|pid| is_file && *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_other_locks_and_waiters_are_left_out() {
        let dev = rustix::fs::makedev(8, 18);
        let pid = |line| pid_of_lock(line, dev, 77);
        assert_eq!(pid("12: FLOCK  ADVISORY  WRITE 345 08:12:77 0 EOF"), Some(345));
        for other in [
            "12: FLOCK  ADVISORY  WRITE 345 08:12:78 0 EOF",
            "12: FLOCK  ADVISORY  WRITE 345 08:11:77 0 EOF",
            "12: POSIX  ADVISORY  WRITE 345 08:12:77 0 EOF",
            "12: -> FLOCK  ADVISORY  WRITE 345 08:12:77 0 EOF",
            "12: FLOCK  ADVISORY  WRITE 0 08:12:77 0 EOF",
            "12: FLOCK  ADVISORY",
            "",
        ] {
            assert_eq!(pid(other), None, "{other}");
        }
    }
}
