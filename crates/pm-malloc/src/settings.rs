//! Settings from environment variables.

use core::fmt;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

/// The default length of a new file.
const DEFAULT_BYTES: u64 = 256 << 20;

/// Lengths are rounded up to this unit, which all media can map.
const UNIT_BYTES: u64 = 2 << 20;

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `PM_MALLOC_FILE`: the heap's file, created if it does not exist. `%p` in it is the number of the process, for programs that start
    /// others: two processes cannot share a heap.
    pub(crate) file: PathBuf,
    /// `PM_MALLOC_SIZE`: the length of a new file, with K, M, G or T.
    pub(crate) file_bytes: u64,
    /// `PM_MALLOC_DURABLE`: whether each header is made durable.
    pub(crate) durable: bool,
    /// `PM_MALLOC_REUSE_MS`: the least time before freed blocks are reused.
    pub(crate) quarantine: Duration,
    /// `PM_MALLOC_KEEP`: whether the file has a name, and stays when the process ends. By default, only without `%p`.
    pub(crate) keep: bool,
    /// `PM_MALLOC_FRESH`: whether an existing heap is replaced by an empty one.
    pub(crate) fresh: bool,
    /// `PM_MALLOC_SPARSE`: whether the file takes only the space that has been used.
    pub(crate) sparse: bool,
    /// The file's name with `%p`, for children that need a name of their own.
    pub(crate) pattern: OsString,
}

/// A variable that is malformed, or missing and required.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SettingsError {
    NoFile,
    Malformed { name: &'static str, value: OsString, wanted: &'static str },
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("PM_MALLOC_FILE is not set"),
            Self::Malformed { name, value, wanted } => {
                write!(f, "{name} is {}, and should be {wanted}", value.display())
            }
        }
    }
}

impl Settings {
    /// Parses these variables.
    pub(crate) fn of(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let parsed = |name: &'static str, wanted, parse: &dyn Fn(&str) -> Option<u64>| {
            let Some(value) = get(name) else { return Ok(None) };
            match value.to_str().and_then(parse) {
                Some(number) => Ok(Some(number)),
                None => Err(SettingsError::Malformed { name, value, wanted }),
            }
        };
        let file = get("PM_MALLOC_FILE").filter(|file| !file.is_empty()).ok_or(SettingsError::NoFile)?;
        let bytes = parsed("PM_MALLOC_SIZE", "a number of bytes, or of them with K, M, G or T", &size)?;
        let switch = |name| {
            let found = parsed(name, "0 or 1", &|text| text.parse().ok().filter(|bit| *bit < 2))?;
            Ok(found.map(|bit| bit == 1))
        };
        let reuse = parsed("PM_MALLOC_REUSE_MS", "a number of milliseconds", &|text| text.parse().ok())?;
        // The program may change its working directory.
        let file = std::path::absolute(&file).map_or(file, PathBuf::into_os_string);
        Ok(Self {
            file: with_process_number(&file),
            file_bytes: bytes.unwrap_or(DEFAULT_BYTES),
            durable: switch("PM_MALLOC_DURABLE")?.unwrap_or(false),
            quarantine: Duration::from_millis(reuse.unwrap_or(0)),
            keep: switch("PM_MALLOC_KEEP")?.unwrap_or(!has_process_number(&file)),
            fresh: switch("PM_MALLOC_FRESH")?.unwrap_or(false),
            sparse: switch("PM_MALLOC_SPARSE")?.unwrap_or(true),
            pattern: file,
        })
    }

    /// Whether each process has a file of its own.
    pub(crate) fn is_for_each_process(&self) -> bool {
        has_process_number(&self.pattern)
    }

    /// The name of the file of a child that outlives its parent, or `None` if it gets no name.
    pub(crate) fn name_of_child(&self) -> Option<PathBuf> {
        if !self.keep {
            return None;
        }
        if self.is_for_each_process() {
            return Some(with_process_number(&self.pattern));
        }
        let mut name = self.pattern.clone();
        name.push(format!(".{}", std::process::id()));
        Some(name.into())
    }
}

fn has_process_number(file: &OsStr) -> bool {
    file.as_bytes().windows(2).any(|pair| pair == b"%p")
}

