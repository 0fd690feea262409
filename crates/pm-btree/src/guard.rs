//! Values that were read.

use crate::bytes::Bytes;
use crate::error::{DecodeError, ReadError};
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
