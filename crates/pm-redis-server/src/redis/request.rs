//! Requests: arrays of strings, and lines as typed into a terminal. All lengths are bounded.

use std::collections::VecDeque;

/// The length of a request: that of its strings together, with some bytes for each.
pub(crate) const REQUEST_BYTES: usize = 256 << 10;

/// The number of strings in a request.
const STRINGS: usize = 16 << 10;

/// The length of a line: of an inline request, or of the length of what follows.
const LINE_BYTES: usize = 64 << 10;
const LENGTH_BYTES: usize = 32;

/// What counts for each string besides its bytes.
const STRING_BYTES: usize = 16;

/// Why the bytes of a client are no request. The connection ends then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("Protocol error: invalid multibulk length")]
    Strings,
    #[error("Protocol error: invalid bulk length")]
    Length,
    #[error("Protocol error: expected '$', got {0:?}")]
    NoString(char),
    #[error("Protocol error: too big inline request")]
    LongLine,
    #[error("Protocol error: too big request")]
    LongRequest,
    #[error("Protocol error: a string does not end with CRLF")]
    Unterminated,
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// The bytes of a client, of which requests are taken.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    bytes: Vec<u8>,
    /// Where the next request starts.
    start: usize,
    /// The strings of an incomplete request, which start behind the last of them.
    strings: VecDeque<Vec<u8>>,
    missing: usize,
    len_bytes: usize,
}

impl Requests {
    /// Adds bytes of the client.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The strings of the next request. `None` if it is incomplete.
    pub(crate) fn next(&mut self) -> Result<Option<VecDeque<Vec<u8>>>, ProtocolError> {
        loop {
            if self.missing == 0 {
                match self.bytes.get(self.start) {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some(count) = self.length(b'*')? else { return Ok(None) };
                        // Redis ignores empty arrays.
                        self.missing = usize::try_from(count.max(0))
                            .ok()
                            .filter(|count| *count <= STRINGS)
                            .ok_or(ProtocolError::Strings)?;
                        self.len_bytes = 0;
                        continue;
                    }
                    Some(_) => {
                        let Some(line) = self.line(LINE_BYTES, ProtocolError::LongLine)? else {
                            return Ok(None);
                        };
                        let strings = split_line(line)?;
                        self.start += consumed(&self.bytes[self.start..]);
                        if strings.is_empty() {
                            continue;
                        }
                        return Ok(Some(strings));
                    }
                }
            }
            if !self.next_string()? {
                return Ok(None);
            }
            if self.missing == 0 {
                return Ok(Some(std::mem::take(&mut self.strings)));
            }
        }
    }

    /// Takes a string of an array. False if it is incomplete.
    fn next_string(&mut self) -> Result<bool, ProtocolError> {
        let at = self.start;
        match self.bytes.get(at) {
            None => return Ok(false),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::NoString(char::from(*other))),
        }
        let Some(length) = self.length(b'$')? else { return Ok(false) };
        let length = usize::try_from(length).map_err(|_| ProtocolError::Length)?;
        // The first string may take all of it.
        if length > REQUEST_BYTES || self.len_bytes + length > REQUEST_BYTES {
            return Err(ProtocolError::LongRequest);
        }
        let end = self.start + length;
        let Some(terminator) = self.bytes.get(end..end + 2) else {
            // The length is read again with the rest.
            self.start = at;
            return Ok(false);
        };
        if terminator != b"\r\n" {
            return Err(ProtocolError::Unterminated);
        }
        self.strings.push_back(self.bytes[self.start..end].to_vec());
        self.start = end + 2;
        self.len_bytes += length + STRING_BYTES;
        self.missing -= 1;
        Ok(true)
    }

    /// Takes a line with a mark and a number.
    fn length(&mut self, mark: u8) -> Result<Option<i64>, ProtocolError> {
        let wrong = if mark == b'*' { ProtocolError::Strings } else { ProtocolError::Length };
        let Some(line) = self.line(LENGTH_BYTES, wrong.clone())? else { return Ok(None) };
        let digits = line.get(1..).and_then(|digits| str::from_utf8(digits).ok());
        // A sign besides the minus is not a number's.
        let number = digits
            .filter(|digits| !digits.starts_with('+'))
            .and_then(|digits| digits.parse().ok())
            .ok_or(wrong)?;
        self.start += consumed(&self.bytes[self.start..]);
        Ok(Some(number))
    }

    /// The next line without its end.
    fn line(&self, limit: usize, too_long: ProtocolError) -> Result<Option<&[u8]>, ProtocolError> {
        let rest = &self.bytes[self.start..];
        let end = rest.iter().take(limit).position(|byte| *byte == b'\n');
        match end {
            Some(end) => {
                let line = &rest[..end];
                Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
            }
            None if rest.len() >= limit => Err(too_long),
            None => Ok(None),
        }
    }
}

/// The length of the first line with its end.
fn consumed(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1)
}

