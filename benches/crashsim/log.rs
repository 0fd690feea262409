//! A log of records with checksums. An append is one persist; recovery scans up to the first invalid record.

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Coverage, Crash, Explorer, Failure, Image, Run};

pub(crate) const REGION_BYTES: u64 = 64 << 10;

/// One line: a number, the length of the payload, the payload's checksum, and the checksum of these words.
const HEADER_WORDS: usize = 4;
/// On the next line.
const PAYLOAD_WORDS: usize = 6;
const RECORD_BYTES: u64 = 128;
const RECORDS: u64 = 32;

pub(crate) fn explore(explorer: &Explorer, image: &Image) -> Result<Coverage, Box<Failure>> {
    let operation = |run: &Run<u64>| {
        for number in 1..=RECORDS {
            append(&**run.pmem(), number)?;
            run.ack(number);
        }
        Ok::<(), FenceError>(())
    };
    let check = |crash: &Crash<'_, u64>| {
        let (found, acked) = (scan(&**crash.pmem()), crash.acked().len() as u64);
        match (acked..=acked + 1).contains(&found) {
            true => Ok(()),
            false => Err(format!("{found} records after {acked} were acknowledged")),
        }
    };
    explorer.explore(image, operation, check)
}

/// Needs one fence: the checksums show whether header and payload are complete.
fn append(pmem: &impl Pmem, number: u64) -> Result<(), FenceError> {
    let offset = (number - 1) * RECORD_BYTES;
    let payload: Vec<u64> = (0..PAYLOAD_WORDS).map(|word| number << 8 | word as u64).collect();
    let mut header = vec![number, PAYLOAD_WORDS as u64 * 8, checksum(&payload)];
    header.push(checksum(&header));
    pmem.store(offset, &bytes(&header));
    pmem.store(offset + 64, &bytes(&payload));
    pmem.persist(offset, RECORD_BYTES)
}

/// The number of valid records. Reads a payload only if its header is valid.
fn scan(pmem: &impl Pmem) -> u64 {
    let is_valid = |number: &u64| {
        let offset = (number - 1) * RECORD_BYTES;
        let header: [u64; HEADER_WORDS] = words(pmem, offset);
        if header[0] != *number || checksum(&header[..3]) != header[3] {
            return false;
        }
        let payload: [u64; PAYLOAD_WORDS] = words(pmem, offset + 64);
        checksum(&payload) == header[2]
    };
    (1..=RECORDS).take_while(is_valid).count() as u64
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words<const N: usize>(pmem: &impl Pmem, offset: u64) -> [u64; N] {
    core::array::from_fn(|word| pmem.load_u64(offset + word as u64 * 8))
}

/// FNV-1a over words, which detects torn records.
fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0xCBF2_9CE4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01B3))
}
