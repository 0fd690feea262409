//! Tuples as values and as keys.

use super::key::{Key, LeadingKey, split};
use super::value::{Value, fits_word, join_words};
use crate::error::{DecodeError, EncodeError};

/// The length of the length prefix.
const PREFIX_BYTES: usize = size_of::<u32>();

/// A tuple of the leading elements, each with its type, its variable, and the last element after the semicolon.
macro_rules! tuple {
    ($($T:ident $t:ident)+; $L:ident $l:ident) => {
        impl<$($T: Value,)+ $L: Value> Value for ($($T,)+ $L,) {
            type View<'a> = ($($T::View<'a>,)+ $L::View<'a>,);
            const FIXED_WIDTH: Option<usize> = sum(&[$($T::FIXED_WIDTH,)+ $L::FIXED_WIDTH]);

            fn encode(($($t,)+ $l,): Self::View<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                $(encode_prefixed::<$T>($t, out)?;)+
                $L::encode($l, out)
            }

            fn decode(bytes: &[u8]) -> Result<Self::View<'_>, DecodeError> {
                $(let ($t, bytes) = split_prefixed::<$T>(bytes)?;)+
                Ok(($($t,)+ $L::decode(bytes)?,))
            }

            fn type_name() -> String {
                format!("({})", [$($T::type_name(),)+ $L::type_name()].join(", "))
            }

            fn encode_word(($($t,)+ $l,): Self::View<'_>) -> Option<u64> {
                if !fits_word(Self::FIXED_WIDTH) {
                    return None;
                }
                let (word, width) = (0, 0);
                $(let (word, width) = (join_words(word, width, $T::encode_word($t)?), width + $T::FIXED_WIDTH?);)+
                Some(join_words(word, width, $L::encode_word($l)?))
            }
        }

        impl<$($T: LeadingKey,)+ $L: Key> Key for ($($T,)+ $L,) {
            fn encode_key(($($t,)+ $l,): Self::View<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                $($T::encode_leading($t, out)?;)+
                $L::encode_key($l, out)
            }

            fn decode_key(bytes: &[u8]) -> Result<Self::View<'_>, DecodeError> {
                $(let ($t, bytes) = $T::split_leading(bytes)?;)+
                Ok(($($t,)+ $L::decode_key(bytes)?,))
            }
        }

        impl<$($T: LeadingKey,)+ $L: LeadingKey> LeadingKey for ($($T,)+ $L,) {
            fn encode_leading(($($t,)+ $l,): Self::View<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                $($T::encode_leading($t, out)?;)+
                $L::encode_leading($l, out)
            }

            fn split_leading(bytes: &[u8]) -> Result<(Self::View<'_>, &[u8]), DecodeError> {
                $(let ($t, bytes) = $T::split_leading(bytes)?;)+
                let ($l, bytes) = $L::split_leading(bytes)?;
                Ok((($($t,)+ $l,), bytes))
            }
        }
    };
}
tuple!(A a; B b);
tuple!(A a B b; C c);
tuple!(A a B b C c; D d);
tuple!(A a B b C c D d; E e);
tuple!(A a B b C c D d E e; F f);

/// The width of elements one after the other, if all have a fixed one.
const fn sum(widths: &[Option<usize>]) -> Option<usize> {
    let (mut sum, mut i) = (0, 0);
    while i < widths.len() {
        let Some(width) = widths[i] else { return None };
        sum += width;
        i += 1;
    }
    Some(sum)
}

/// Appends an element that others follow: after its length, if its width varies.
fn encode_prefixed<T: Value>(view: T::View<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if T::FIXED_WIDTH.is_some() {
        return T::encode(view, out);
    }
    let prefix = out.len();
    out.resize(prefix + PREFIX_BYTES, 0);
    T::encode(view, out)?;
    let found = out.len() - prefix - PREFIX_BYTES;
    let len = u32::try_from(found).map_err(|_| EncodeError::TooLong { found, limit: u32::MAX as usize })?;
    out[prefix..prefix + PREFIX_BYTES].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

/// The inverse of `encode_prefixed` for bytes that start with an element; and the bytes after it.
fn split_prefixed<T: Value>(bytes: &[u8]) -> Result<(T::View<'_>, &[u8]), DecodeError> {
    let (width, bytes) = match T::FIXED_WIDTH {
        Some(width) => (width, bytes),
        None => {
            let truncated = DecodeError::Truncated { expected: PREFIX_BYTES, found: bytes.len() };
            let (len, bytes) = bytes.split_first_chunk().ok_or(truncated)?;
            // Lengths that do not fit into a usize are longer than any slice.
            (usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX), bytes)
        }
    };
    let (own, rest) = split(bytes, width)?;
    Ok((T::decode(own)?, rest))
}
