//! The contents of a new object.

use crate::error::ObjectError;
use crate::ops::naming::create::Source;
use core::fmt;
use pm_core::{InPool, bytes_of, bytes_of_slice};
use std::io::Read;

/// The contents of a new object: its elements.
pub enum Contents<'a, T> {
    /// One element.
    Value(&'a T),
    /// Several elements, or none.
    Slice(&'a [T]),
    /// So many elements, read from this source as their bytes in memory. The source is not read further.
    Read(u64, &'a mut dyn Read),
}

impl<T> fmt::Debug for Contents<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("Value"),
            Self::Slice(elements) => f.debug_tuple("Slice").field(&elements.len()).finish(),
            Self::Read(len, _) => f.debug_tuple("Read").field(len).finish_non_exhaustive(),
        }
    }
}

impl<'a, T: for<'p> InPool<'p>> Contents<'a, T> {
    /// The contents as bytes.
    pub(crate) fn into_source(self) -> Result<Source<'a>, ObjectError> {
        Ok(match self {
            Self::Value(value) => Source::Bytes(bytes_of(value)),
            Self::Slice(elements) => Source::Bytes(bytes_of_slice(elements)),
            Self::Read(len, source) => {
                let too_long = ObjectError::TooLong {
                    bytes: u64::MAX,
                    of: "object",
                    max: crate::format::OBJECT_BYTES_MAX,
                };
                Source::Read(len.checked_mul(size_of::<T>() as u64).ok_or(too_long)?, source)
            }
        })
    }
}
