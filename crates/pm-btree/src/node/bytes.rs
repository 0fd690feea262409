//! Bytes that were read, in memory of their own or in a buffer with others.

use core::fmt;
use std::sync::Arc;

/// The most bytes that need no allocation: as many as fit beside the lengths in the same space as a slice in a shared buffer.
const SHORT_BYTES: usize = 22;

/// The bytes of a key or a value.
#[derive(Clone)]
pub(crate) enum Bytes {
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    Long(Box<[u8]>),
    Shared { buffer: Arc<Vec<u8>>, start: u32, len: u32 },
}

const _: () = assert!(size_of::<Bytes>() == 24);

impl Bytes {
    /// `len` bytes, which `load` writes.
    #[expect(
        clippy::slow_vector_initialization,
        reason = "zeroed memory comes from no cache of the allocator"
    )]
    #[inline]
    pub(crate) fn load(len: usize, load: impl FnOnce(&mut [u8])) -> Self {
        match u8::try_from(len) {
            Ok(short) if len <= SHORT_BYTES => {
                let mut bytes = [0; SHORT_BYTES];
                load(&mut bytes[..len]);
                Self::Short { len: short, bytes }
            }
            _ => {
                let mut bytes = Vec::new();
                bytes.resize(len, 0);
                load(&mut bytes);
                Self::Long(bytes.into_boxed_slice())
            }
        }
    }

    /// The first bytes of a big-endian number: a word key.
    #[inline]
    pub(crate) fn of_word(word: u64, len: usize) -> Self {
        let mut bytes = [0; SHORT_BYTES];
        // All eight, because copying a constant number of bytes needs no call.
        bytes[..size_of::<u64>()].copy_from_slice(&word.to_be_bytes());
        Self::Short { len: u8::try_from(len).expect("at most eight"), bytes }
    }

    /// A part of a buffer.
    #[inline]
    pub(crate) fn of_buffer(buffer: &Arc<Vec<u8>>, start: u32, len: u32) -> Self {
        let part = &buffer[start as usize..][..len as usize];
        if part.len() <= SHORT_BYTES {
            return Self::load(part.len(), |out| out.copy_from_slice(part));
        }
        Self::Shared { buffer: Arc::clone(buffer), start, len }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
            Self::Shared { buffer, start, len } => &buffer[*start as usize..][..*len as usize],
        }
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self::load(bytes.len(), |out| out.copy_from_slice(bytes))
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_long_and_shared_bytes_are_those_loaded() {
        let buffer = Arc::new((0..100).collect::<Vec<u8>>());
        for len in [0, 1, 8, 21, 22, 23, 60] {
            let expected = &buffer[5..5 + len];
            let loaded = Bytes::load(len, |out| out.copy_from_slice(expected));
            let shared = Bytes::of_buffer(&buffer, 5, u32::try_from(len).unwrap());
            assert_eq!((loaded.as_slice(), shared.clone().as_slice()), (expected, expected));
        }
    }
}
