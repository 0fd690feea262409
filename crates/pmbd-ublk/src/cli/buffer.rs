//! The options of `pmbd serve` that put buffers before the disk.

use clap::Args;
use pm_cli_common::Size;
use pmbd::BufferOptions;
use std::path::PathBuf;

/// Buffers of writes in DRAM.
#[derive(Debug, Args)]
#[command(next_help_heading = "Buffers")]
pub(crate) struct Buffer {
    /// Buffer writes, in buffers of this size. Flush and FUA store them on the disk: the device reports a write-back cache. A killed server loses no
    /// write; a power failure loses what was not flushed. Not with --raw or --scheme deferred.
    #[arg(long, value_name = "SIZE")]
    buffer: Option<Size>,
    /// The number of buffers, each with a lock of its own.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "buffer")]
    buffers: u64,
    /// Consecutive bytes of the disk that have the same buffer.
    #[arg(long, value_name = "SIZE", default_value = "256K", requires = "buffer")]
    stride: Size,
    /// Store each block by itself, in the order of arrival, and not adjacent ones together.
    #[arg(long, requires = "buffer")]
    no_batch: bool,
    /// The directory of the buffers' file, in memory. Name the same whenever the disk is served.
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    pub(super) buffer_dir: PathBuf,
    /// Serve the disk without the writes that a killed server left in its buffers. They are lost.
    #[arg(long)]
    pub(super) discard_buffered: bool,
}

impl Buffer {
    /// The buffers; `None` without any.
    pub(super) fn options(&self) -> Option<BufferOptions> {
        self.buffer.map(|Size(buffer_bytes)| BufferOptions {
            buffer_bytes,
            buffer_count: self.buffers,
            stride_bytes: self.stride.0,
            is_batched: !self.no_batch,
        })
    }

    /// The options as they were given, for the operator; empty without buffers.
    pub(super) fn describe(&self) -> String {
        let how = if self.no_batch { "block by block" } else { "in batches" };
        self.buffer.map_or_else(String::new, |size| match self.buffers {
            1 => format!("in {size} of DRAM, stored {how} by Flush and FUA"),
            count => format!("in {count} times {size} of DRAM, stored {how} by Flush and FUA"),
        })
    }
}
