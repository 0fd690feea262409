//! The types of values.

use crate::error::{DecodeError, EncodeError};
use core::fmt::Debug;

/// A type of values.
///
/// These types are values:
///
/// | type | encoding |
/// |---|---|
/// | `u8` to `u128` | the number, big-endian |
/// | `i8` to `i128` | the number, big-endian, with the sign bit inverted |
/// | `f32`, `f64` | the bits, big-endian |
/// | `bool` | one byte, 0 or 1 |
/// | `char` | the code point in 4 bytes, big-endian |
/// | `()` | nothing |
/// | `[u8; N]`, `&[u8]`, `&str` | the bytes |
/// | [`Plain<T>`](super::Plain) | the bytes of the struct in memory |
/// | `Option<T>` | one byte, 0 or 1, and the encoding of the value; for `None`, zeroes if `T` has a fixed width, and otherwise nothing |
/// | tuples of 2 to 6 values | the encodings in order; before each of varying width but the last, its length, a little-endian `u32` |
///
/// Lifetimes of the types have no meaning: `&'static str` and `&'a str` are one type of values. What is stored and read is the [`View`](Self::View),
/// passed by value, which for `&str` is a string of any lifetime. So `Table<&str, u64>` has `insert("ada", 3)`.
///
/// # Implementing the trait
/// The encoding of a new type is usually that of another type:
///
/// ```
/// use pm_btree::{DecodeError, EncodeError, Key, Value};
///
/// /// An account: a branch and a number.
/// #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
/// struct Account { branch: u16, number: u32 }
///
/// type Stored = (u16, u32);
///
/// impl Value for Account {
///     type View<'a> = Self;
///     const FIXED_WIDTH: Option<usize> = Stored::FIXED_WIDTH;
///
///     fn encode(view: Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
///         Stored::encode((view.branch, view.number), out)
///     }
///     fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
///         Stored::decode(bytes).map(|(branch, number)| Self { branch, number })
///     }
///     fn type_name() -> String {
///         "bank account".to_owned()
///     }
/// }
/// impl Key for Account {} // The encoding of the pair is ordered like the pair, which is ordered like the account.
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut bytes = Vec::new();
/// Account::encode(Account { branch: 1, number: 7 }, &mut bytes)?;
/// assert_eq!(bytes, [0, 1, 0, 0, 0, 7]);
/// assert_eq!(Account::decode(&bytes)?, Account { branch: 1, number: 7 });
/// assert!(Account::decode(&bytes[1..]).is_err());
/// # Ok(())
/// # }
/// ```
pub trait Value {
    /// What a read returns and a write takes: borrows from the stored bytes, if the type is not small.
    type View<'a>: Copy + Debug;

    /// The width of the encoding in bytes, if all values have the same.
    const FIXED_WIDTH: Option<usize>;

    /// Appends the encoding to `out`. After an error, `out` may end with a part of the encoding.
    ///
    /// # Errors
    /// When the value has no encoding.
    fn encode(view: Self::View<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// The inverse of [`encode`](Self::encode). Of any bytes, it returns an error or a value whose encoding they are. It does not panic.
    ///
    /// # Errors
    /// When the bytes are no encoding: the record is corrupted, or was written as another type.
    fn decode(bytes: &[u8]) -> Result<Self::View<'_>, DecodeError>;

    /// The name of the type, such as `u64`, `str` or `(u64, str)`, which a table stores. A table can be opened only with types of the same names. So
    /// types with different encodings have different names, and a name never changes.
    fn type_name() -> String;

    /// The encoding in a word, for a type with a fixed width of up to 8 bytes: the encoding followed by zeroes, as a big-endian number. `None` means
    /// that the caller uses [`encode`](Self::encode): the type is wider or of varying width, or the value has no encoding.
    ///
    /// The default calls [`encode`](Self::encode). Types whose keys are looked up frequently compute the word instead.
    fn encode_word(view: Self::View<'_>) -> Option<u64> {
        if !fits_word(Self::FIXED_WIDTH) {
            return None;
        }
        let mut out = Vec::with_capacity(WORD_BYTES);
        Self::encode(view, &mut out).ok()?;
        Some(word(&out))
    }
}

/// The length of a word.
const WORD_BYTES: usize = size_of::<u64>();

/// Whether the encodings of a type with this width can be words.
pub(super) const fn fits_word(width: Option<usize>) -> bool {
    matches!(width, Some(0..=WORD_BYTES))
}

/// The word of an encoding of up to 8 bytes.
pub(super) fn word(encoding: &[u8]) -> u64 {
    let mut padded = [0; WORD_BYTES];
    padded[..encoding.len()].copy_from_slice(encoding);
    u64::from_be_bytes(padded)
}

/// The word of two encodings one after the other: `width` bytes of `first`, then `next`.
pub(super) const fn join_words(first: u64, width: usize, next: u64) -> u64 {
    // Behind a full word, only an empty encoding fits.
    if width >= WORD_BYTES { first } else { first | next >> (8 * width) }
}

/// The bytes of a type that is `N` bytes wide.
pub(super) fn exact<const N: usize>(bytes: &[u8]) -> Result<[u8; N], DecodeError> {
    bytes.try_into().map_err(|_| DecodeError::Width { expected: N, found: bytes.len() })
}
