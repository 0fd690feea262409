//! The instructions of one persist: build with `--emit asm`, and read the functions `store_and_persist`, `stream` and `replace_pair`.
//!
//! `tests/assembly.rs` builds this example and prints the three functions.

use pm_core::{FenceError, Pmem, Region};

/// Stores a line through the cache and makes it durable: the hot path of every small update.
///
/// # Errors
/// As [`Pmem::fence`].
#[unsafe(no_mangle)]
pub fn store_and_persist(region: &Region, offset: u64, line: &[u8; 64]) -> Result<(), FenceError> {
    region.store(offset, line);
    region.persist(offset, 64)
}

/// Stores 4 KiB around the cache and makes them durable: the hot path of a block write.
///
/// # Errors
/// As [`Pmem::fence`].
#[unsafe(no_mangle)]
pub fn stream(region: &Region, offset: u64, block: &[u8; 4096]) -> Result<(), FenceError> {
    region.store_nt(offset, block);
    region.fence()
}

/// Replaces two words atomically and makes them durable: an update in place without a log.
///
/// # Errors
/// As [`Pmem::fence`].
#[unsafe(no_mangle)]
pub fn replace_pair(region: &Region, offset: u64, pair: u128) -> Result<(), FenceError> {
    region.store_u128(offset, pair);
    region.persist(offset, 16)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let region = Region::anonymous(1 << 20)?;
    store_and_persist(&region, 0, &[1; 64])?;
    stream(&region, 4096, &[2; 4096])?;
    replace_pair(&region, 8192, 3)?;
    println!("persisted a line, a block and a pair by {}", region.insns());
    Ok(())
}
