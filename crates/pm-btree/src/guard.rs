//! Values that were read.

use crate::error::{DecodeError, ReadError};
use crate::types::{Key, Value};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use std::sync::Arc;

/// A key or a value that was read from a table. It holds a copy of the stored bytes, so later changes of the table do not affect it.
pub struct Guard<T: Value> {
    bytes: Bytes,
    decode: fn(&[u8]) -> Result<T::View<'_>, DecodeError>,
    of: PhantomData<fn() -> T>,
}

#[derive(Clone)]
enum Bytes {
    Own(Vec<u8>),
    Shared(Arc<Vec<u8>>, Range<usize>),
}

impl<T: Value> Guard<T> {
    /// A value. Its bytes are checked to be one.
    pub(crate) fn of_value(bytes: Vec<u8>) -> Result<Self, ReadError> {
        Self::checked(Bytes::Own(bytes), T::decode)
    }

    pub(crate) fn of_shared_value(bytes: Arc<Vec<u8>>, range: Range<usize>) -> Result<Self, ReadError> {
        Self::checked(Bytes::Shared(bytes, range), T::decode)
    }

    fn checked(
        bytes: Bytes,
        decode: fn(&[u8]) -> Result<T::View<'_>, DecodeError>,
    ) -> Result<Self, ReadError> {
        let guard = Self { bytes, decode, of: PhantomData };
        decode(guard.bytes())?;
        Ok(guard)
    }

    /// The key or value.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "the bytes were decoded when they were read")]
    pub fn value(&self) -> T::View<'_> {
        (self.decode)(self.bytes()).expect("the bytes were decoded when they were read")
    }

    /// The stored bytes: the encoding of the key or value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(bytes, range) => &bytes[range.clone()],
        }
    }
}

impl<K: Key> Guard<K> {
    pub(crate) fn of_key(bytes: Arc<Vec<u8>>, range: Range<usize>) -> Result<Self, ReadError> {
        Self::checked(Bytes::Shared(bytes, range), K::decode_key)
    }
}

impl<T: Value> Clone for Guard<T> {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), decode: self.decode, of: PhantomData }
    }
}

impl<T: Value> fmt::Debug for Guard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.value()).finish()
    }
}
