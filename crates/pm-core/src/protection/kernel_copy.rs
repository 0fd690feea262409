//! Copies by the kernel: pwrite(2) and pread(2).

use crate::fault::MediumFault;
use crate::fault::chain::survive;
use crate::{Domain, Medium, Pmem, Region};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::IoSlice;

/// To be called once before [`write`]: a process with a limit on the length of files gets an error, and is not ended, by a write beyond the limit.
///
/// # Source
/// setrlimit(2), `RLIMIT_FSIZE`.
pub(super) fn prepare() {
    survive(libc::SIGXFSZ);
}

/// Writes `bytes` at `offset` of the region's file. The range is inside the region.
///
/// # Durability
/// As [`Pmem::store_nt`]: on DAX the kernel stores around the cache, and makes the file's block map durable; in the page domain the pages are recorded for
/// the next fence.
///
/// # Source
/// pwritev2(2), `RWF_DSYNC`.
pub(super) fn write(region: &Region, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
    // A write beyond the end of a truncated file would lengthen it, and hide that bytes were lost.
    let stat = rustix::fs::fstat(region.file()).map_err(|_| MediumFault)?;
    if stat.st_size.cast_unsigned() < offset + bytes.len() as u64 {
        return Err(MediumFault);
    }
    // A file system on DAX may still have to record that a block was written, which a fence does not make durable. A fault in a mapping with MAP_SYNC does so.
    let flags = match region.medium() {
        Medium::DaxFile => ReadWriteFlags::DSYNC,
        _ => ReadWriteFlags::empty(),
    };
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::pwritev2(region.file(), &[IoSlice::new(&bytes[at..])], offset + at as u64, flags) {
            Ok(0) => return Err(MediumFault),
            Ok(len) => at += len,
            Err(Errno::INTR) => {}
            Err(_) => return Err(MediumFault),
        }
    }
    if region.domain() == Domain::Page {
        region.flush(offset, bytes.len() as u64);
    }
    Ok(())
}

/// Reads from `offset` of the region's file. The range is inside the region.
pub(super) fn read(region: &Region, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
    let mut at = 0;
    while at < out.len() {
        match rustix::io::pread(region.file(), &mut out[at..], offset + at as u64) {
            // The file was truncated.
            Ok(0) => return Err(MediumFault),
            Ok(len) => at += len,
            Err(Errno::INTR) => {}
            Err(_) => return Err(MediumFault),
        }
    }
    Ok(())
}
