//! A null target: completes every request of a ublk device at once and moves no data. It has pmbd's transport, without polling, and the driver's
//! copies; what a server adds to it is the work of the requests.
//!
//! Prints the device's path when the device exists, and serves until it is killed, which deletes the device.

#![forbid(unsafe_code)]

use clap::Parser;
use miette::{IntoDiagnostic as _, Result, miette};
use pm_ublk::{ANY_DEVICE, CharDevice, Control, DeviceRecord, PreparedQueue, QueueError, Turn, sys};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// A null target of ublk.
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
    let mut control = Control::open()
        .map_err(|error| miette!(help = "modprobe ublk_drv, as root", "no device can be added: {error}"))?;
    let added = control
        .add(&sys::ublksrv_ctrl_dev_info {
            nr_hw_queues: options.queues,
            queue_depth: options.depth,
            max_io_buf_bytes: options.max_io,
            dev_id: ANY_DEVICE,
            ..Default::default()
        })
        .into_diagnostic()?;
    let device = Arc::new(CharDevice::open(added.dev_id).into_diagnostic()?);
    let (is_ready, ready) = channel();
    let threads = (0..added.nr_hw_queues).map(|queue| {
        let (device, is_ready) = (Arc::clone(&device), is_ready.clone());
        std::thread::spawn(move || serve(&device, queue, &added, &is_ready))
    });
    let threads = threads.collect::<Vec<_>>();
    drop(is_ready);
    // A thread that fails before drops its sender.
    if ready.iter().take(threads.len()).count() == threads.len() {
        control.set_params(added.dev_id, &params(&options)).into_diagnostic()?;
        control.start(added.dev_id).into_diagnostic()?;
        println!("/dev/ublkb{}", added.dev_id);
    }
    for thread in threads {
        thread.join().map_err(|_| miette!("a queue's thread panicked"))?.into_diagnostic()?;
    }
    Ok(())
}

/// Serves a queue until the device is stopped.
fn serve(
    device: &CharDevice,
    index: u16,
    added: &DeviceRecord,
    is_ready: &Sender<()>,
) -> Result<(), QueueError> {
    let prepared = PreparedQueue::new(added.queue_depth, added.max_io_buf_bytes)?;
    let mut queue = prepared.fetch(device, added, index, None)?;
    let done = |request: &sys::ublksrv_io_desc, _: &mut [u8]| Ok(request.nr_sectors << 9);
    let mut turn = queue.turn(0, done)?;
    // `main` waits for it.
    is_ready.send(()).unwrap_or(());
    while turn != Turn::Stopped {
        turn = queue.turn(1, done)?;
    }
    Ok(())
}

fn params(options: &Options) -> sys::ublk_params {
    sys::ublk_params {
        types: sys::UBLK_PARAM_TYPE_BASIC,
        basic: sys::ublk_param_basic {
            logical_bs_shift: 9,
            physical_bs_shift: 12,
            io_opt_shift: 12,
            io_min_shift: 9,
            max_sectors: options.max_io >> 9,
            dev_sectors: options.size >> 9,
            ..Default::default()
        },
        ..Default::default()
    }
}
