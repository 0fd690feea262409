//! The errors of encoding and decoding.

use thiserror::Error;

/// A key or value that has no encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A string stands before other elements in a tuple of keys, where a zero byte ends it, and contains a zero byte itself.
    #[error("a string before other elements of a key must not contain a zero byte, as at byte {position}")]
    Nul {
        /// The offset of the first zero byte in the string.
        position: usize,
    },
    /// An element of a tuple of values is longer than its length prefix can say.
    #[error(
        "an element of {found} bytes before other elements of a value is too long; the limit is {limit} bytes"
    )]
    TooLong {
        /// The length of the element in bytes.
        found: usize,
        /// The greatest length in bytes.
        limit: usize,
    },
}

/// Bytes that are no encoding of a type: the record is corrupted, or was written as another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The type has a fixed width, and the bytes have another.
    #[error("{found} bytes instead of {expected}")]
    Width {
        /// The width of the type in bytes.
        expected: usize,
        /// The number of bytes.
        found: usize,
    },
    /// The bytes end inside an element of a tuple.
    #[error("an element of {expected} bytes is cut off after {found}")]
    Truncated {
        /// The length of the element in bytes.
        expected: usize,
        /// The number of bytes from the start of the element.
        found: usize,
    },
    /// The zero byte after a string in a tuple of keys is missing.
    #[error("no zero byte ends the string, in {found} bytes")]
    Unterminated {
        /// The number of bytes from the start of the string.
        found: usize,
    },
    /// The bytes of a string are not UTF-8.
    #[error("not UTF-8 after {valid_bytes} bytes")]
    Utf8 {
        /// The number of bytes up to which they are UTF-8.
        valid_bytes: usize,
    },
    /// The bytes of a type that does not use all bit patterns have an unused one.
    #[error("{found:#x} is no value of {of}")]
    Pattern {
        /// The type, or the part of an encoding.
        of: &'static str,
        /// The bit pattern.
        found: u32,
    },
}
