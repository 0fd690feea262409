//! The protocol between the host and the agent in the guest.
//!
//! Each direction of a virtio-serial port carries a stream of frames: one byte of type, four bytes of length (little-endian), and the payload.
//! The output of a command and its exit code share one stream, so the exit code follows all output and cannot be mistaken for output.
//!
//! This file is compiled into this library and into the agent, which has no dependencies.

use std::io::{self, ErrorKind, Read, Write};

/// The largest payload. Both sides send much less; the limit detects a foreign stream.
const PAYLOAD_MAX_BYTES: u32 = 1 << 20;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Host to guest: run this shell script.
    Run(Vec<u8>),
    /// Guest to host: the agent waits for commands.
    Ready,
    /// Guest to host: standard output of the running script.
    Stdout(Vec<u8>),
    /// Guest to host: standard error of the running script.
    Stderr(Vec<u8>),
    /// Guest to host: the exit code of the script; 128 plus the signal's number if a signal ended it.
    Exit(u8),
}

impl Frame {
    /// Writes the frame by one write.
    ///
    /// # Errors
    /// Those of the stream, and `InvalidInput` for a payload above 1 MiB.
    pub(crate) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let (kind, payload): (u8, &[u8]) = match self {
            Self::Run(script) => (b'r', script),
            Self::Ready => (b'y', &[]),
            Self::Stdout(bytes) => (b'o', bytes),
            Self::Stderr(bytes) => (b'e', bytes),
            Self::Exit(code) => (b'x', &[*code]),
        };
        let length = u32::try_from(payload.len()).ok().filter(|length| *length <= PAYLOAD_MAX_BYTES);
        let length =
            length.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a frame of more than 1 MiB"))?;
        let mut bytes = Vec::with_capacity(5 + payload.len());
        bytes.push(kind);
        bytes.extend(length.to_le_bytes());
        bytes.extend(payload);
        stream.write_all(&bytes)?;
        stream.flush()
    }

    /// Reads the next frame; `None` if the stream was closed between two frames.
    ///
    /// # Errors
    /// Those of the stream, `UnexpectedEof` inside a frame, `InvalidData` for an invalid frame.
    pub(crate) fn read(stream: &mut impl Read) -> io::Result<Option<Self>> {
        let mut kind = [0];
        if let Err(error) = stream.read_exact(&mut kind) {
            return if error.kind() == ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
        }
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length > PAYLOAD_MAX_BYTES {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a frame of {length} bytes")));
        }
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        match (kind[0], payload.as_slice()) {
            (b'r', _) => Ok(Some(Self::Run(payload))),
            (b'y', []) => Ok(Some(Self::Ready)),
            (b'o', _) => Ok(Some(Self::Stdout(payload))),
            (b'e', _) => Ok(Some(Self::Stderr(payload))),
            (b'x', [code]) => Ok(Some(Self::Exit(*code))),
            (kind, _) => Err(io::Error::new(ErrorKind::InvalidData, format!("a frame of kind {kind:#04x}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let frames = [
            Frame::Ready,
            Frame::Run(b"exit 7".to_vec()),
            // An output that looks like an exit frame is still output.
            Frame::Stdout(b"x\x01\0\0\0\0".to_vec()),
            Frame::Stderr(Vec::new()),
            Frame::Exit(7),
        ];
        let mut stream = Vec::new();
        for frame in &frames {
            frame.write(&mut stream).expect("writing to a vector does not fail");
        }
        let mut stream = stream.as_slice();
        for frame in frames {
            assert_eq!(Frame::read(&mut stream).expect("a whole frame"), Some(frame));
        }
        assert_eq!(Frame::read(&mut stream).expect("a clean end"), None);
    }

    #[test]
    fn truncated_frame_is_an_error() {
        let mut whole = Vec::new();
        Frame::Stdout(b"abc".to_vec()).write(&mut whole).expect("writing to a vector does not fail");
        for length in 1..whole.len() {
            let error = Frame::read(&mut &whole[..length]).expect_err("cut short");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{length} bytes of it");
        }
    }

    #[test]
    fn invalid_frame_is_refused() {
        for bytes in
            [&b"?\0\0\0\0"[..], b"o\xff\xff\xff\xff", b"x\0\0\0\0", b"x\x02\0\0\0ab", b"y\x01\0\0\0a"]
        {
            let error = Frame::read(&mut &*bytes).expect_err("not a frame");
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{bytes:?}");
        }
        assert!(Frame::Run(vec![0; (1 << 20) + 1]).write(&mut Vec::new()).is_err());
    }
}
