//! Reads any bytes as frames of another node, and as messages. A message that is decoded is encoded to bytes that are decoded to the same message.
//!
//! The input is a byte with the kind of the messages, and the bytes of the connection. If the bit 4 of that byte is set, they are the message of one frame
//! without its length, which few mutations would keep right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pm_redis_server::fuzzing::{Kind, decode, read_frames};

fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else { return };
    let kind = [Kind::Hello, Kind::Request, Kind::Response][usize::from(first % 4 % 3)];
    let connection = match first & 4 {
        0 => bytes.to_vec(),
        _ => [&u32::try_from(bytes.len()).expect("a short input").to_be_bytes(), bytes].concat(),
    };
    let (frames, ended) = read_frames(&connection);
    let read_bytes: usize = frames.iter().map(|frame| frame.len() + 4).sum();
    // All bytes are those of frames, or of an incomplete one.
    assert!(ended.is_err() || connection.len() - read_bytes < 4, "{ended:?}");
    for frame in frames {
        let Ok(message) = decode(kind, &frame) else { continue };
        assert!(message.frame.len() <= frame.len() + 4, "an encoding is the shortest");
        let (again, ended) = read_frames(&message.frame);
        ended.expect("the frame of a message is complete");
        let [again] = &again[..] else { panic!("{} frames", again.len()) };
        assert_eq!(decode(kind, again).expect("what was encoded"), message);
    }
});
