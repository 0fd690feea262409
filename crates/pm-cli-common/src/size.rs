//! Numbers of bytes on the command line.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
///
/// Parsed from a number with an optional suffix: `K`, `M`, `G` or `T` are powers of 1,024, optionally followed by `iB`. Displayed exactly, in
/// the largest unit of which it is a whole number; with a precision (`{:.1}`), in the largest unit that it reaches, rounded to so many digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = parse_size::Config::new().with_binary().parse_size(text);
        size.map(Self).map_err(|error| {
            format!("{error}; a size is a number with an optional suffix K, M, G or T: 1G, 512M, 4096")
        })
    }
}

// By hand: crates that format sizes round them, and a rounded size could be mistaken for another one.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: u64| self.0 >= unit && (f.precision().is_some() || self.0.is_multiple_of(unit));
        let (name, unit) = UNITS.into_iter().find(|(_, unit)| fits(*unit)).unwrap_or(UNITS[4]);
        match f.precision().filter(|_| !self.0.is_multiple_of(unit)) {
            Some(digits) => write!(f, "{:.digits$} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} {name}", self.0 / unit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_in_binary_units() {
        for (text, bytes) in [
            ("1G", 1 << 30),
            ("512M", 512 << 20),
            ("4096", 4096),
            ("2t", 2 << 40),
            ("3KiB", 3072),
            ("7b", 7),
            ("1.5G", 3 << 29),
            ("1 G", 1 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "G", "1X", "-1", "99999999999G", "GiB", "1GG"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_displayed_exactly_or_rounded() {
        for (bytes, exact, rounded) in [
            (0, "0 bytes", "0 bytes"),
            (1023, "1023 bytes", "1023 bytes"),
            (1024, "1 KiB", "1 KiB"),
            (1536, "1536 bytes", "1.5 KiB"),
            ((3 << 30) + (1 << 29), "3584 MiB", "3.5 GiB"),
            ((64 << 20) + 1, "67108865 bytes", "64.0 MiB"),
            (5 << 40, "5 TiB", "5 TiB"),
            (1 << 60, "1048576 TiB", "1048576 TiB"),
        ] {
            assert_eq!(
                (Size(bytes).to_string(), format!("{:.1}", Size(bytes))),
                (exact.into(), rounded.into())
            );
        }
    }
}
