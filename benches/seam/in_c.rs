//! The C side: bindings to `c/persist.c`.

use crate::Way;
use pm_core::insn::{FlushInsn, Insns, NtWidth};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

type PersistFn = unsafe extern "C" fn(*mut c_void, *const u64, usize, *const u8);

unsafe extern "C" {
    fn pm_bench_map(path: *const c_char, len: usize) -> *mut c_void;
    fn pm_bench_unmap(base: *mut c_void, len: usize) -> c_int;
    safe fn pm_bench_store(flush: c_uint, width: c_uint, len: usize) -> Option<PersistFn>;
    safe fn pm_bench_stream(width: c_uint, len: usize) -> Option<PersistFn>;
}

/// A second mapping of our side's file: the same memory at other addresses.
#[derive(Debug)]
pub(crate) struct CMapping {
    base: *mut c_void,
    len: usize,
}

impl CMapping {
    pub(crate) fn new(path: &Path, len_bytes: u64) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let len = usize::try_from(len_bytes).map_err(io::Error::other)?;
        // SAFETY: `path` is null-terminated and outlives the call.
        let base = unsafe { pm_bench_map(path.as_ptr(), len) };
        if base.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self { base, len }) }
    }

    /// The loop for one way, with the instructions that our side uses; `None` if there is no such loop.
    pub(crate) fn persist(&self, way: Way, insns: Insns, len: usize) -> Option<Persist<'_>> {
        let flush = match insns.flush() {
            FlushInsn::Clflush => 0,
            FlushInsn::ClflushOpt => 1,
            FlushInsn::Clwb => 2,
            _ => return None,
        };
        let width = match insns.nt_width() {
            NtWidth::B16 => 0,
            NtWidth::B32 => 1,
            NtWidth::B64 => 2,
            _ => return None,
        };
        let run = match way {
            Way::Store => pm_bench_store(flush, width, len),
            Way::Stream => pm_bench_stream(width, len),
        }?;
        Some(Persist { mapping: self, len, run })
    }
}

impl Drop for CMapping {
    fn drop(&mut self) {
        // SAFETY: this mapping owns the range, and a `Persist` would still borrow it.
        let answer = unsafe { pm_bench_unmap(self.base, self.len) };
        assert_eq!(answer, 0, "munmap of a whole mapping cannot fail");
    }
}

/// One loop over one mapping.
#[derive(Debug)]
pub(crate) struct Persist<'a> {
    mapping: &'a CMapping,
    len: usize,
    run: PersistFn,
}

impl Persist<'_> {
    /// Persists `source` at each offset.
    pub(crate) fn run(&self, offsets: &[u64], source: &[u8]) {
        assert_eq!(source.len(), self.len, "the loop is for one length");
        let last = (self.mapping.len - self.len) as u64;
        debug_assert!(offsets.iter().all(|&offset| offset <= last), "every offset is inside the mapping");
        // SAFETY: the instructions were detected on this CPU; each offset and the bytes after it are inside the mapping, because
        // the list was made for a region of its length; the source has the loop's length.
        unsafe { (self.run)(self.mapping.base, offsets.as_ptr(), offsets.len(), source.as_ptr()) }
    }
}
