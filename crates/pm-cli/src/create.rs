//! `pm heap create`

use crate::args::Create;
use crate::error::AtPath;
use crate::info;
use pm_alloc::{Heap, HeapOptions};

/// `pm heap create`
pub(crate) fn run(args: &Create, json: bool) -> miette::Result<()> {
    let mut options = HeapOptions::new();
    if let Some(lanes) = args.lanes {
        options = options.lanes(lanes);
    }
    if let Some(entries) = args.lane_entries {
        options = options.lane_entries(entries);
    }
    if let Some(chunk) = args.chunk_bytes {
        options = options.chunk_bytes(chunk.0);
    }
    drop(Heap::create(&args.file, args.size.0, &options).map_err(AtPath::new(&args.file))?);
    info::tell(&args.file, json)
}
