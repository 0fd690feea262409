//! The records of a pmemcheck log.

use super::RecordError;
use crate::SourceLocation;

/// The longest store that the tool logs: no instruction stores more.
const MOST_STORED: u64 = 256;

/// Markers of programs for `pmreorder`, in addition to names that end in `.BEGIN` and `.END`.
const MARKERS: [&str; 6] =
    ["FREORDER", "PREORDER", "AREORDER", "DEFAULT_REORDER", "FAULT_ONLY", "NO_REORDER_FAULT"];

/// Messages of Valgrind that begin with a hexadecimal digit.
const LOWER_CASE_MESSAGES: [&str; 1] = ["brk segment overflow"];

/// A record, with addresses of the process that was watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// `STORE;address;value;size`, with `;frame` for each frame of a stack trace.
    Store { address: u64, bytes: Vec<u8>, location: Option<SourceLocation> },
    /// `FLUSH;address;size`.
    Flush { address: u64, len_bytes: u64 },
    /// `FENCE`.
    Fence,
    /// `REGISTER_FILE;name;address;size;offset`.
    RegisterFile { name: String, address: u64, len_bytes: u64, offset: u64 },
    /// `COMMIT`, of an instruction that no processor has.
    Commit,
    /// A marker that the program logged.
    Marker,
    /// `STOP`.
    Stop,
}

impl Record {
    /// Reads the text between two delimiters.
    pub(super) fn parse(text: &str) -> Result<Self, RecordError> {
        let mut fields = text.split(';');
        let kind = fields.next().unwrap_or_default();
        let mut field = |name| fields.next().ok_or(RecordError::Missing(name));
        let record = match kind {
            "STORE" => {
                let address = number(field("address")?, "address")?;
                let value = field("value")?;
                let size = number(field("size")?, "size")?;
                let bytes = value_bytes(value, size)?;
                address.checked_add(size).ok_or(RecordError::Range)?;
                return Ok(Self::Store { address, bytes, location: location(fields) });
            }
            "FLUSH" => {
                let address = number(field("address")?, "address")?;
                let len_bytes = number(field("size")?, "size")?;
                address.checked_add(len_bytes).ok_or(RecordError::Range)?;
                Self::Flush { address, len_bytes }
            }
            "REGISTER_FILE" => {
                let name = field("name")?.to_owned();
                let address = number(field("address")?, "address")?;
                let len_bytes = number(field("size")?, "size")?;
                let offset = number(field("offset")?, "offset")?;
                address.checked_add(len_bytes).ok_or(RecordError::Range)?;
                offset.checked_add(len_bytes).ok_or(RecordError::Range)?;
                Self::RegisterFile { name, address, len_bytes, offset }
            }
            "FENCE" => Self::Fence,
            "COMMIT" => Self::Commit,
            "STOP" => Self::Stop,
            _ if is_marker(text) => return Ok(Self::Marker),
            _ => return Err(RecordError::Unknown),
        };
        // A name with a semicolon, for example, whose rest would be taken for numbers.
        fields.next().map_or(Ok(record), |_| Err(RecordError::Extra))
    }
}

fn is_marker(text: &str) -> bool {
    MARKERS.contains(&text) || text.ends_with(".BEGIN") || text.ends_with(".END")
}

/// The record at the end of a line without a message after it: the longest record that the text begins with, or all of it if the record continues.
pub(super) fn without_message<'t>(text: &'t str, marker: Option<&str>) -> &'t str {
    let mut fields = text.split(';');
    let kind = fields.next().unwrap_or_default();
    // The number of fields up to the last number.
    let (count, sizes) = match kind {
        "STORE" => (4, Some(['1', '2', '4', '8'])),
        "FLUSH" => (3, None),
        "REGISTER_FILE" => (5, None),
        _ => {
            let names = ["FENCE", "COMMIT", "STOP"].into_iter().chain(MARKERS).chain(marker);
            let name = names.filter(|name| text.starts_with(name)).max_by_key(|name| name.len());
            let suffix =
                || [".BEGIN", ".END"].into_iter().filter_map(|end| Some(text.find(end)? + end.len())).min();
            return name.map(str::len).or_else(suffix).map_or(text, |len| &text[..len]);
        }
    };
    let Some(last) = fields.nth(count - 2) else { return text };
    let start = last.as_ptr().addr() - text.as_ptr().addr();
    match number_len(last, sizes) {
        Some(len) if len < last.len() => &text[..start + len],
        _ => text,
    }
}

