//! The fixed newstyle handshake: greeting, options, and at its end an agreement.
//!
//! Everything that a client controls is bounded: an option's data by [`MAX_OPTION_BYTES`], the skipped part of a longer one by
//! [`MAX_SKIPPED_BYTES`], and the whole by the caller's timeout. The client sends one option at a time and waits for its reply, so a client
//! that reads slowly delays only itself.

use super::options::Export;
use super::protocol::{
    self, EXPORT_NAME_PADDING_BYTES, MAX_PAYLOAD_BYTES, MAX_STRING_BYTES, MIN_BLOCK_BYTES,
    PREFERRED_BLOCK_BYTES, info, option, option_reply,
};
use bytes::{Buf, BufMut};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest data of an option that are decoded: a name, and room for a few requests or queries.
const MAX_OPTION_BYTES: usize = 2 * MAX_STRING_BYTES;
/// Longer data end the connection.
const MAX_SKIPPED_BYTES: u32 = 1 << 20;

/// The result of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// Replies are structured.
    pub(super) structured: bool,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    #[error("{0:#x} is not the magic number of an option")]
    OptionMagic(u64),
    #[error("option {0} from a client that does not support the fixed newstyle")]
    NotFixed(u32),
    #[error("option {option} with {len_bytes} bytes of data")]
    TooLong { option: u32, len_bytes: u32 },
    #[error("the client asked for an export that does not exist")]
    UnknownExport,
}

/// Greets a client and answers its options. `None` if it aborted.
pub(super) async fn shake_hands<S>(
    stream: &mut S,
    export: &Export,
) -> Result<Option<Agreement>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut greeting = Vec::with_capacity(18);
    greeting.put_u64(protocol::INIT_MAGIC);
    greeting.put_u64(protocol::OPTION_MAGIC);
    greeting.put_u16(protocol::FLAG_FIXED_NEWSTYLE | protocol::FLAG_NO_ZEROES);
    stream.write_all(&greeting).await?;

    let client_flags = stream.read_u32().await?;
    if client_flags & !(protocol::CLIENT_FIXED_NEWSTYLE | protocol::CLIENT_NO_ZEROES) != 0 {
        return Err(HandshakeError::ClientFlags(client_flags));
    }
    let mut options = OptionPhase {
        export,
        fixed: client_flags & protocol::CLIENT_FIXED_NEWSTYLE != 0,
        padded: client_flags & protocol::CLIENT_NO_ZEROES == 0,
        structured: false,
        replies: Vec::new(),
    };
    let mut data = Vec::new();
    loop {
        let (option, len_bytes) = read_option_head(stream).await?;
        let next = if len_bytes as usize > MAX_OPTION_BYTES {
            skip(stream, option, len_bytes).await?;
            options.reply(option, option_reply::ERR_TOO_BIG, b"too long");
            Next::Option
        } else {
            data.resize(len_bytes as usize, 0);
            stream.read_exact(&mut data).await?;
            options.answer(option, &data)?
        };
        stream.write_all(&options.replies).await?;
        options.replies.clear();
        match next {
            Next::Option => {}
            Next::Transmission => return Ok(Some(Agreement { structured: options.structured })),
            Next::Abort => return Ok(None),
        }
    }
}

/// Reads an option's number, and the length of its data.
async fn read_option_head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(u32, u32), HandshakeError> {
    let magic = stream.read_u64().await?;
    if magic != protocol::OPTION_MAGIC {
        return Err(HandshakeError::OptionMagic(magic));
    }
    Ok((stream.read_u32().await?, stream.read_u32().await?))
}

/// Skips data that are too long to be decoded, if they can be answered at all.
async fn skip<S>(stream: &mut S, option: u32, len_bytes: u32) -> Result<(), HandshakeError>
where
    S: AsyncRead + Unpin,
{
    if len_bytes > MAX_SKIPPED_BYTES || option == option::EXPORT_NAME {
        return Err(HandshakeError::TooLong { option, len_bytes });
    }
    let skipped = tokio::io::copy(&mut stream.take(len_bytes.into()), &mut tokio::io::sink()).await?;
    if skipped < len_bytes.into() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(())
}

/// The step after an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Option,
    Transmission,
    Abort,
}

/// The option phase of one client: the agreements so far, and the pending replies.
struct OptionPhase<'a> {
    export: &'a Export,
    fixed: bool,
    padded: bool,
    structured: bool,
    replies: Vec<u8>,
}

