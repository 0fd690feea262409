//! A pool's identity.

use core::fmt;

/// A random UUID (RFC 9562, version 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// From its bytes, in the order in which it is written.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, in the order in which it is written.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// A new one, from the kernel's random numbers.
    ///
    /// # Panics
    /// When the kernel has none to give: since Linux 5.6 getrandom(2) cannot fail once it does not block.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        // Up to 256 bytes come in one piece (getrandom(2)).
        assert_eq!(filled, Ok(bytes.len()), "the kernel gives random bytes");
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
