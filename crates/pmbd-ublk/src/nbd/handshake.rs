//! The fixed newstyle handshake: greeting, options, and at its end an agreement.
//!
//! Everything a client can make grow is bounded here: an option's data by [`MAX_OPTION_BYTES`], what is skipped of a
//! longer one by [`MAX_SKIPPED_BYTES`], and the whole by the caller's timeout. The client sends one option at a time
//! and waits for its reply, so that a slow reader stops itself.

use super::export::Export;
use super::protocol::{
    self, EXPORT_NAME_PADDING_BYTES, MAX_PAYLOAD_BYTES, MAX_STRING_BYTES, MIN_BLOCK_BYTES,
    PREFERRED_BLOCK_BYTES, info, option, option_reply,
};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest data of an option that is looked at: a name, and room for a few requests or queries.
const MAX_OPTION_BYTES: usize = 2 * MAX_STRING_BYTES;
/// Data longer than this are no mistake any more.
const MAX_SKIPPED_BYTES: u32 = 1 << 20;

/// What both sides agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// Replies are structured.
    pub(super) structured: bool,
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    #[error("{0:#x} is not the magic number of an option")]
    OptionMagic(u64),
    #[error("option {0} from a client that does not speak the fixed newstyle")]
    NotFixed(u32),
    #[error("option {option} with {len_bytes} bytes of data")]
    TooLong { option: u32, len_bytes: u32 },
    #[error("the client asked for an export that is not there")]
    UnknownExport,
}

/// Greets a client and answers its options. Nothing, when it took its leave.
pub(super) async fn shake_hands<S>(
    stream: &mut S,
    export: &Export,
) -> Result<Option<Agreement>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut greeting = Vec::with_capacity(18);
    greeting.extend_from_slice(&protocol::INIT_MAGIC.to_be_bytes());
    greeting.extend_from_slice(&protocol::OPTION_MAGIC.to_be_bytes());
    let flags = protocol::FLAG_FIXED_NEWSTYLE | protocol::FLAG_NO_ZEROES;
    greeting.extend_from_slice(&flags.to_be_bytes());
    stream.write_all(&greeting).await?;

    let client_flags = stream.read_u32().await?;
    if client_flags & !(protocol::CLIENT_FIXED_NEWSTYLE | protocol::CLIENT_NO_ZEROES) != 0 {
        return Err(HandshakeError::ClientFlags(client_flags));
    }
    let mut haggle = Haggle {
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
            haggle.reply(option, option_reply::ERR_TOO_BIG, b"too long");
            Next::Option
        } else {
            data.resize(len_bytes as usize, 0);
            stream.read_exact(&mut data).await?;
            haggle.answer(option, &data)?
        };
        stream.write_all(&haggle.replies).await?;
        haggle.replies.clear();
        match next {
            Next::Option => {}
            Next::Transmission => return Ok(Some(Agreement { structured: haggle.structured })),
            Next::Leave => return Ok(None),
        }
    }
}

/// An option's number, and the length of its data.
async fn read_option_head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(u32, u32), HandshakeError> {
    let magic = stream.read_u64().await?;
    if magic != protocol::OPTION_MAGIC {
        return Err(HandshakeError::OptionMagic(magic));
    }
    Ok((stream.read_u32().await?, stream.read_u32().await?))
}

/// Reads past data that are too long to be looked at, if they can be answered at all.
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

/// What follows an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Option,
    Transmission,
    Leave,
}

/// The option phase of one client: what has been agreed so far, and replies not yet sent.
struct Haggle<'a> {
    export: &'a Export,
    fixed: bool,
    padded: bool,
    structured: bool,
    replies: Vec<u8>,
}

impl Haggle<'_> {
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
                return Ok(Next::Leave);
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
        self.replies.extend_from_slice(&self.export.size_bytes.to_be_bytes());
        self.replies.extend_from_slice(&self.export.flags(self.structured).to_be_bytes());
        if self.padded {
            self.replies.extend_from_slice(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        Ok(Next::Transmission)
    }

    fn list(&mut self) {
        let (name, description) = (self.export.name.as_bytes(), self.export.description.as_bytes());
        let entry = [&length_of(name)[..], name, description].concat();
        self.reply(option::LIST, option_reply::SERVER, &entry);
        self.ack(option::LIST);
    }

    /// `INFO` and `GO`. Whether the client asked for an export that is there, in words that make sense.
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

    /// Block status has nothing to tell about memory that is all there, so every selection is empty.
    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let mut rest = Data(data);
        let name = rest.text();
        let sane = name.is_some() && rest.queries().is_some() && self.structured;
        if !sane {
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
        self.replies.extend_from_slice(&protocol::OPTION_REPLY_MAGIC.to_be_bytes());
        self.replies.extend_from_slice(&option.to_be_bytes());
        self.replies.extend_from_slice(&kind.to_be_bytes());
        self.replies.extend_from_slice(&length_of(data));
        self.replies.extend_from_slice(data);
    }
}

/// The length of a text of ours, as it stands before the text. Ours are a few times [`MAX_STRING_BYTES`] at most.
fn length_of(text: &[u8]) -> [u8; 4] {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "names and descriptions are checked when a server is made"
    )]
    let len = text.len() as u32;
    len.to_be_bytes()
}

/// An option's data, read front to back. Every method is nothing when the data end too early.
struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    fn number(&mut self) -> Option<usize> {
        let (number, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        usize::try_from(u32::from_be_bytes(*number)).ok()
    }

    /// A text, behind its length.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text)
    }

    /// The kinds of information that `INFO` or `GO` asks for, up to the data's end.
    fn info_requests(&mut self) -> Option<&'a [u8]> {
        let (count, rest) = self.0.split_first_chunk::<2>()?;
        (rest.len() == 2 * usize::from(u16::from_be_bytes(*count))).then_some(rest)
    }

    /// The queries of a meta context option, up to the data's end.
    fn queries(&mut self) -> Option<()> {
        for _ in 0..self.number()? {
            self.text()?;
        }
        self.0.is_empty().then_some(())
    }
}
