//! A failed write-back, which the kernel reports once, to the first process that syncs.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use pm_core::{Domain, Pmem, RegionOptions};

/// The reader fails, and a later opening that keeps the pages still learns of the lost writes.
#[test]
fn report_received_by_reader_is_kept() {
    for options in [RegionOptions::new().read_only(), RegionOptions::new().scratch()] {
        // Not in memory.
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file.pm");
        std::fs::write(&path, vec![7; 1 << 16]).unwrap();
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                answers::answer(libc::SYS_fdatasync, None, answers::error(libc::EIO));
                assert!(options.open(&path).is_err(), "{options:?}");
            });
            reader.join().unwrap();
        });
        let next = RegionOptions::new().keep_pages(true).open(&path).unwrap();
        assert_eq!(next.domain(), Domain::Page);
        assert!(next.poison_if_writes_were_lost(), "{options:?}");
    }
}
