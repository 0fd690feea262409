//! Sizes as people write and read them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Written as a number with an optional suffix: `K`, `M`, `G` or `T` are powers of 1,024, with or
/// without `iB` behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 5] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let suffix = text[digits.len()..].to_ascii_uppercase();
        let suffix = suffix.strip_suffix("IB").or_else(|| suffix.strip_suffix('B')).unwrap_or(&suffix);
        let unit = UNITS.iter().find(|(name, _)| *name == suffix);
        let (Ok(count), Some((_, unit))) = (digits.parse::<u64>(), unit) else {
            return Err(
                "a size is a whole number with K, M, G or T behind it, or nothing: 1G, 512M, 4096".to_owned()
            );
        };
        count.checked_mul(*unit).map(Self).ok_or_else(|| "a size has at most 64 bits".to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The largest unit of which it is a whole number.
        let (name, unit) =
            UNITS.iter().find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit)).unwrap_or(&UNITS[4]);
        let suffix = if name.is_empty() { "bytes".to_owned() } else { format!("{name}iB") };
        write!(f, "{} {suffix}", self.0 / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in
            [("1G", 1 << 30), ("512M", 512 << 20), ("4096", 4096), ("2t", 2 << 40), ("3KiB", 3072), ("7b", 7)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "G", "1.5G", "1X", "-1", "1 G", "99999999999G", "GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!(Size(1 << 30).to_string(), "1 GiB");
        assert_eq!(Size(1536).to_string(), "1536 bytes");
        assert_eq!(Size(0).to_string(), "0 bytes");
    }
}
