//! Sizes as people write them.

use miette::{Result, bail, miette};

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// The number of bytes that `text` names: `512M`, `1G`, or a plain number of bytes.
///
/// # Errors
/// When it is no number with an optional K, M or G, is zero, or does not fit 64 bits.
pub fn parse_size(text: &str) -> Result<u64> {
    let (digits, unit) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], MIB),
        Some(b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let count: u64 =
        digits.parse().map_err(|_| miette!("{text:?} is not a size: write 512M, 1G or a number of bytes"))?;
    match count.checked_mul(unit) {
        Some(0) | None => bail!("{text:?} is not a possible size"),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary() {
        assert_eq!(parse_size("4096").expect("a size"), 4096);
        assert_eq!(parse_size("3k").expect("a size"), 3072);
        assert_eq!(parse_size("512M").expect("a size"), 512 * MIB);
        assert_eq!(parse_size("1G").expect("a size"), 1024 * MIB);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "M", "-1M", "1.5G", "0", "0G", "1T", "99999999999999999999", "18446744073709551615G", "é"]
        {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }
}
