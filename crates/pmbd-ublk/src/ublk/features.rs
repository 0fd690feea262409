//! What the driver of this kernel offers.

use super::control::Control;
use super::{UblkError, UblkUnavailable};
use libublk_rs_sys as sys;
use std::fmt;

/// A set of the driver's feature flags, `UBLK_F_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

impl Features {
    /// The device outlives its server and waits for the next one.
    pub const USER_RECOVERY: Self = Self(sys::UBLK_F_USER_RECOVERY as u64);
    /// Requests that were in flight when the server died are given to the next one.
    pub const USER_RECOVERY_REISSUE: Self = Self(sys::UBLK_F_USER_RECOVERY_REISSUE as u64);

    /// What `serve` asks for: a device that survives its server without an I/O error.
    pub(super) const WANTED: Self = Self::USER_RECOVERY.union(Self::USER_RECOVERY_REISSUE);

    /// From the kernel's bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The kernel's bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether all of `other` is in here.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is in here but not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there is nothing in here.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The names of the flags that messages are likely to be about; others are shown as a number.
const NAMES: [(u32, &str); 8] = [
    (sys::UBLK_F_USER_RECOVERY, "user-recovery"),
    (sys::UBLK_F_USER_RECOVERY_REISSUE, "user-recovery-reissue"),
    (sys::UBLK_F_UNPRIVILEGED_DEV, "unprivileged-dev"),
    (sys::UBLK_F_CMD_IOCTL_ENCODE, "cmd-ioctl-encode"),
    (sys::UBLK_F_USER_COPY, "user-copy"),
    (sys::UBLK_F_ZONED, "zoned"),
    (sys::UBLK_F_UPDATE_SIZE, "update-size"),
    (sys::UBLK_F_QUIESCE, "quiesce"),
];

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (bit, name) in NAMES {
            if rest & u64::from(bit) != 0 {
                write!(f, "{separator}{name}")?;
                separator = " ";
                rest &= !u64::from(bit);
            }
        }
        if rest != 0 {
            write!(f, "{separator}{rest:#x}")?;
        } else if separator.is_empty() {
            write!(f, "none")?;
        }
        Ok(())
    }
}

/// Whether ublk can be used here and now, and what the driver offers. Changes nothing.
///
/// # Errors
/// With what is missing and what would help: see [`UblkUnavailable`].
pub fn available() -> Result<Features, UblkUnavailable> {
    let mut control = match Control::open() {
        Ok(control) => control,
        Err(UblkError::Unavailable(why)) => return Err(why),
        Err(other) => return Err(UblkUnavailable::Unusable { reason: other.to_string() }),
    };
    control.features().map_err(|e| UblkUnavailable::Unusable { reason: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named() {
        assert_eq!(Features::WANTED.to_string(), "user-recovery user-recovery-reissue");
        assert_eq!(Features::from_bits(0).to_string(), "none");
        assert_eq!(Features::from_bits(1 << 40 | 1 << 7).to_string(), "user-copy 0x10000000000");
    }

    #[test]
    fn what_was_dropped_is_the_difference() {
        let granted = Features::USER_RECOVERY;
        assert_eq!(Features::WANTED.without(granted), Features::USER_RECOVERY_REISSUE);
        assert!(!granted.contains(Features::WANTED));
        assert!(Features::WANTED.without(Features::WANTED).is_empty());
    }
}
