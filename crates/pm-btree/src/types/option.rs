//! Optional values.

use super::value::{Value, fits_word, join_words};
use crate::error::{DecodeError, EncodeError};

/// The first byte of the encoding of `None`.
const NONE: u8 = 0;
/// The first byte of the encoding of `Some`.
const SOME: u8 = 1;

/// Not a key: an option is rarely part of an order, and `None` could come first or last.
impl<T: Value> Value for Option<T> {
    type View<'a> = Option<T::View<'a>>;

    /// Of a fixed width if the value has one, so that a table can update the option in place.
    const FIXED_WIDTH: Option<usize> = match T::FIXED_WIDTH {
        Some(width) => Some(1 + width),
        None => None,
    };

    fn encode(view: Self::View<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match view {
            Some(value) => {
                out.push(SOME);
                T::encode(value, out)
            }
            None => {
                out.resize(out.len() + Self::FIXED_WIDTH.unwrap_or(1), NONE);
                Ok(())
            }
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self::View<'_>, DecodeError> {
        let width = DecodeError::Width { expected: Self::FIXED_WIDTH.unwrap_or(1), found: bytes.len() };
        let (&tag, value) = bytes.split_first().ok_or(width)?;
        match tag {
            SOME => T::decode(value).map(Some),
            NONE if value.len() != T::FIXED_WIDTH.unwrap_or(0) => Err(width),
            NONE => match value.iter().find(|&&byte| byte != 0) {
                None => Ok(None),
                Some(&found) => {
                    Err(DecodeError::Pattern { of: "the zeroes after None", found: found.into() })
                }
            },
            _ => Err(DecodeError::Pattern { of: "Option", found: tag.into() }),
        }
    }

    fn type_name() -> String {
        format!("Option<{}>", T::type_name())
    }

    fn encode_word(view: Self::View<'_>) -> Option<u64> {
        if !fits_word(Self::FIXED_WIDTH) {
            return None;
        }
        let Some(value) = view else { return Some(0) };
        Some(join_words(u64::from(SOME) << 56, 1, T::encode_word(value)?))
    }
}
