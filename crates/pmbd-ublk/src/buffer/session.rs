//! The number that ties slots to their device's mark.

use pm_core::Uuid;
use std::io;

/// One server's slots. Its number is the device's mark while they count, and names their file.
///
/// The upper half tells the boot of the system: slots are in memory, so those of an earlier boot are gone, with everything else that was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session(u64);

impl Session {
    /// A random number of this boot.
    ///
    /// # Errors
    /// When /proc does not tell the boot.
    pub(crate) fn new() -> io::Result<Self> {
        // Odd, so not zero.
        let random = Uuid::new_v4().as_u64_pair().1 & u64::from(u32::MAX) | 1;
        Ok(Self(boot()? << 32 | random))
    }

    /// The session that this mark names.
    pub(crate) const fn of_mark(mark: u64) -> Self {
        Self(mark)
    }

    /// Its number.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// Whether the system has run since it began, so that its slots must be there.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn is_of_this_boot(self) -> io::Result<bool> {
        Ok(self.0 >> 32 == boot()?)
    }

    /// The name of its file.
    pub(crate) fn file_name(self) -> String {
        format!("pmbd-{:016x}.slots", self.0)
    }
}

/// The low half of the boot's random identity: proc_sys_kernel(5), `boot_id`.
fn boot() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let id: Uuid = text.trim().parse().map_err(io::Error::other)?;
    Ok(id.as_u64_pair().1 & u64::from(u32::MAX))
}
