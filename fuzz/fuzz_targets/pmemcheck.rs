//! Imports any text as a log of pmemcheck. The result is an error, or a trace that can be saved, read and crashed.
#![no_main]

mod walk;

use libfuzzer_sys::fuzz_target;
use pm_crashsim::import::{PmemcheckOptions, pmemcheck};
use pm_crashsim::{Image, TraceFile};

/// Enough for a few pages; a longer region only costs time.
const REGION_BYTES: u64 = 16 << 10;

fuzz_target!(|log: &[u8]| {
    // The first byte chooses among the options, the rest is the log.
    let Some((&choice, log)) = log.split_first() else { return };
    let start = Image::zeroed(REGION_BYTES);
    let mut options =
        PmemcheckOptions::new().start(start).skip_unknown(choice & 1 != 0).unfinished(choice & 2 != 0);
    if choice & 4 != 0 {
        options = options.region(0x4a40000, REGION_BYTES);
    }
    if choice & 8 != 0 {
        options = options.file("/mnt/pmem0/pool").ack_at("publish.END");
    }
    let Ok(imported) = pmemcheck(log, &options) else { return };
    let file = imported.file;
    let bytes = file.to_bytes();
    let back = TraceFile::from_bytes(&bytes).expect("a saved trace can be read");
    assert_eq!(back.to_bytes(), bytes);
    walk::everywhere(&back);
});
