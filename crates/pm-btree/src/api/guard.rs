//! What the calls of a table take and return: values that were read, encoded values, and the result of a compare-and-swap.

use crate::error::{DecodeError, EncodeError, ReadError};
use crate::node::Bytes;
use crate::types::{Key, Value};
use core::fmt;
use core::marker::PhantomData;

/// Decodes a view of a type.
type Decode<T> = fn(&[u8]) -> Result<<T as Value>::View<'_>, DecodeError>;

/// A key or a value that was read from a table. It holds a copy of the stored bytes, so later changes of the table do not affect it.
pub struct Guard<T: Value> {
    bytes: Bytes,
    /// The decoder of a key. A value is decoded by its type's, with a direct call.
    decode_key: Option<Decode<T>>,
    of: PhantomData<fn() -> T>,
}

impl<T: Value> Guard<T> {
    /// A value. Its bytes are checked to be one.
    #[inline]
    pub(crate) fn of_value(bytes: Bytes) -> Result<Self, ReadError> {
        T::decode(bytes.as_slice())?;
        Ok(Self { bytes, decode_key: None, of: PhantomData })
    }

    /// The key or value.
    #[must_use]
    #[inline]
    #[expect(clippy::missing_panics_doc, reason = "the bytes were decoded when they were read")]
    pub fn value(&self) -> T::View<'_> {
        match self.decode_key {
            None => T::decode(self.bytes()),
            Some(decode) => decode(self.bytes()),
        }
        .expect("the bytes were decoded when they were read")
    }

    /// The stored bytes: the encoding of the key or value.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

impl<K: Key> Guard<K> {
    /// A key. Its bytes are checked to be one.
    #[inline]
    pub(crate) fn of_key(bytes: Bytes) -> Result<Self, ReadError> {
        K::decode_key(bytes.as_slice())?;
        Ok(Self { bytes, decode_key: Some(K::decode_key), of: PhantomData })
    }
}

impl<T: Value> Clone for Guard<T> {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), decode_key: self.decode_key, of: PhantomData }
    }
}

impl<T: Value> fmt::Debug for Guard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.value()).finish()
    }
}

/// A value for [`Table::update`](crate::Table::update), encoded.
pub struct Encoded<V: Value> {
    pub(crate) bytes: Result<Vec<u8>, EncodeError>,
    of: PhantomData<fn() -> V>,
}

impl<V: Value> Encoded<V> {
    /// Encodes a value. If it has no encoding, the update returns the error.
    #[must_use]
    pub fn new(value: V::View<'_>) -> Self {
        let mut bytes = Vec::new();
        let encoded = V::encode(value, &mut bytes);
        Self { bytes: encoded.map(|()| bytes), of: PhantomData }
    }
}

impl<V: Value> fmt::Debug for Encoded<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Encoded").field(&self.bytes).finish()
    }
}

/// What came of [`Table::compare_and_swap`](crate::Table::compare_and_swap).
#[derive(Clone, Debug)]
#[must_use = "if the value was not the expected one, nothing was changed"]
pub enum Swap<V: Value> {
    /// The value was the expected one, and the new one is durable.
    Swapped,
    /// The value was this one, and not the expected one: nothing was changed. `None` if the key was absent.
    Unequal(Option<Guard<V>>),
}

impl<V: Value> Swap<V> {
    /// Whether the new value is durable.
    #[must_use]
    pub const fn is_swapped(&self) -> bool {
        matches!(self, Self::Swapped)
    }
}
