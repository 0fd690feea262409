//! Persistence domains: the part of the machine that keeps its contents when the power fails.

use core::fmt;

/// The part of the machine that a store must reach to survive a crash. It determines what a fence guarantees.
///
/// Each region reports its domain; no call guarantees more than the domain does.
///
/// # Source
/// Linux `Documentation/ABI/testing/sysfs-bus-nd` (`persistence_domain`); JEDEC/SNIA "ADR" and "eADR".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Domain {
    /// Asynchronous DRAM refresh: at a power failure the memory controller's write queue is saved, and the caches are lost. A store is durable once
    /// its line has been flushed and the flush has been fenced.
    Adr,
    /// Extended ADR: at a power failure the caches are saved too. Flushes are not needed. Fences are still needed for the order of stores, and for
    /// non-temporal stores, which wait in write-combining buffers until a fence.
    Eadr,
    /// An ordinary file: data is durable when `msync` or `fdatasync` has written back its page. If the power fails during the write-back, the page
    /// can be torn between its sectors (512 bytes). A file on an overlay whose mount is not visible, for example after chroot(2), has this domain
    /// too, although the overlay may have been mounted `volatile`, and then loses its data.
    Page,
    /// Memory without a medium (tmpfs, hugetlbfs, memfd): contents survive a crash of the process, but neither a reboot nor a power failure.
    Volatile,
}

impl Domain {
    /// A stable lower-case name for machines (`--json`, metrics): `adr`, `eadr`, `page` or `volatile`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adr => "adr",
            Self::Eadr => "eadr",
            Self::Page => "page",
            Self::Volatile => "volatile",
        }
    }

    /// A clause for messages: which data survives which failure.
    #[must_use]
    pub const fn promise(self) -> &'static str {
        match self {
            Self::Adr => "fenced data survives a process crash, a kernel crash, and a power failure",
            Self::Eadr => {
                "stores survive a crash of the process, a crash of the kernel, and a power failure, in the order in which they became visible"
            }
            Self::Page => "synced data survives a power failure if the disk honours cache flushes",
            Self::Volatile => {
                "data survives a crash of the process, but neither a reboot nor a power failure"
            }
        }
    }

    /// Whether fenced data survives a power failure.
    #[must_use]
    pub const fn survives_power_loss(self) -> bool {
        !matches!(self, Self::Volatile)
    }

    /// Whether a fence consists of CPU instructions only, without a system call.
    #[must_use]
    pub const fn fences_without_system_call(self) -> bool {
        !matches!(self, Self::Page)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