/// The length of the hexadecimal number at the start of the text. Words that begin with hexadecimal digits may follow it. Of two
/// readings, the one that leaves a whole word, or a number of one digit that is one of `sizes`.
fn number_len(text: &str, sizes: Option<[char; 4]>) -> Option<usize> {
    let digits = text.strip_prefix("0x")?;
    let prefix = text.len() - digits.len();
    let run = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    if run == digits.len() {
        return Some(text.len());
    }
    let is_size = |sizes: [char; 4]| digits.starts_with(sizes);
    let known = LOWER_CASE_MESSAGES.iter().filter_map(|message| digits.find(message)).min();
    let len = match known {
        Some(known) => known,
        None if sizes.is_some_and(is_size) => 1,
        None if digits[run..].starts_with(|c: char| c.is_ascii_lowercase()) => {
            digits[..run].trim_end_matches(|c: char| c.is_ascii_lowercase()).len()
        }
        None => run,
    };
    (len > 0).then_some(prefix + len)
}

/// The digits of a hexadecimal number.
fn digits<'t>(text: &'t str, name: &'static str) -> Result<&'t str, RecordError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let are_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    are_digits.then_some(digits).ok_or(RecordError::NotANumber(name))
}

fn number(text: &str, name: &'static str) -> Result<u64, RecordError> {
    u64::from_str_radix(digits(text, name)?, 16).map_err(|_| RecordError::NotANumber(name))
}

/// The stored bytes of a little-endian number.
fn value_bytes(value: &str, size: u64) -> Result<Vec<u8>, RecordError> {
    if size == 0 || size > MOST_STORED {
        return Err(RecordError::StoreSize { found: size, most: MOST_STORED });
    }
    let mut bytes = vec![0; crate::line::index(size)];
    for (at, digit) in digits(value, "value")?.bytes().rev().enumerate() {
        let digit = char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let digit = digit.ok_or(RecordError::NotANumber("value"))?;
        match bytes.get_mut(at / 2) {
            Some(byte) => *byte |= digit << (at % 2 * 4),
            None if digit == 0 => {}
            None => return Err(RecordError::Value(size)),
        }
    }
    Ok(bytes)
}

/// The place of the innermost frame whose source is known; else the text of the innermost frame.
fn location<'t>(frames: impl Iterator<Item = &'t str>) -> Option<SourceLocation> {
    let mut innermost = None;
    for frame in frames.filter(|frame| !frame.is_empty()) {
        if let Some(place) = place(frame) {
            return Some(place);
        }
        innermost = innermost.or(Some(frame));
    }
    innermost.map(|frame| SourceLocation::new(frame, 0, 0))
}