fn with_process_number(file: &OsStr) -> PathBuf {
    let number = std::process::id().to_string();
    let mut bytes = Vec::with_capacity(file.len());
    let mut rest = file.as_bytes();
    while let Some(at) = rest.windows(2).position(|pair| pair == b"%p") {
        bytes.extend_from_slice(&rest[..at]);
        bytes.extend_from_slice(number.as_bytes());
        rest = &rest[at + 2..];
    }
    bytes.extend_from_slice(rest);
    OsString::from_vec(bytes).into()
}

/// By hand: this library is loaded into other programs, and has few dependencies.
fn size(text: &str) -> Option<u64> {
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(*unit)?, *bits)));
    let (digits, bits) = unit.unwrap_or((text, 0));
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << bits)?;
    bytes.checked_next_multiple_of(UNIT_BYTES).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let find = |name: &str| variables.iter().find(|variable| variable.0 == name);
        Settings::of(|name| find(name).map(|variable| variable.1.into()))
    }

    #[test]
    fn only_file_is_required() {
        let defaults = of(&[("PM_MALLOC_FILE", "/a")]).expect("enough");
        assert_eq!((defaults.file_bytes, defaults.durable), (DEFAULT_BYTES, false));
        assert_eq!(defaults.quarantine, Duration::ZERO);
        assert!(defaults.keep && defaults.sparse && !defaults.fresh);
        assert_eq!(of(&[("PM_MALLOC_FILE", "")]), Err(SettingsError::NoFile));
    }

    #[test]
    fn process_number_is_substituted() {
        let named = |file| of(&[("PM_MALLOC_FILE", file)]).expect("enough").file;
        let number = std::process::id();
        assert_eq!(named("/a/%p/%p.heap%"), PathBuf::from(format!("/a/{number}/{number}.heap%")));
        assert_eq!(named("/a/%d"), PathBuf::from("/a/%d"));
    }

    #[test]
    fn file_without_process_number_is_kept() {
        let set =
            |file, keep| of(&[("PM_MALLOC_FILE", file), ("PM_MALLOC_KEEP", keep)]).expect("both are right");
        let default = of(&[("PM_MALLOC_FILE", "/a/%p")]).expect("enough");
        assert!(!default.keep && set("/a/%p", "1").keep && !set("/a", "0").keep);
        let number = std::process::id();
        assert_eq!(default.name_of_child(), None);
        assert_eq!(set("/a/%p", "1").name_of_child(), Some(format!("/a/{number}").into()));
        assert_eq!(set("/a", "1").name_of_child(), Some(format!("/a.{number}").into()));
    }

    #[test]
    fn relative_name_becomes_absolute() {
        let file = of(&[("PM_MALLOC_FILE", "a")]).expect("enough").file;
        assert_eq!(file, std::env::current_dir().expect("there is one").join("a"));
    }

    #[test]
    fn sizes_have_units_and_are_rounded_up() {
        let sized =
            |size| of(&[("PM_MALLOC_FILE", "/a"), ("PM_MALLOC_SIZE", size)]).map(|found| found.file_bytes);
        for (text, bytes) in
            [("1", 2 << 20), ("4096K", 4 << 20), ("3M", 4 << 20), ("2G", 2 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(sized(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "G", "-1", "1.5G", "1g", "99999999999T"] {
            let message = sized(text).expect_err(text).to_string();
            assert!(message.contains("PM_MALLOC_SIZE is") && message.contains(text), "{message}");
        }
    }

    #[test]
    fn switches_and_times_are_numbers() {
        let set = |name, value| of(&[("PM_MALLOC_FILE", "/a"), (name, value)]);
        assert_eq!(set("PM_MALLOC_DURABLE", "1").map(|found| found.durable), Ok(true));
        assert_eq!(set("PM_MALLOC_DURABLE", "0").map(|found| found.durable), Ok(false));
        assert!(set("PM_MALLOC_DURABLE", "yes").is_err());
        let waiting = set("PM_MALLOC_REUSE_MS", "100").expect("a number");
        assert_eq!(waiting.quarantine, Duration::from_millis(100));
        assert!(set("PM_MALLOC_REUSE_MS", "0.1").is_err());
    }
}
