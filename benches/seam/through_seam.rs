//! Our side. The length is a constant of the loop, as it is on the C side: both compilers know it.

use crate::Way;
use pm_core::{FenceError, Pmem, Region};

/// Persists `source` at each offset.
pub(crate) fn persist(region: &Region, way: Way, offsets: &[u64], source: &[u8]) -> Result<(), FenceError> {
    match source.len() {
        64 => of_length::<64>(region, way, offsets, source),
        256 => of_length::<256>(region, way, offsets, source),
        4096 => of_length::<4096>(region, way, offsets, source),
        0x4_0000 => of_length::<0x4_0000>(region, way, offsets, source),
        other => panic!("no loop for {other} bytes"),
    }
}

fn of_length<const LEN: usize>(
    region: &Region,
    way: Way,
    offsets: &[u64],
    source: &[u8],
) -> Result<(), FenceError> {
    let source: &[u8; LEN] = source.try_into().expect("the length was matched");
    match way {
        Way::Store => store::<LEN>(region, offsets, source),
        Way::Stream => stream::<LEN>(region, offsets, source),
    }
}

#[inline(never)]
fn store<const LEN: usize>(region: &Region, offsets: &[u64], source: &[u8; LEN]) -> Result<(), FenceError> {
    for &offset in offsets {
        region.store(offset, source);
        region.flush(offset, LEN as u64);
        region.fence()?;
    }
    Ok(())
}

#[inline(never)]
fn stream<const LEN: usize>(region: &Region, offsets: &[u64], source: &[u8; LEN]) -> Result<(), FenceError> {
    for &offset in offsets {
        region.store_nt(offset, source);
        region.fence()?;
    }
    Ok(())
}
