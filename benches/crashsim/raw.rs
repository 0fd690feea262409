//! A minimal program: stores to some lines, one fence, and a recovery of one load. Also used by `operations.rs`.

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Coverage, Crash, Explorer, Failure, Image, Run};

/// Every subset of these lines may survive: 65,536 images.
const LINES: u64 = 16;

pub(crate) fn explore(explorer: &Explorer, image: &Image) -> Result<Coverage, Box<Failure>> {
    // Spread over the region, from its first to its last line.
    let stride = (image.len_bytes() - 64) / (LINES - 1) / 64 * 64;
    let operation = |run: &Run<()>| {
        for line in 0..LINES {
            run.pmem().store_u64(line * stride, 1);
            run.pmem().flush(line * stride, 8);
        }
        run.pmem().fence()?;
        Ok::<(), FenceError>(())
    };
    let check = |crash: &Crash<'_, ()>| match crash.pmem().load_u64(stride) {
        0 | 1 => Ok(()),
        found => Err(format!("{found} was found")),
    };
    explorer.explore(image, operation, check)
}