/// Of `0x4011F6: main (log.c:23)`, the text in parentheses. The frames that this one is inlined into, or a message, may follow.
fn place(frame: &str) -> Option<SourceLocation> {
    let mut groups = frame.split('(').skip(1).filter_map(|group| Some(group.split_once(')')?.0));
    groups.find_map(|place| {
        let (file, line) = place.rsplit_once(':')?;
        Some(SourceLocation::new(file, line.parse().ok()?, 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_records_are_read_exactly() {
        let store = |text| match Record::parse(text) {
            Ok(Record::Store { address, bytes, location }) => {
                (address, bytes, location.map(|location| location.to_string()))
            }
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(store("STORE;0x1000;0x2a;0x4"), (0x1000, vec![0x2a, 0, 0, 0], None));
        assert_eq!(store("STORE;0x1;0x000102;0x2").1, [2, 1]);
        let wide = store("STORE;0x1;0x100000000000000000000000000000002;0x11").1;
        assert_eq!((wide[0], wide[16], wide.len()), (2, 1, 17));
        let traced =
            store("STORE;0x1;0x1;0x1;0x4E2: memcpy (in /usr/lib/libc.so.6);0x4011F6: main (log.c:23)");
        assert_eq!(traced.2.as_deref(), Some("log.c:23"));
        assert_eq!(store("STORE;0x1;0x1;0x1;0x4E2: f (in /a.so)").2.as_deref(), Some("0x4E2: f (in /a.so)"));
        for (text, error) in [
            ("", RecordError::Unknown),
            ("STORES;0x1", RecordError::Unknown),
            ("STORE;0x1;0x1", RecordError::Missing("size")),
            ("STORE;0x1;0x1ff;0x1", RecordError::Value(1)),
            ("STORE;0x1;0x1;0x0", RecordError::StoreSize { found: 0, most: 256 }),
            ("STORE;0x1;0x1;0xfffffffff", RecordError::StoreSize { found: 0xf_ffff_ffff, most: 256 }),
            ("STORE;0xffffffffffffffff;0x1;0x8", RecordError::Range),
            ("STORE;+1;0x1;0x8", RecordError::NotANumber("address")),
            ("FLUSH;0x10000000000000000;0x40", RecordError::NotANumber("address")),
            ("FLUSH;0x40", RecordError::Missing("size")),
            ("FLUSH;0x40;0x40;0x1", RecordError::Extra),
            ("REGISTER_FILE;/mnt/pool;0x0;0x40;0x0;0x1000", RecordError::Extra),
            ("FENCE;", RecordError::Extra),
            ("REGISTER_FILE;/mnt/pool;0x1000;0x40", RecordError::Missing("offset")),
        ] {
            assert_eq!(Record::parse(text), Err(error), "{text}");
        }
        assert_eq!(Record::parse("pmem_persist.BEGIN"), Ok(Record::Marker));
    }

    #[test]
    fn message_behind_a_number_is_no_part_of_it() {
        for (record, message) in [
            ("STORE;0x5684c48;0x1;0x8", "brk segment overflow in thread #1: can't grow to 0x4861000"),
            ("STORE;0x1;0x1;0x8", "bad text"),
            ("STORE;0x1;0x1;0x8", "Warning: a;b"),
            ("STORE;0x1;0x1;0x8", ""),
            ("STORE;0x1;0x1;0x8;0x1: f (a.c:1)", ""),
            ("FLUSH;0x1;0xff", "brk segment overflow"),
            ("FLUSH;0x1;0x40", "disInstr"),
            ("FLUSH;0x1;0xff8", "Warning: a"),
            ("FLUSH;0x1;0x40", " text"),
            ("REGISTER_FILE;/a;0x1000;0x40;0x0", "vex: text"),
            ("FENCE", "brk"),
            ("a.BEGIN", "text.END"),
            ("NO_REORDER_FAULT", "Warning"),
            ("half way", "Warning"),
        ] {
            assert_eq!(without_message(&format!("{record}{message}"), Some("half way")), record);
        }
        for half in ["STO", "STORE;0x1;0x", "FLUSH;0x", "REGISTER_FILE;/a", "something"] {
            assert_eq!(without_message(half, None), half);
        }
        let inlined = "STORE;0x1;0x1;0x8;0x1: f(int, a::b) (a.c:1)0x1: g (a.c:2)Warning: text";
        let Ok(Record::Store { location: Some(location), .. }) = Record::parse(inlined) else { panic!() };
        assert_eq!(location.to_string(), "a.c:1");
    }
}