/// The words of a line: separated by spaces, or in quotes.
fn split_line(line: &[u8]) -> Result<VecDeque<Vec<u8>>, ProtocolError> {
    let mut words = VecDeque::new();
    let mut bytes = line.iter().copied().peekable();
    loop {
        while bytes.next_if(u8::is_ascii_whitespace).is_some() {}
        let Some(first) = bytes.next() else { return Ok(words) };
        let mut word = Vec::new();
        match first {
            b'"' | b'\'' => {
                loop {
                    match bytes.next().ok_or(ProtocolError::Quotes)? {
                        end if end == first => break,
                        b'\\' if first == b'"' => word.push(escaped(&mut bytes)?),
                        b'\\' if bytes.next_if_eq(&b'\'').is_some() => word.push(b'\''),
                        byte => word.push(byte),
                    }
                }
                if bytes.peek().is_some_and(|next| !next.is_ascii_whitespace()) {
                    return Err(ProtocolError::Quotes);
                }
            }
            byte => {
                word.push(byte);
                while let Some(byte) = bytes.next_if(|byte| !byte.is_ascii_whitespace()) {
                    word.push(byte);
                }
            }
        }
        words.push_back(word);
    }
}

/// The byte of an escape sequence in double quotes, behind its backslash.
fn escaped(bytes: &mut impl Iterator<Item = u8>) -> Result<u8, ProtocolError> {
    let mut next = || bytes.next().ok_or(ProtocolError::Quotes);
    Ok(match next()? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'a' => 7,
        b'b' => 8,
        b'x' => {
            let mut digit = || char::from(next()?).to_digit(16).ok_or(ProtocolError::Quotes);
            let value = digit()? << 4 | digit()?;
            u8::try_from(value).map_err(|_| ProtocolError::Quotes)?
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strings(bytes: &[u8]) -> Result<Option<Vec<String>>, ProtocolError> {
        let mut requests = Requests::default();
        requests.push(bytes);
        let found = requests.next()?;
        Ok(found.map(|strings| {
            strings.into_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
        }))
    }

    fn array(strings: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", strings.len()).into_bytes();
        for string in strings {
            bytes.extend(format!("${}\r\n", string.len()).into_bytes());
            bytes.extend(string);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    #[test]
    fn lines_are_split_into_words() {
        let words = |line| strings(line).map(|found| found.unwrap_or_default());
        assert_eq!(words(b"GET a\r\n").unwrap(), ["GET", "a"]);
        assert_eq!(words(b"  set  k \"a \\x41\\n\" \n").unwrap(), ["set", "k", "a A\n"]);
        assert_eq!(words(b"\r\n\r\nPING\r\n").unwrap(), ["PING"]);
        assert_eq!(words(b"get '' 'it\\'s'\r\n").unwrap(), ["get", "", "it's"]);
        for wrong in [&b"get \"a\r\n"[..], b"get \"a\"b\r\n", b"get \"\\x4\"\r\n", b"get 'a\n"] {
            assert_eq!(words(wrong), Err(ProtocolError::Quotes));
        }
        assert_eq!(strings(b"GET a"), Ok(None));
        assert_eq!(strings(&vec![b'a'; LINE_BYTES]), Err(ProtocolError::LongLine));
    }

    #[test]
    fn wrong_arrays_are_errors() {
        assert_eq!(strings(b"*1\r\n*1\r\n"), Err(ProtocolError::NoString('*')));
        assert_eq!(strings(b"*1\r\n:5\r\n"), Err(ProtocolError::NoString(':')));
        for count in ["x", "99999999999999999999", "16385", "+1", ""] {
            assert_eq!(strings(format!("*{count}\r\n").as_bytes()), Err(ProtocolError::Strings), "{count}");
        }
        for length in ["-1", "x", "+3", "99999999999999999999"] {
            assert_eq!(
                strings(format!("*1\r\n${length}\r\n").as_bytes()),
                Err(ProtocolError::Length),
                "{length}"
            );
        }
        assert_eq!(strings(b"*1\r\n$262145\r\n"), Err(ProtocolError::LongRequest));
        assert_eq!(strings(b"*1\r\n$1\r\nabc"), Err(ProtocolError::Unterminated));
        assert_eq!(strings(&[b'*'; LENGTH_BYTES]), Err(ProtocolError::Strings));
        // Empty arrays are skipped.
        assert_eq!(strings(b"*0\r\n*-1\r\n*1\r\n$0\r\n\r\n"), Ok(Some(vec![String::new()])));
    }

    #[test]
    fn length_of_a_request_is_bounded() {
        let half = vec![b'a'; REQUEST_BYTES / 2];
        assert!(strings(&array(&[vec![b'a'; REQUEST_BYTES]])).unwrap().is_some());
        assert!(strings(&array(&[half.clone(), half[STRING_BYTES..].to_vec()])).unwrap().is_some());
        assert_eq!(strings(&array(&[half.clone(), half])), Err(ProtocolError::LongRequest));
    }

    proptest! {
        #[test]
        fn requests_are_found_in_any_parts(
            requests in proptest::collection::vec(proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..5), 1..5),
            part in 1_usize..30,
        ) {
            let bytes: Vec<u8> = requests.iter().flat_map(|request| array(request)).collect();
            let (mut parser, mut found) = (Requests::default(), Vec::new());
            for part in bytes.chunks(part) {
                parser.push(part);
                while let Some(request) = parser.next().unwrap() {
                    found.push(Vec::from(request));
                }
            }
            prop_assert_eq!(found, requests);
        }

        #[test]
        fn any_bytes_are_requests_or_an_error(bytes in proptest::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'"'), any::<u8>()], 0..200
        )) {
            let mut parser = Requests::default();
            parser.push(&bytes);
            while let Ok(Some(request)) = parser.next() {
                prop_assert!(!request.is_empty());
            }
        }
    }
}
