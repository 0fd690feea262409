//! Numbers of variable length, and bytes, to and from a buffer. Written here, because libraries for such numbers also read overlong or
//! overflowing ones, and equal contents must have equal bytes.

use super::error::{TraceError, invalid};

/// Bits of a number in one byte of it.
const BITS: u32 = 7;
const MORE: u8 = 1 << BITS;

/// Appends a number, seven bits a byte, the low ones first.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= u64::from(MORE) {
        out.push(low_bits(number) | MORE);
        number >>= BITS;
    }
    out.push(low_bits(number));
}

/// Appends `to - from`, which is usually small, in either direction.
pub(super) fn put_step(out: &mut Vec<u8>, from: u64, to: u64) {
    let step = to.wrapping_sub(from).cast_signed();
    put_number(out, ((step << 1) ^ (step >> 63)).cast_unsigned());
}

/// Appends a length and as many bytes.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn low_bits(number: u64) -> u8 {
    number.to_le_bytes()[0] & !MORE
}

/// Reads the output of the functions above, and rejects everything else.
pub(super) struct Cursor<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Cursor<'b> {
    /// Begins at an offset inside `bytes`.
    pub(super) const fn new(bytes: &'b [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The number of bytes read.
    pub(super) const fn offset(&self) -> u64 {
        self.at as u64
    }

    /// The number of bytes left.
    pub(super) const fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn byte(&mut self, expected: &'static str) -> Result<u8, TraceError> {
        Ok(self.bytes(1, expected)?[0])
    }

    /// The next `len` bytes.
    pub(super) fn bytes(&mut self, len: u64, expected: &'static str) -> Result<&'b [u8], TraceError> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let found = end.and_then(|end| self.bytes.get(self.at..end));
        let found = found.ok_or(TraceError::Truncated { offset: self.bytes.len() as u64, expected })?;
        self.at += found.len();
        Ok(found)
    }

    /// A number in its shortest form.
    pub(super) fn number(&mut self, expected: &'static str) -> Result<u64, TraceError> {
        let start = self.offset();
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte(expected)?;
            let bits = u64::from(byte & !MORE);
            number |= bits << shift;
            let lost = bits << shift >> shift != bits;
            let padded = byte == 0 && shift > 0;
            if lost || padded {
                return Err(invalid(start, "a number of at most 64 bits in its shortest form", byte.into()));
            }
            if byte & MORE == 0 {
                return Ok(number);
            }
        }
        Err(invalid(start, "a number of at most 10 bytes", number))
    }

    /// A number with an upper bound.
    pub(super) fn number_up_to(&mut self, most: u64, expected: &'static str) -> Result<u64, TraceError> {
        let offset = self.offset();
        let found = self.number(expected)?;
        if found > most { Err(invalid(offset, expected, found)) } else { Ok(found) }
    }

    /// A number of at most 32 bits.
    pub(super) fn number_u32(&mut self, expected: &'static str) -> Result<u32, TraceError> {
        let offset = self.offset();
        let found = self.number(expected)?;
        u32::try_from(found).map_err(|_| invalid(offset, expected, found))
    }

    /// A number that was written as a step from another.
    pub(super) fn step(&mut self, from: u64, expected: &'static str) -> Result<u64, TraceError> {
        let step = self.number(expected)?;
        Ok(from.wrapping_add((step >> 1) ^ 0_u64.wrapping_sub(step & 1)))
    }

    /// A length, and as many bytes of text.
    pub(super) fn text(&mut self, expected: &'static str) -> Result<&'b str, TraceError> {
        let len = self.number(expected)?;
        let start = self.offset();
        let bytes = self.bytes(len, expected)?;
        core::str::from_utf8(bytes).map_err(|error| {
            let at = error.valid_up_to();
            invalid(start + at as u64, "UTF-8", bytes[at].into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_roundtrip_in_their_shortest_form_only() {
        let mut out = Vec::new();
        let numbers = [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        for number in numbers {
            put_number(&mut out, number);
            put_step(&mut out, 64, number);
        }
        let mut cursor = Cursor::new(&out, 0);
        for number in numbers {
            assert_eq!(cursor.number("").ok(), Some(number));
            assert_eq!(cursor.step(64, "").ok(), Some(number));
        }
        assert_eq!(cursor.left(), 0);
        let max_and_more: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        let too_long: &[u8] = &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x81, 0x00];
        for wrong in [&[0x80, 0x00][..], &[0x80], &[], max_and_more, too_long] {
            assert!(Cursor::new(wrong, 0).number("").is_err(), "{wrong:?}");
        }
    }
}
