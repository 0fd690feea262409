//! libublk's null target: completes every request at once and moves no data. It is the upper bound for ublk servers.
//!
//! Prints the device's path when the device exists, and serves until it is killed.

#![forbid(unsafe_code)]

use clap::Parser;
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::io::{BufDesc, BufDescList, UblkDev, UblkIOCtx, UblkQueue};
use libublk::{UblkError, UblkFlags, UblkIORes};
use miette::{Result, miette};
use std::rc::Rc;

/// libublk's null target.
#[derive(Debug, Parser)]
struct Options {
    /// The device's size in bytes.
    #[arg(long, value_name = "BYTES")]
    size: u64,
    /// The number of queues, each with a thread.
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Requests in flight in each queue.
    #[arg(long, default_value_t = 128)]
    depth: u16,
    /// The size of the longest request.
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 10)]
    max_io: u32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let control = UblkCtrlBuilder::default()
        .name("null")
        .nr_queues(options.queues)
        .depth(options.depth)
        .io_buf_bytes(options.max_io)
        .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
        .build()
        .map_err(|error| miette!(help = "modprobe ublk_drv, as root", "no device can be added: {error}"))?;
    let size_bytes = options.size;
    let set_size = move |device: &mut UblkDev| {
        device.set_default_params(size_bytes);
        Ok(())
    };
    let served = control.run_target(set_size, serve_queue, |control: &UblkCtrl| {
        println!("{}", control.get_bdev_path());
    });
    served.map(drop).map_err(|error| miette!("the device cannot be served: {error}"))
}

/// A queue's thread. Failures are panics.
fn serve_queue(index: u16, device: &UblkDev) {
    let buffers = Rc::new(device.alloc_queue_io_bufs());
    let queue = UblkQueue::new(index, device)
        .and_then(|queue| queue.submit_fetch_commands_unified(BufDescList::Slices(Some(&buffers))))
        .expect("the kernel lets a new device's queue be served");
    queue.wait_and_handle_io(|queue, tag, _: &UblkIOCtx| {
        complete(queue, tag, buffers[usize::from(tag)].as_slice()).expect("a request can be completed");
    });
}

fn complete(queue: &UblkQueue, tag: u16, buffer: &[u8]) -> Result<(), UblkError> {
    let len_bytes = queue.get_iod(tag).nr_sectors << 9;
    let result = i32::try_from(len_bytes).expect("requests are no longer than max_io");
    queue.complete_io_cmd_unified(tag, BufDesc::Slice(buffer), Ok(UblkIORes::Result(result)))
}
