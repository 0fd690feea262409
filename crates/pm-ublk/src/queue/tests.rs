//! A queue of a driver that is played by /dev/null, which completes each command at once, and a file with the descriptors.

use super::*;
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::os::unix::fs::FileExt;

const DEPTH: u16 = 4;
const MAX_IO_BYTES: u32 = 8192;

/// The bytes of a descriptor.
#[expect(clippy::host_endian_bytes, reason = "as the kernel of this host writes them")]
fn bytes_of(op_flags: u32, nr_sectors: u32, start_sector: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[0..4].copy_from_slice(&op_flags.to_ne_bytes());
    bytes[4..8].copy_from_slice(&nr_sectors.to_ne_bytes());
    bytes[8..16].copy_from_slice(&start_sector.to_ne_bytes());
    bytes
}

/// A queue of the device at `path`, whose tag `n` has a read of `n` sectors from sector `10 * n`.
fn queue_of(path: &str, watched: Option<BorrowedFd<'_>>) -> Queue {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    for tag in 0..DEPTH {
        let bytes = bytes_of(sys::UBLK_IO_OP_READ, tag.into(), u64::from(tag) * 10);
        file.write_all_at(&bytes, u64::from(tag) * 24).unwrap();
    }
    let descriptors = Descriptors::map(file.as_fd(), 0, DEPTH).unwrap();
    let device = CharDevice::of(File::options().read(true).open(path).unwrap());
    let prepared = PreparedQueue::new(DEPTH, MAX_IO_BYTES).unwrap();
    prepared.offer(&device, descriptors, 0, u64::MAX, watched).unwrap()
}

#[test]
fn each_tag_is_served_with_its_descriptor_and_buffer() {
    let mut queue = queue_of("/dev/null", None);
    for round in 0..3_u8 {
        let mut seen = Vec::new();
        let turn = queue.turn(DEPTH.into(), |request, buffer| {
            let tag = usize::try_from(request.nr_sectors).unwrap();
            assert_eq!(
                (request.op_flags, request.start_sector),
                (sys::UBLK_IO_OP_READ, request.nr_sectors as u64 * 10)
            );
            assert_eq!(buffer.len(), MAX_IO_BYTES as usize);
            // What the tag's last request has left.
            assert_eq!(buffer[0], if round == 0 { 0 } else { round * 10 + u8::try_from(tag).unwrap() });
            buffer[0] = (round + 1) * 10 + u8::try_from(tag).unwrap();
            seen.push(tag);
            Ok(request.nr_sectors * 512)
        });
        assert_eq!(turn.unwrap(), Turn::Served { count: DEPTH.into(), watched: false });
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
        assert_eq!(queue.fetched, DEPTH.into(), "every answer offers its tag again");
    }
}

#[test]
fn nothing_is_submitted_before_the_first_turn() {
    let mut queue = queue_of("/dev/null", None);
    assert_eq!(queue.ring.submission().len(), DEPTH.into());
    assert!(!queue.is_ready());
    queue.submit().unwrap();
    assert!(queue.is_ready() && queue.ring.submission().is_empty());
}

#[test]
fn readable_descriptor_is_reported_once() {
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut queue = queue_of("/dev/null", Some(event.as_fd()));
    let serve = |_: &sys::ublksrv_io_desc, _: &mut [u8]| Ok(0);
    assert_eq!(queue.turn(1, serve).unwrap(), Turn::Served { count: DEPTH.into(), watched: false });
    rustix::io::write(&event, &[1; 8]).unwrap();
    let mut reports = 0;
    for _ in 0..20 {
        let Turn::Served { watched, .. } = queue.turn(1, serve).unwrap() else { panic!("stopped") };
        reports += u32::from(watched);
    }
    assert_eq!(reports, 1);
}

/// A directory has no commands of io_uring.
#[test]
fn refused_tag_is_an_error() {
    let refused = queue_of("/", None).turn(1, |_, _| panic!("no request")).unwrap_err();
    assert!(matches!(refused, QueueError::Refused { errno: Errno::OPNOTSUPP, .. }), "{refused}");
}

