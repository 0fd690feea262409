//! The protocol's numbers and the layout of its messages. All of them travel big-endian.
//!
//! # Source
//! "The NBD protocol", doc/proto.md of the NetworkBlockDevice project.

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

/// Length of an option's head: magic, option, length of the data.
pub const OPTION_HEAD_BYTES: usize = 16;
/// Length of the head of a reply to an option: magic, option, type, length of the data.
pub const OPTION_REPLY_HEAD_BYTES: usize = 20;
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
/// The longest payload of a read or write that this server takes, in bytes; told to clients that ask.
pub const MAX_PAYLOAD_BYTES: u32 = 64 << 20;
/// The least length and alignment of requests, in bytes; told to clients that ask.
pub const MIN_BLOCK_BYTES: u32 = 1;
/// The size of requests that this server likes best, in bytes; told to clients that ask.
pub const PREFERRED_BLOCK_BYTES: u32 = 4096;

/// Handshake flags, from the server: it speaks the fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flags, from the server: it can leave the zeroes after `EXPORT_NAME` out.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;
/// Handshake flags, from the client: it speaks the fixed newstyle.
pub const CLIENT_FIXED_NEWSTYLE: u32 = 1 << 0;
/// Handshake flags, from the client: leave the zeroes out.
pub const CLIENT_NO_ZEROES: u32 = 1 << 1;

/// Options: what a client asks during the handshake.
pub mod option {
    /// Chooses an export and starts transmission, with no way to say no but to hang up.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the session.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Asks about an export.
    pub const INFO: u32 = 6;
    /// Asks about an export, and starts transmission.
    pub const GO: u32 = 7;
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists kinds of block status.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses kinds of block status.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export, in reply to `LIST`.
    pub const SERVER: u32 = 2;
    /// A piece of information, in reply to `INFO` and `GO`.
    pub const INFO: u32 = 3;
    /// This server does not know the option.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The option's data make no sense.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The option's data are too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Kinds of information in reply to `INFO` and `GO`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// A text for humans.
    pub const DESCRIPTION: u16 = 2;
    /// Least, preferred and largest block.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Changes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Takes `FLUSH`.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Takes FUA.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Takes `TRIM`.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Takes `WRITE_ZEROES`.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Takes "do not fragment" on reads.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all of them.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Takes "only if it is faster than writing" on `WRITE_ZEROES`.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Types of requests.
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes the payload that follows the request.
    pub const WRITE: u16 = 1;
    /// Ends the session, with no reply.
    pub const DISC: u16 = 2;
    /// Makes durable what was completed before.
    pub const FLUSH: u16 = 3;
    /// Tells that a range is not needed.
    pub const TRIM: u16 = 4;
    /// Zeroes a range.
    pub const WRITE_ZEROES: u16 = 6;
}

/// Flags of requests.
pub mod command_flag {
    /// Durable before the reply. Allowed on every command.
    pub const FUA: u16 = 1 << 0;
    /// `WRITE_ZEROES`: keep the range allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// `READ`: one chunk of data only.
    pub const DF: u16 = 1 << 2;
    /// `WRITE_ZEROES`: fail at once if it is not faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks of structured replies.
pub mod chunk {
    /// No content; ends a reply.
    pub const NONE: u16 = 0;
    /// An offset and the data there.
    pub const OFFSET_DATA: u16 = 1;
    /// An error and a message.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// Flag, not type: the reply's last chunk.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// Errors of requests. The protocol fixes the numbers, whatever the system's own.
pub mod errno {
    /// The export is read-only.
    pub const EPERM: u32 = 1;
    /// The medium failed.
    pub const EIO: u32 = 5;
    /// The request makes no sense.
    pub const EINVAL: u32 = 22;
    /// A write ends behind the export.
    pub const ENOSPC: u32 = 28;
}

/// A request as it came, nothing checked but its magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// See [`command_flag`].
    pub flags: u16,
    /// See [`command`].
    pub command: u16,
    /// Chosen by the client, echoed in the reply.
    pub cookie: u64,
    /// Where in the export.
    pub offset_bytes: u64,
    /// How long.
    pub len_bytes: u32,
}

impl Request {
    /// From the wire. Nothing when the magic is wrong.
    #[must_use]
    #[inline]
    pub fn decode(wire: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut at = Fields(wire);
        (u32::from_be_bytes(at.take()) == REQUEST_MAGIC).then(|| Self {
            flags: u16::from_be_bytes(at.take()),
            command: u16::from_be_bytes(at.take()),
            cookie: u64::from_be_bytes(at.take()),
            offset_bytes: u64::from_be_bytes(at.take()),
            len_bytes: u32::from_be_bytes(at.take()),
        })
    }

    /// To the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut wire = [0; REQUEST_BYTES];
        wire[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        wire[4..6].copy_from_slice(&self.flags.to_be_bytes());
        wire[6..8].copy_from_slice(&self.command.to_be_bytes());
        wire[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        wire[16..24].copy_from_slice(&self.offset_bytes.to_be_bytes());
        wire[24..28].copy_from_slice(&self.len_bytes.to_be_bytes());
        wire
    }

    /// Whether all of `flags` are set.
    #[must_use]
    #[inline]
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// How many bytes follow the request on the wire, whether or not they will be accepted.
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
    wire[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    wire[4..8].copy_from_slice(&error.to_be_bytes());
    wire[8..16].copy_from_slice(&cookie.to_be_bytes());
    wire
}

/// The head of the only, and so last, chunk of a structured reply.
#[must_use]
#[inline]
pub fn only_chunk(kind: u16, cookie: u64, payload_bytes: u32) -> [u8; CHUNK_HEAD_BYTES] {
    chunk_head(chunk::FLAG_DONE, kind, cookie, payload_bytes)
}

/// The head of a chunk of a structured reply, the last one if `flags` say so.
#[must_use]
#[inline]
pub fn chunk_head(flags: u16, kind: u16, cookie: u64, payload_bytes: u32) -> [u8; CHUNK_HEAD_BYTES] {
    let mut wire = [0; CHUNK_HEAD_BYTES];
    wire[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    wire[4..6].copy_from_slice(&flags.to_be_bytes());
    wire[6..8].copy_from_slice(&kind.to_be_bytes());
    wire[8..16].copy_from_slice(&cookie.to_be_bytes());
    wire[16..20].copy_from_slice(&payload_bytes.to_be_bytes());
    wire
}

/// The fields of a message of fixed length, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    #[inline]
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (head, rest) = self.0.split_at(N);
        field.copy_from_slice(head);
        self.0 = rest;
        field
    }
}
