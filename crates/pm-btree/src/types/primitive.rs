//! Numbers, `bool`, `char`, `()`, strings and bytes as values and as keys.

use super::key::{Key, LeadingKey};
use super::value::{Value, exact, fits_word, word};
use crate::error::{DecodeError, EncodeError};

/// Values of `$width` bytes: to and from an array of bytes.
macro_rules! fixed_width {
    ($($ty:ty, $name:expr, $encode:expr, $decode:expr;)+) => {$(
        impl Value for $ty {
            type View<'a> = Self;
            const FIXED_WIDTH: Option<usize> = Some(size_of::<Self>());

            fn encode(view: Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                out.extend_from_slice(&$encode(view));
                Ok(())
            }

            fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                $decode(exact(bytes)?)
            }

            fn type_name() -> String {
                $name.to_owned()
            }

            fn encode_word(view: Self) -> Option<u64> {
                fits_word(Self::FIXED_WIDTH).then(|| word(&$encode(view)))
            }
        }
    )+};
}

macro_rules! integers {
    ($($unsigned:ident $signed:ident)+) => {$(
        fixed_width! {
            $unsigned, stringify!($unsigned), $unsigned::to_be_bytes, |bytes| Ok($unsigned::from_be_bytes(bytes));
            // With the sign bit inverted, negative numbers come first, and the order is that of the bytes.
            $signed, stringify!($signed),
                |number: $signed| (number ^ $signed::MIN).to_be_bytes(),
                |bytes| Ok($signed::from_be_bytes(bytes) ^ $signed::MIN);
        }
        impl Key for $unsigned {}
        impl LeadingKey for $unsigned {}
        impl Key for $signed {}
        impl LeadingKey for $signed {}
    )+};
}
integers!(u8 i8 u16 i16 u32 i32 u64 i64 u128 i128);

fixed_width! {
    f32, "f32", f32::to_be_bytes, |bytes| Ok(f32::from_be_bytes(bytes));
    f64, "f64", f64::to_be_bytes, |bytes| Ok(f64::from_be_bytes(bytes));
    bool, "bool", |value: bool| [u8::from(value)], bool_from;
    char, "char", |value: char| u32::from(value).to_be_bytes(), char_from;
    (), "()", |()| [0_u8; 0], |[]: [u8; 0]| Ok(());
}

impl Key for bool {}
impl LeadingKey for bool {}
impl Key for char {}
impl LeadingKey for char {}
impl Key for () {}
impl LeadingKey for () {}

fn bool_from([byte]: [u8; 1]) -> Result<bool, DecodeError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Pattern { of: "bool", found: byte.into() }),
    }
}

fn char_from(bytes: [u8; 4]) -> Result<char, DecodeError> {
    let found = u32::from_be_bytes(bytes);
    char::from_u32(found).ok_or(DecodeError::Pattern { of: "char", found })
}

impl<const N: usize> Value for [u8; N] {
    type View<'a> = Self;
    const FIXED_WIDTH: Option<usize> = Some(N);

    fn encode(view: Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(&view);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        exact(bytes)
    }

    fn type_name() -> String {
        format!("[u8; {N}]")
    }

    fn encode_word(view: Self) -> Option<u64> {
        fits_word(Some(N)).then(|| word(&view))
    }
}

impl<const N: usize> Key for [u8; N] {}
impl<const N: usize> LeadingKey for [u8; N] {}

impl Value for &[u8] {
    type View<'a> = &'a [u8];
    const FIXED_WIDTH: Option<usize> = None;

    fn encode(view: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(view);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<&[u8], DecodeError> {
        Ok(bytes)
    }

    fn type_name() -> String {
        "bytes".to_owned()
    }
}

impl Key for &[u8] {}

impl Value for &str {
    type View<'a> = &'a str;
    const FIXED_WIDTH: Option<usize> = None;

    fn encode(view: &str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(view.as_bytes());
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<&str, DecodeError> {
        str::from_utf8(bytes).map_err(|error| DecodeError::Utf8 { valid_bytes: error.valid_up_to() })
    }

    fn type_name() -> String {
        "str".to_owned()
    }
}

impl Key for &str {}

impl LeadingKey for &str {
    fn encode_leading(view: &str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if let Some(position) = view.bytes().position(|byte| byte == 0) {
            return Err(EncodeError::Nul { position });
        }
        // Less than every byte of a longer string.
        out.extend_from_slice(view.as_bytes());
        out.push(0);
        Ok(())
    }

    fn split_leading(bytes: &[u8]) -> Result<(&str, &[u8]), DecodeError> {
        let end = bytes.iter().position(|&byte| byte == 0);
        let end = end.ok_or(DecodeError::Unterminated { found: bytes.len() })?;
        Ok((Self::decode(&bytes[..end])?, &bytes[end + 1..]))
    }
}
