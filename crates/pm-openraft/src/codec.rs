//! The encoding of values in the store: postcard's.

use crate::error::StorageError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The bytes of a value.
pub(crate) fn encode(what: &'static str, value: &impl Serialize) -> Result<Vec<u8>, StorageError> {
    postcard::to_stdvec(value).map_err(|error| StorageError::Encode { what, error })
}

/// The value of all these bytes.
pub(crate) fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, StorageError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(StorageError::Decode { what, error: postcard::Error::DeserializeBadEncoding }),
        Err(error) => Err(StorageError::Decode { what, error }),
    }
}