impl OptionPhase<'_> {
    /// Answers one option.
    fn answer(&mut self, option: u32, data: &[u8]) -> Result<Next, HandshakeError> {
        if option == option::EXPORT_NAME {
            return self.export_name(data);
        }
        if !self.fixed {
            return Err(HandshakeError::NotFixed(option));
        }
        match option {
            option::ABORT => {
                self.ack(option);
                return Ok(Next::Abort);
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                self.reply(option, option_reply::ERR_INVALID, b"this option has no data");
            }
            option::LIST => self.list(),
            option::STRUCTURED_REPLY => {
                self.structured = true;
                self.ack(option);
            }
            option::INFO => {
                self.describe(option, data);
            }
            option::GO => {
                if self.describe(option, data) {
                    return Ok(Next::Transmission);
                }
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data),
            _ => self.reply(option, option_reply::ERR_UNSUP, b"unknown option"),
        }
        Ok(Next::Option)
    }

    /// `EXPORT_NAME`: its reply has no head, and no form for an error.
    fn export_name(&mut self, name: &[u8]) -> Result<Next, HandshakeError> {
        if !self.export.answers_to(name) {
            return Err(HandshakeError::UnknownExport);
        }
        self.replies.put_u64(self.export.size_bytes);
        self.replies.put_u16(self.export.flags(self.structured));
        if self.padded {
            self.replies.put_bytes(0, EXPORT_NAME_PADDING_BYTES);
        }
        Ok(Next::Transmission)
    }

    fn list(&mut self) {
        let (name, description) = (self.export.name.as_bytes(), self.export.description.as_bytes());
        let entry = [&length_of(name)[..], name, description].concat();
        self.reply(option::LIST, option_reply::SERVER, &entry);
        self.ack(option::LIST);
    }

    /// `INFO` and `GO`. Whether the request is well formed and the export exists.
    fn describe(&mut self, option: u32, data: &[u8]) -> bool {
        let mut rest = Data(data);
        let Some((name, wanted)) = rest.text().zip(rest.info_requests()) else {
            self.reply(option, option_reply::ERR_INVALID, b"the lengths do not add up");
            return false;
        };
        if !self.export.answers_to(name) {
            self.reply(option, option_reply::ERR_UNKNOWN, b"no such export");
            return false;
        }
        let export = self.export;
        let flags = export.flags(self.structured);
        self.info(option, info::EXPORT, &[&export.size_bytes.to_be_bytes(), &flags.to_be_bytes()]);
        let wants = |kind: u16| wanted.chunks_exact(2).any(|w| w == kind.to_be_bytes());
        if wants(info::NAME) {
            self.info(option, info::NAME, &[export.name.as_bytes()]);
        }
        if wants(info::DESCRIPTION) && !export.description.is_empty() {
            self.info(option, info::DESCRIPTION, &[export.description.as_bytes()]);
        }
        if wants(info::BLOCK_SIZE) {
            let sizes = [MIN_BLOCK_BYTES, PREFERRED_BLOCK_BYTES, MAX_PAYLOAD_BYTES];
            let [least, preferred, most] = sizes.map(u32::to_be_bytes);
            self.info(option, info::BLOCK_SIZE, &[&least, &preferred, &most]);
        }
        self.ack(option);
        true
    }

    /// There is no block status to report, as memory has no holes, so every selection is empty.
    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let mut rest = Data(data);
        let name = rest.text();
        let is_valid = name.is_some() && rest.queries().is_some() && self.structured;
        if !is_valid {
            let why = b"the lengths do not add up, or replies are not structured";
            self.reply(option, option_reply::ERR_INVALID, why);
        } else if name.is_some_and(|name| self.export.answers_to(name)) {
            self.ack(option);
        } else {
            self.reply(option, option_reply::ERR_UNKNOWN, b"no such export");
        }
    }

    fn info(&mut self, option: u32, kind: u16, parts: &[&[u8]]) {
        let data = [&kind.to_be_bytes()[..], &parts.concat()].concat();
        self.reply(option, option_reply::INFO, &data);
    }

    fn ack(&mut self, option: u32) {
        self.reply(option, option_reply::ACK, b"");
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.replies.put_u64(protocol::OPTION_REPLY_MAGIC);
        self.replies.put_u32(option);
        self.replies.put_u32(kind);
        self.replies.put_slice(&length_of(data));
        self.replies.put_slice(data);
    }
}

/// The length that precedes a text. Texts have a few times [`MAX_STRING_BYTES`] at most.
fn length_of(text: &[u8]) -> [u8; 4] {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "names and descriptions are checked when a server is made"
    )]
    let len = text.len() as u32;
    len.to_be_bytes()
}

/// An option's data, decoded from front to back. Every method returns `None` when the data end too early.
struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    fn number(&mut self) -> Option<usize> {
        usize::try_from(self.0.try_get_u32().ok()?).ok()
    }

    /// A text, after its length.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text)
    }

    /// The kinds of information that `INFO` or `GO` requests, up to the data's end.
    fn info_requests(&mut self) -> Option<&'a [u8]> {
        let count = usize::from(self.0.try_get_u16().ok()?);
        (self.0.len() == 2 * count).then_some(self.0)
    }

    /// The queries of a meta context option, up to the data's end.
    fn queries(&mut self) -> Option<()> {
        for _ in 0..self.number()? {
            self.text()?;
        }
        self.0.is_empty().then_some(())
    }
}
