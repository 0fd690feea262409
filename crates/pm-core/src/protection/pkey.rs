//! Windows by protection keys of the CPU: two WRPKRU for each store.
#![expect(unsafe_code, reason = "sets the protection key of a region's pages")]

use super::windows::Access;
use core::ops::Range;
use rustix::io::Errno;

/// A protection key, and the accesses that threads have outside windows.
#[derive(Debug)]
pub(super) struct Pkey {
    number: u32,
    guards_reads: bool,
}

#[cfg(target_arch = "x86_64")]
impl Pkey {
    /// The bits of PKRU for key 0: no access, and no stores. Those of key `n` are `2 * n` places higher.
    ///
    /// # Source
    /// Intel SDM vol. 3A, "Protection Keys"; pkeys(7).
    const NO_ACCESS: u32 = 1;
    const NO_STORE: u32 = 2;

    /// Gives the mapping of `len` bytes at `base` a key.
    ///
    /// # Safety
    /// As [`PageTable::new`](super::page_table::PageTable::new).
    pub(super) unsafe fn new(
        pages: Range<usize>,
        is_writable: bool,
        guards_reads: bool,
    ) -> Result<Self, Errno> {
        let closed = if guards_reads { Self::NO_ACCESS } else { Self::NO_STORE };
        // SAFETY: takes two integers.
        let number = errno(unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, closed) })?;
        let number = u32::try_from(number).map_err(|_| Errno::INVAL)?;
        let key = Self { number, guards_reads };
        let prot = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let len = pages.len().next_multiple_of(rustix::param::page_size());
        // SAFETY: by the caller's contract the range is the mapping's own.
        errno(unsafe { libc::syscall(libc::SYS_pkey_mprotect, pages.start, len, prot, number) })?;
        Ok(key)
    }

    /// Gives pages the key again: a stray access may have opened them to all threads.
    ///
    /// # Safety
    /// They belong to the mapping that has the key.
    pub(super) unsafe fn close_again(&self, pages: Range<usize>, is_writable: bool) {
        let prot = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // If the kernel has no room for another mapping, they stay open. SAFETY: by the caller's contract.
        let closed =
            unsafe { libc::syscall(libc::SYS_pkey_mprotect, pages.start, pages.len(), prot, self.number) };
        debug_assert!(closed == 0, "the pages can be given the key");
    }

    /// Opens the region to this thread. Returns the state to restore.
    #[inline]
    pub(super) fn open(&self, access: Access) -> u32 {
        let before = read_pkru();
        let closed = match access {
            Access::Write => 0,
            Access::Read => self.closed(before),
        };
        let wanted = before & !self.bits(Self::NO_ACCESS | Self::NO_STORE) | closed;
        if wanted != before {
            write_pkru(wanted);
        }
        before
    }

    /// Closes it again.
    #[inline]
    pub(super) fn close(&self, before: u32) {
        // A thread that was started before the key was allocated has no access at all, until its first load.
        let wanted = if self.guards_reads {
            before
        } else {
            before & !self.bits(Self::NO_ACCESS) | self.closed(before)
        };
        if wanted != read_pkru() {
            write_pkru(wanted);
        }
    }

    /// The bit that forbids stores, unless this window is inside another of the thread.
    fn closed(&self, before: u32) -> u32 {
        match before & self.bits(Self::NO_ACCESS | Self::NO_STORE) {
            0 => 0,
            _ => self.bits(Self::NO_STORE),
        }
    }

    const fn bits(&self, bits: u32) -> u32 {
        bits << (2 * self.number)
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Pkey {
    fn drop(&mut self) {
        // The pages with the key are unmapped next. SAFETY: takes an integer.
        let freed = errno(unsafe { libc::syscall(libc::SYS_pkey_free, self.number) });
        debug_assert!(freed.is_ok(), "a key that was allocated can be freed: {freed:?}");
    }
}

#[cfg(target_arch = "x86_64")]
fn errno(result: libc::c_long) -> Result<libc::c_long, Errno> {
    match result {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        other => Ok(other),
    }
}

/// Reads the rights of this thread. Only a thread of a process with a key may call it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn read_pkru() -> u32 {
    let pkru: u32;
    // SAFETY: a `Pkey` exists, so the CPU has the instruction, which changes EDX and EAX only.
    unsafe {
        core::arch::asm!("rdpkru", in("ecx") 0, out("eax") pkru, out("edx") _, options(nostack, preserves_flags));
    };
    pkru
}

/// Sets the rights of this thread. Not `nomem`: the compiler must not move accesses across it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn write_pkru(pkru: u32) {
    // SAFETY: as above; WRPKRU needs zeroes in ECX and EDX.
    unsafe {
        core::arch::asm!("wrpkru", in("ecx") 0, in("edx") 0, in("eax") pkru, options(nostack, preserves_flags));
    };
}

/// No such keys on other CPUs.
#[cfg(not(target_arch = "x86_64"))]
impl Pkey {
    /// # Safety
    /// None is needed; on x86_64 it is.
    pub(super) unsafe fn new(_: Range<usize>, _: bool, _: bool) -> Result<Self, Errno> {
        Err(Errno::NOSYS)
    }

    /// # Safety
    /// None is needed; on x86_64 it is.
    pub(super) unsafe fn close_again(&self, _: Range<usize>, _: bool) {
        unreachable!("no value of this type exists")
    }

    pub(super) fn open(&self, _: Access) -> u32 {
        unreachable!("no value of this type exists: {} {}", self.number, self.guards_reads)
    }

    pub(super) fn close(&self, _: u32) {
        unreachable!("no value of this type exists")
    }
}
