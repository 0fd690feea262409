//! The persistence domain: the part of the machine that keeps its contents when the power fails.

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
    /// Asynchronous DRAM refresh: when the power fails, the contents of the memory controller's write queue reach the medium, and those of the caches
    /// are lost. A store is durable once its line has been flushed and the flush has been fenced.
    Adr,
    /// Extended ADR: the contents of the caches reach the medium too. Flushes are not needed. Fences still order, and non-temporal stores still wait
    /// in write-combining buffers until a fence.
    Eadr,
    /// An ordinary file: data is durable when `msync` or `fdatasync` has written back its page. If the power fails during the write-back, the page
    /// can be torn at its sectors (512 bytes). A file on an overlay file system whose mount is not visible, for example after chroot(2), has this
    /// domain too, although an overlay that is mounted with `volatile` loses its data.
    Page,
    /// Memory without a medium (tmpfs, hugetlbfs, memfd): contents survive a crash of the process, but neither a reboot nor a power failure.
    Volatile,
}

impl Domain {
    /// A stable lower-case name for machine-readable output (`--json`, metrics): `adr`, `eadr`, `page` or `volatile`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adr => "adr",
            Self::Eadr => "eadr",
            Self::Page => "page",
            Self::Volatile => "volatile",
        }
    }

    /// For a message to the user: what survives once a fence has returned.
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
