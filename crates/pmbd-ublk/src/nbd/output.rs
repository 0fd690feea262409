//! The sending half of a connection: replies gather in one buffer and are sent in one system call.

use super::order::Member;
use super::protocol::{self, CHUNK_HEAD_BYTES, CHUNK_OFFSET_BYTES, SIMPLE_REPLY_BYTES, chunk};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::SendFlags;
use std::fmt::Display;
use std::io::{self, Write};

/// Size of the buffer. A longer reply streams through it.
const BUFFER_BYTES: usize = 256 << 10;
/// The longest message of an error chunk.
const MAX_MESSAGE_BYTES: usize = 256;
/// Room for any reply without data; with less than that left, the buffer is sent.
const SMALL_REPLY_BYTES: usize = CHUNK_HEAD_BYTES + 6 + MAX_MESSAGE_BYTES;

/// Pending replies.
#[derive(Debug)]
pub(super) struct Output {
    buffer: Box<[u8]>,
    filled: usize,
    structured: bool,
}

impl Output {
    pub(super) fn new(structured: bool) -> Self {
        Self { buffer: vec![0; BUFFER_BYTES].into(), filled: 0, structured }
    }

    /// Sends all pending replies. Blocks while the client does not read, and reports that to the order of connections.
    pub(super) fn send(&mut self, member: &Member) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.filled {
            let left = &self.buffer[sent..self.filled];
            let send = |flags| rustix::net::send(member.socket(), left, SendFlags::NOSIGNAL | flags);
            match send(SendFlags::DONTWAIT) {
                Ok(more) => sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let _stall = member.stall();
                    sent += retry_on_intr(|| send(SendFlags::empty()))?;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        self.filled = 0;
        Ok(())
    }

    /// Whether the next small reply needs [`Output::send`] first.
    #[inline]
    pub(super) fn is_nearly_full(&self) -> bool {
        self.buffer.len() - self.filled < SMALL_REPLY_BYTES
    }

    /// Whether there is room for `len` bytes of data and a head before them; [`Output::send`] makes it, up to [`Output::max_piece`].
    #[inline]
    pub(super) fn has_room_for_data(&self, len: usize) -> bool {
        self.buffer.len() - self.filled >= self.data_head_bytes() + len
    }

    /// The largest piece of data that an empty buffer takes, in whole granules.
    pub(super) fn max_piece(&self, granule: usize) -> usize {
        let max = self.buffer.len() - self.data_head_bytes();
        max - max % granule
    }

    const fn data_head_bytes(&self) -> usize {
        if self.structured { CHUNK_HEAD_BYTES + CHUNK_OFFSET_BYTES as usize } else { SIMPLE_REPLY_BYTES }
    }

    /// Adds a successful reply without data. Small.
    #[inline]
    pub(super) fn done(&mut self, cookie: u64) {
        self.put(&protocol::simple_reply(0, cookie));
    }

    /// Adds a successful reply to a read of nothing, for which a chunk of data would be illegal. Small.
    pub(super) fn read_nothing(&mut self, cookie: u64) {
        if self.structured {
            self.put(&protocol::chunk_head(chunk::FLAG_DONE, chunk::NONE, cookie, 0));
        } else {
            self.done(cookie);
        }
    }

    /// Adds an error, with a message if replies are structured. Small.
    pub(super) fn error(&mut self, cookie: u64, errno: u32, message: &dyn Display) {
        if !self.structured {
            self.put(&protocol::simple_reply(errno, cookie));
            return;
        }
        let mut text = [0; MAX_MESSAGE_BYTES];
        let mut free = &mut text[..];
        // A message that is too long is cut.
        let cut = write!(free, "{message}").is_err();
        let len = if cut { MAX_MESSAGE_BYTES } else { MAX_MESSAGE_BYTES - free.len() };
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_MESSAGE_BYTES")]
        let len16 = len as u16;
        let payload_bytes = 6 + u32::from(len16);
        self.put(&protocol::chunk_head(chunk::FLAG_DONE, chunk::ERROR, cookie, payload_bytes));
        self.put(&errno.to_be_bytes());
        self.put(&len16.to_be_bytes());
        self.put(&text[..len]);
    }

    /// The place of the data of a reply to a read: filled by the caller, it is added by [`Output::data`].
    #[inline]
    pub(super) fn data_buffer(&mut self, len: usize) -> &mut [u8] {
        let start = self.filled + self.data_head_bytes();
        &mut self.buffer[start..start + len]
    }

    /// Adds a whole reply to a read, whose data are in the [`Output::data_buffer`].
    #[inline]
    pub(super) fn data(&mut self, cookie: u64, offset_bytes: u64, len_bytes: u32) {
        self.head(chunk::FLAG_DONE, cookie, offset_bytes, len_bytes);
        self.filled += len_bytes as usize;
    }

    /// Adds the head of a reply to a read of `len_bytes`, which follow in [`Output::piece`]s. Where replies are structured,
    /// [`Output::read_nothing`] or [`Output::error`] ends it.
    pub(super) fn streamed_head(&mut self, cookie: u64, offset_bytes: u64, len_bytes: u32) {
        self.head(0, cookie, offset_bytes, len_bytes);
    }

    #[inline]
    fn head(&mut self, flags: u16, cookie: u64, offset_bytes: u64, len_bytes: u32) {
        if self.structured {
            let payload_bytes = CHUNK_OFFSET_BYTES + len_bytes;
            self.put(&protocol::chunk_head(flags, chunk::OFFSET_DATA, cookie, payload_bytes));
            self.put(&offset_bytes.to_be_bytes());
        } else {
            self.done(cookie);
        }
    }

    /// Adds `len` bytes, and returns them for the caller to fill.
    pub(super) fn piece(&mut self, len: usize) -> &mut [u8] {
        let start = self.filled;
        self.filled += len;
        &mut self.buffer[start..self.filled]
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.filled..][..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }
}
