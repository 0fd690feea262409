//! The protocol's numbers and the layout of its messages, all of them big-endian. By hand: no crate has both structured replies and the
//! server's side.
//!
//! # Source
//! "The NBD protocol", doc/proto.md of the NetworkBlockDevice project.

#![expect(missing_docs, reason = "the numbers have the names of the specification, which documents them")]

use bytes::{Buf, BufMut};

/// First word of the server's greeting: "NBDMAGIC".
pub const INIT_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second word of the greeting, and first word of every option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// First word of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Length of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Length of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of a chunk's head.
pub const CHUNK_HEAD_BYTES: usize = 20;
/// Length of the offset that precedes the data in a chunk of data.
pub const CHUNK_OFFSET_BYTES: u32 = 8;
/// Zeroes that end the reply to `EXPORT_NAME`, unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;
/// The longest string that the protocol allows, in bytes.
pub const MAX_STRING_BYTES: usize = 4096;
/// The longest payload of a read or write that this server accepts, in bytes; reported on request.
pub const MAX_PAYLOAD_BYTES: u32 = 64 << 20;
/// The least length and alignment of requests, in bytes; reported on request.
pub const MIN_BLOCK_BYTES: u32 = 1;
/// The preferred size of requests, in bytes; reported on request.
pub const PREFERRED_BLOCK_BYTES: u32 = 4096;

/// Handshake flags, from the server: it supports the fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flags, from the server: it can leave the zeroes after `EXPORT_NAME` out.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;
/// Handshake flags, from the client: it supports the fixed newstyle.
pub const CLIENT_FIXED_NEWSTYLE: u32 = 1 << 0;
/// Handshake flags, from the client: leave the zeroes out.
pub const CLIENT_NO_ZEROES: u32 = 1 << 1;

/// Options: the client's requests during the handshake.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Kinds of information in reply to `INFO` and `GO`.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: the features of an export.
pub mod flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// "Only if it is faster than writing" is supported on `WRITE_ZEROES`.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Types of requests.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
}

/// Flags of requests.
pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks of structured replies.
pub mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const ERROR: u16 = (1 << 15) + 1;
    /// A flag, not a type: the reply's last chunk.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// Errors of requests. The protocol fixes the numbers, whatever the system's own.
pub mod errno {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
}

/// A request, checked for its magic number only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// See [`command_flag`].
    pub flags: u16,
    /// See [`command`].
    pub command: u16,
    /// Chosen by the client, repeated in the reply.
    pub cookie: u64,
    /// Its offset in the export.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u32,
}

impl Request {
    /// Decodes a message. `None` if the magic number is wrong.
    #[must_use]
    #[inline]
    pub fn decode(wire: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut fields = &wire[..];
        (fields.get_u32() == REQUEST_MAGIC).then(|| Self {
            flags: fields.get_u16(),
            command: fields.get_u16(),
            cookie: fields.get_u64(),
            offset_bytes: fields.get_u64(),
            len_bytes: fields.get_u32(),
        })
    }

    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut wire = [0; REQUEST_BYTES];
        let mut fields = &mut wire[..];
        fields.put_u32(REQUEST_MAGIC);
        fields.put_u16(self.flags);
        fields.put_u16(self.command);
        fields.put_u64(self.cookie);
        fields.put_u64(self.offset_bytes);
        fields.put_u32(self.len_bytes);
        wire
    }

    /// Whether all of `flags` are set.
    #[must_use]
    #[inline]
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// The number of bytes that follow the request, even if it will be refused.
    #[must_use]
    #[inline]
    pub const fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE { self.len_bytes } else { 0 }
    }
}

/// The head of a simple reply.
#[must_use]
#[inline]
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut wire = [0; SIMPLE_REPLY_BYTES];
    let mut fields = &mut wire[..];
    fields.put_u32(SIMPLE_REPLY_MAGIC);
    fields.put_u32(error);
    fields.put_u64(cookie);
    wire
}

/// The head of a chunk of a structured reply, the last one if `flags` say so.
#[must_use]
#[inline]
pub fn chunk_head(flags: u16, kind: u16, cookie: u64, payload_bytes: u32) -> [u8; CHUNK_HEAD_BYTES] {
    let mut wire = [0; CHUNK_HEAD_BYTES];
    let mut fields = &mut wire[..];
    fields.put_u32(STRUCTURED_REPLY_MAGIC);
    fields.put_u16(flags);
    fields.put_u16(kind);
    fields.put_u64(cookie);
    fields.put_u32(payload_bytes);
    wire
}
