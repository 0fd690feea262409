//! Reads any bytes as a trace file. The result is an error, or a trace that is written back unchanged and can be crashed.
#![no_main]

mod walk;

use libfuzzer_sys::fuzz_target;
use pm_crashsim::TraceFile;

/// Enough for a few pages; a longer region only costs time.
const REGION_LIMIT_BYTES: u64 = 16 << 10;

fuzz_target!(|input: &[u8]| {
    // The checksum is corrected, as few mutations would keep it valid.
    let mut bytes = input.to_vec();
    if bytes.len() >= 4 {
        let body = bytes.len() - 4;
        let crc = crc32c::crc32c(&bytes[..body]);
        bytes[body..].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok(file) = TraceFile::from_bytes_within(&bytes, REGION_LIMIT_BYTES) else { return };
    assert_eq!(file.to_bytes(), bytes, "the encoding is unique");
    for crash in file.crashes() {
        // A choice of writes is an image only if all of them were pending at the crash.
        if let Ok(image) = crash.image() {
            assert_eq!(image.len_bytes(), file.start().len_bytes());
        }
    }
    walk::everywhere(&file);
});
