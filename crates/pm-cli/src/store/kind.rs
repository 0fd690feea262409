//! The types of keys and values that the command can read and print.

use clap::ValueEnum;
use miette::Diagnostic;
use pm_btree::{Key, Value as _};
use serde_json::Value as Json;
use std::fmt;

/// A type of keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Numbers from 0 to 18446744073709551615.
    U64,
    /// Numbers from -9223372036854775808 to 9223372036854775807.
    I64,
    /// Text.
    Str,
    /// Bytes, as hexadecimal digits.
    Bytes,
}

impl Kind {
    const ALL: [Self; 4] = [Self::U64, Self::I64, Self::Str, Self::Bytes];

    /// The type with this name in a store.
    pub(crate) fn of_type_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_name() == name)
    }

    /// The name of the type in a store, and on the command line.
    pub(crate) fn type_name(self) -> String {
        match self {
            Self::U64 => u64::type_name(),
            Self::I64 => i64::type_name(),
            Self::Str => <&str>::type_name(),
            Self::Bytes => <&[u8]>::type_name(),
        }
    }

    /// Whether a text is a key or value of this type.
    pub(crate) fn check(self, text: &str) -> Result<(), TextError> {
        let scratch = &mut Vec::new();
        match self {
            Self::U64 => u64::parse(text, scratch).map(drop),
            Self::I64 => i64::parse(text, scratch).map(drop),
            Self::Str => Ok(()),
            Self::Bytes => <&[u8]>::parse(text, scratch).map(drop),
        }
    }
}

/// A key or a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    U64(u64),
    I64(i64),
    Str(&'a str),
    Bytes(&'a [u8]),
}

impl Cell<'_> {
    /// A number or a string.
    pub(crate) fn to_json(self) -> Json {
        match self {
            Self::U64(number) => number.into(),
            Self::I64(number) => number.into(),
            Self::Str(text) => text.into(),
            Self::Bytes(_) => self.to_string().into(),
        }
    }
}

/// The text that [`Typed::parse`] reads.
impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U64(number) => write!(f, "{number}"),
            Self::I64(number) => write!(f, "{number}"),
            Self::Str(text) => f.write_str(text),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// A type of keys and values in a store that is one of the kinds.
pub(crate) trait Typed: Key {
    /// The key or value with this text, which may borrow from `scratch`.
    fn parse<'a>(text: &'a str, scratch: &'a mut Vec<u8>) -> Result<Self::View<'a>, TextError>;

    /// The inverse of `parse`.
    fn cell(view: Self::View<'_>) -> Cell<'_>;
}

impl Typed for u64 {
    fn parse(text: &str, _: &mut Vec<u8>) -> Result<Self, TextError> {
        text.parse().map_err(|_| TextError { text: text.to_owned(), kind: Kind::U64 })
    }

    fn cell(view: Self::View<'_>) -> Cell<'_> {
        Cell::U64(view)
    }
}

impl Typed for i64 {
    fn parse(text: &str, _: &mut Vec<u8>) -> Result<Self, TextError> {
        text.parse().map_err(|_| TextError { text: text.to_owned(), kind: Kind::I64 })
    }

    fn cell(view: Self::View<'_>) -> Cell<'_> {
        Cell::I64(view)
    }
}

impl Typed for &str {
    fn parse<'a>(text: &'a str, _: &'a mut Vec<u8>) -> Result<&'a str, TextError> {
        Ok(text)
    }

    fn cell(view: Self::View<'_>) -> Cell<'_> {
        Cell::Str(view)
    }
}

impl Typed for &[u8] {
    fn parse<'a>(text: &'a str, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], TextError> {
        let wrong = || TextError { text: text.to_owned(), kind: Kind::Bytes };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(wrong());
        }
        scratch.clear();
        for [high, low] in pairs {
            let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let (high, low) = digit(*high).zip(digit(*low)).ok_or_else(wrong)?;
            scratch.push(high << 4 | low);
        }
        Ok(scratch)
    }

    fn cell(view: Self::View<'_>) -> Cell<'_> {
        Cell::Bytes(view)
    }
}

/// A text that is no key or value of its type.
#[derive(Debug)]
pub(crate) struct TextError {
    text: String,
    kind: Kind,
}

impl std::error::Error for TextError {}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no {}", self.text, self.kind.type_name())
    }
}

impl Diagnostic for TextError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = match self.kind {
            Kind::U64 => "a u64 is a decimal number from 0 to 18446744073709551615",
            Kind::I64 => "an i64 is a decimal number from -9223372036854775808 to 9223372036854775807",
            Kind::Str => return None,
            Kind::Bytes => "bytes are written as two hexadecimal digits each, such as 00ff",
        };
        Some(Box::new(help))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn texts_return<T: Typed>(texts: &[&str]) {
        for text in texts {
            let mut scratch = vec![7];
            assert_eq!(T::cell(T::parse(text, &mut scratch).unwrap()).to_string(), *text);
        }
    }

    #[test]
    fn cells_are_printed_as_they_are_read() {
        texts_return::<u64>(&["0", "18446744073709551615"]);
        texts_return::<i64>(&["0", "-9223372036854775808"]);
        texts_return::<&str>(&["", "0", "é\n\0"]);
        texts_return::<&[u8]>(&["", "00", "00ff0a"]);
    }

    #[test]
    fn other_texts_are_errors() {
        for text in ["", "-1", "18446744073709551616", "1.0", "0x1", " 1"] {
            assert!(u64::parse(text, &mut Vec::new()).is_err(), "{text}");
        }
        assert!(i64::parse("9223372036854775808", &mut Vec::new()).is_err());
        for text in ["0", "0g", "00 1", "+1", "é"] {
            assert!(<&[u8]>::parse(text, &mut Vec::new()).is_err(), "{text}");
        }
    }

    #[test]
    fn kinds_have_the_names_of_the_command_line() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.type_name());
            assert_eq!(Kind::of_type_name(&kind.type_name()), Some(kind));
        }
        assert_eq!(Kind::of_type_name("(u64, str)"), None);
    }
}
