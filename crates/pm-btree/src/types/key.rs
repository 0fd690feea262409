//! The types of keys.

use super::value::Value;
use crate::error::{DecodeError, EncodeError};

/// A type of keys: the encodings, compared byte by byte, a prefix before the longer one, are ordered like the keys.
///
/// Integers, `bool`, `char`, `()`, `[u8; N]`, `&[u8]`, `&str` and tuples of 2 to 6 keys are keys. Floats and options are not: use an integer that has
/// the intended order. The encodings are those of [`Value`], except of tuples of varying width.
///
/// # Tuples
/// The encodings of the elements are concatenated, and compare like the tuples: by the first elements that differ. Therefore all elements but the
/// last are [`LeadingKey`]s. A `&str` before other elements is followed by a zero byte. It must not contain one, and inserting such a key is an
/// error, [`EncodeError::Nul`].
///
/// ```
/// use pm_btree::{EncodeError, Key};
///
/// type City = (&'static str, u32); // a country and a postal code
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut bytes = Vec::new();
/// City::encode_key(("is", 101), &mut bytes)?;
/// assert_eq!(bytes, *b"is\0\0\0\0\x65");
/// assert_eq!(City::decode_key(&bytes)?, ("is", 101)); // "is" borrows from the bytes
///
/// assert_eq!(City::encode_key(("i\0", 101), &mut bytes), Err(EncodeError::Nul { position: 1 }));
/// # Ok(())
/// # }
/// ```
///
/// The order of `&[u8]` needs all byte values, and none is left to end it. So it can only be the last element:
///
/// ```compile_fail,E0277
/// fn is_key<K: pm_btree::Key>() {}
/// is_key::<(u64, &[u8])>();
/// is_key::<(&[u8], u64)>(); // error: `&[u8]` cannot stand before other elements in a tuple of keys
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no type of keys",
    label = "has no encoding that is ordered like the keys",
    note = "integers, `bool`, `char`, `[u8; N]`, `&[u8]`, `&str` and tuples of up to 6 of them are keys"
)]
pub trait Key: Value {
    /// Appends the encoding as a key to `out`. After an error, `out` may end with a part of the encoding.
    ///
    /// The default is the encoding as a value. A type of a fixed width never has another.
    ///
    /// # Errors
    /// When the key has no encoding.
    fn encode_key(view: Self::View<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        Self::encode(view, out)
    }

    /// The inverse of [`encode_key`](Self::encode_key). Of any bytes, it returns an error or a key whose encoding they are. It does not panic.
    ///
    /// # Errors
    /// When the bytes are no encoding of a key: the record is corrupted, or was written as another type.
    fn decode_key(bytes: &[u8]) -> Result<Self::View<'_>, DecodeError> {
        Self::decode(bytes)
    }
}

/// A type of keys that can stand before other elements in a tuple of keys: its encoding shows where it ends.
///
/// All keys of a fixed width are leading keys, and the default methods are for them. `&str` is one, with a zero byte at its end; and so are
/// tuples of leading keys.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot stand before other elements in a tuple of keys",
    label = "its width varies, and nothing marks its end",
    note = "make it the last element, or use a `&str`, or an array `[u8; N]`"
)]
pub trait LeadingKey: Key {
    /// Appends the encoding before other elements to `out`.
    ///
    /// The encoding of no key is a prefix of that of another key. The encodings are ordered like the keys.
    ///
    /// # Errors
    /// When the key has no such encoding.
    fn encode_leading(view: Self::View<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        Self::encode_key(view, out)
    }

    /// The inverse of [`encode_leading`](Self::encode_leading) for bytes that start with an encoding; and the bytes after it. It does not panic.
    ///
    /// # Errors
    /// When the bytes do not start with an encoding: the record is corrupted, or was written as another type.
    fn split_leading(bytes: &[u8]) -> Result<(Self::View<'_>, &[u8]), DecodeError> {
        let width =
            const { Self::FIXED_WIDTH.expect("a leading key of varying width has its own `split_leading`") };
        let (own, rest) = split(bytes, width)?;
        Ok((Self::decode_key(own)?, rest))
    }
}

/// Splits the bytes after an element of `width` bytes.
pub(super) fn split(bytes: &[u8], width: usize) -> Result<(&[u8], &[u8]), DecodeError> {
    bytes.split_at_checked(width).ok_or(DecodeError::Truncated { expected: width, found: bytes.len() })
}
