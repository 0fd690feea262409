//! Prefixes of keys.

use super::key::{Key, LeadingKey};
use crate::error::EncodeError;

/// A prefix of keys of the type `K`: a key has the prefix if its encoding starts with that of the prefix.
///
/// | keys | prefixes |
/// |---|---|
/// | `&str` | `&str` |
/// | `&[u8]`, `[u8; N]` | `&[u8]`, `&[u8; M]` |
/// | a tuple | a tuple of its first elements: `(a,)`, `(a, b)` |
/// | a tuple | a tuple of its first elements and a prefix of the next, which is its last: `(a, "b")` for `(A, &str)` |
///
/// Implement it for a prefix of a type of your own by encoding the elements that the prefix has, as [`Key::encode_key`] does.
///
/// ```
/// use pm_btree::Prefix;
///
/// type City = (&'static str, &'static str); // a country and a name
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut bytes = Vec::new();
/// Prefix::<City>::encode_prefix(("is",), &mut bytes)?;
/// assert_eq!(bytes, *b"is\0"); // no city of another country whose name starts with "is"
/// bytes.clear();
/// Prefix::<City>::encode_prefix(("is", "Rey"), &mut bytes)?;
/// assert_eq!(bytes, *b"is\0Rey");
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no prefix of the keys `{K}`",
    label = "not a prefix of these keys",
    note = "a prefix of `&str` is a `&str`, and a prefix of a tuple is a tuple of its first elements, such as `(a,)`"
)]
pub trait Prefix<K: Key> {
    /// Appends the bytes with which the encodings of the keys start to `out`. After an error, `out` may end with a part of them.
    ///
    /// # Errors
    /// When an element has no encoding.
    fn encode_prefix(self, out: &mut Vec<u8>) -> Result<(), EncodeError>;
}

impl Prefix<&str> for &str {
    fn encode_prefix(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(self.as_bytes());
        Ok(())
    }
}

impl<const N: usize> Prefix<&[u8]> for &[u8; N] {
    fn encode_prefix(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(self);
        Ok(())
    }
}

impl Prefix<&[u8]> for &[u8] {
    fn encode_prefix(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(self);
        Ok(())
    }
}

impl<const N: usize> Prefix<[u8; N]> for &[u8] {
    fn encode_prefix(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(self);
        Ok(())
    }
}

impl<const N: usize, const M: usize> Prefix<[u8; N]> for &[u8; M] {
    fn encode_prefix(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(self);
        Ok(())
    }
}

/// The prefixes of tuples: for each place, the elements before it, and those with a prefix of the last one.
macro_rules! tuple {
    ($($T:ident $t:ident)+; $($R:ident)+) => {
        impl<$($T: LeadingKey,)+ $($R: Key,)+> Prefix<($($T,)+ $($R,)+)> for ($($T::View<'_>,)+)
        where
            ($($T,)+ $($R,)+): Key,
        {
            fn encode_prefix(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                let ($($t,)+) = self;
                $($T::encode_leading($t, out)?;)+
                Ok(())
            }
        }
    };
    ($($T:ident $t:ident)+ & $L:ident) => {
        impl<$($T: LeadingKey,)+ $L: Key, Q: Prefix<$L>> Prefix<($($T,)+ $L,)> for ($($T::View<'_>,)+ Q,) {
            fn encode_prefix(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                let ($($t,)+ last,) = self;
                $($T::encode_leading($t, out)?;)+
                last.encode_prefix(out)
            }
        }
    };
}
tuple!(A a; B);
tuple!(A a; B C);
tuple!(A a; B C D);
tuple!(A a; B C D E);
tuple!(A a; B C D E F);
tuple!(A a B b; C);
tuple!(A a B b; C D);
tuple!(A a B b; C D E);
tuple!(A a B b; C D E F);
tuple!(A a B b C c; D);
tuple!(A a B b C c; D E);
tuple!(A a B b C c; D E F);
tuple!(A a B b C c D d; E);
tuple!(A a B b C c D d; E F);
tuple!(A a B b C c D d E e; F);
tuple!(A a & B);
tuple!(A a B b & C);
tuple!(A a B b C c & D);
tuple!(A a B b C c D d & E);
tuple!(A a B b C c D d E e & F);

/// The lowest bytes above all bytes that start with `prefix`; `None` if there are none.
pub(crate) fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn end_separates_prefixed_bytes(
            prefix in proptest::collection::vec(prop_oneof![Just(0xff_u8), Just(0), any::<u8>()], 0..5),
            bytes in proptest::collection::vec(prop_oneof![Just(0xff_u8), Just(0), any::<u8>()], 0..8),
        ) {
            let end = end_of_prefix(&prefix);
            let is_inside = bytes >= prefix && end.is_none_or(|end| bytes < end);
            prop_assert_eq!(is_inside, bytes.starts_with(&prefix));
        }
    }

    #[test]
    fn prefix_of_ff_has_no_end() {
        assert_eq!(end_of_prefix(&[]), None);
        assert_eq!(end_of_prefix(&[0xff, 0xff]), None);
        assert_eq!(end_of_prefix(&[1, 0xff]), Some(vec![2]));
    }
}