#[test]
fn no_tag_is_offered_after_an_abort() {
    let mut queue = queue_of("/dev/null", None);
    queue.aborting = true;
    // The driver answers three fetches with requests, and one is aborted.
    assert_eq!(queue.turn(DEPTH.into(), |_, _| Ok(0)).unwrap(), Turn::Stopped);
    assert_eq!(queue.fetched, 0);
    assert!(queue.ring.submission().is_empty());
    assert_eq!(queue.turn(1, |_, _| panic!("no request")).unwrap(), Turn::Stopped, "and it does not wait");
}

#[test]
fn device_without_queue_is_an_error() {
    let device = CharDevice::of(File::open("/").unwrap());
    let prepared = PreparedQueue::new(DEPTH, MAX_IO_BYTES).unwrap();
    let queue = prepared.fetch(&device, &record(0, DEPTH, MAX_IO_BYTES), 0, None);
    assert!(matches!(queue, Err(QueueError::System { .. })));
}

fn record(dev_id: u32, queue_depth: u16, max_io_buf_bytes: u32) -> DeviceRecord {
    let info = sys::ublksrv_ctrl_dev_info { dev_id, queue_depth, max_io_buf_bytes, ..Default::default() };
    DeviceRecord::of_driver(info)
}

/// The driver would copy the data of a longer request behind the buffer.
#[test]
fn queue_that_does_not_fit_the_device_is_refused() {
    let device = CharDevice::of(File::open("/dev/null").unwrap());
    for unfit in [
        record(0, DEPTH, MAX_IO_BYTES + 1),
        record(0, DEPTH - 1, MAX_IO_BYTES),
        record(0, DEPTH + 1, MAX_IO_BYTES),
        record(1, DEPTH, MAX_IO_BYTES),
    ] {
        let prepared = PreparedQueue::new(DEPTH, MAX_IO_BYTES).unwrap();
        assert!(matches!(prepared.fetch(&device, &unfit, 0, None), Err(QueueError::Unfit { .. })));
    }
}

#[test]
fn results_are_bytes_or_negative_numbers() {
    assert_eq!(result_of(Ok(4096)), 4096);
    assert_eq!(result_of(Ok(u32::MAX)), i32::MAX);
    assert_eq!(result_of(Err(Errno::IO)), -5);
}

#[test]
fn completions_are_decoded() {
    let of = |user_data, result| Completion::of(user_data, result, 8);
    assert_eq!(of(7, 0).unwrap(), Completion::Request(7));
    assert_eq!(of(7, -19).unwrap(), Completion::Aborted);
    assert_eq!(of(WATCH, 1).unwrap(), Completion::Watched);
    assert_eq!(of(WATCH, -9).unwrap(), Completion::Watched);
    assert!(matches!(of(3, -22), Err(QueueError::Refused { tag: 3, errno: Errno::INVAL })));
}

proptest! {
    /// Whatever a completion says, no tag beyond the depth is served, and no other result than zero is a request.
    #[test]
    fn malformed_completions_are_errors(user_data: u64, result: i32, depth in 0_u16..5000) {
        for user_data in [user_data, user_data & 0x1fff] {
            for result in [result, 0, -19, 1, i32::MIN] {
                match Completion::of(user_data, result, depth) {
                    Ok(Completion::Request(tag)) => {
                        prop_assert_eq!((u64::from(tag), result), (user_data, 0));
                        prop_assert!(tag < depth);
                    }
                    Ok(Completion::Aborted) => prop_assert!(result == -19 && user_data < u64::from(depth)),
                    Ok(Completion::Watched) => prop_assert_eq!(user_data, WATCH),
                    Err(QueueError::Refused { tag, errno }) => {
                        prop_assert_eq!((u64::from(tag), -errno.raw_os_error()), (user_data, result));
                    }
                    Err(_) => prop_assert!(user_data >= u64::from(depth) || !(-4095..=0).contains(&result)),
                }
            }
        }
    }
}
