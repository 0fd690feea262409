//! The transmission phase of one connection, on a thread of its own: receive, run, reply, until the client disconnects.

use super::input::{Input, Next};
use super::order::Member;
use super::output::Output;
use super::protocol::{MAX_PAYLOAD_BYTES, Request, command, command_flag, errno};
use super::stats::{NbdStats, Tally};
use crate::engine::{BlockError, BlockOp, Engine};
use pm_core::Pmem;
use std::io;
use std::time::Duration;

/// Why a connection ended, other than by a disconnect.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The socket broke, or the server cut it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Bytes that are not a request, so that the start of the next request is unknown.
    #[error("the client sent bytes that are not a request")]
    Garbage,
    /// The reply's head announced data that cannot be read. With simple replies, closing the connection is the only way to report it.
    #[error("a read failed after its reply had begun: {0}")]
    Torn(BlockError),
}

/// Whether the connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    End,
}

/// One connection's state.
#[derive(Debug)]
pub(super) struct Connection<'a, P: Pmem> {
    engine: &'a Engine<P>,
    input: Input,
    output: Output,
    structured: bool,
    /// This connection in the order of the server's connections.
    member: &'a mut Member,
    stats: &'a NbdStats,
    tally: Tally,
}

impl<'a, P: Pmem> Connection<'a, P> {
    pub(super) fn new(
        engine: &'a Engine<P>,
        member: &'a mut Member,
        structured: bool,
        spin: Duration,
        stats: &'a NbdStats,
    ) -> Self {
        member.begin_transmission();
        Self {
            engine,
            input: Input::new(spin),
            output: Output::new(structured),
            structured,
            member,
            stats,
            tally: Tally::default(),
        }
    }

    /// Serves the client to the end of the connection. A server that shuts down closes the socket for receiving: requests received by then
    /// are still answered.
    pub(super) fn serve(mut self) -> Result<(), Broken> {
        loop {
            let flow = match self.input.next() {
                Next::Nothing => self.receive()?,
                Next::Whole(request) => self.run(request)?,
                Next::Long(request) => self.stream_write(request)?,
                // Earlier requests are answered.
                Next::Garbage => return self.send_replies().and(Err(Broken::Garbage)),
            };
            if flow == Flow::End {
                return self.send_replies();
            }
        }
    }

    /// Sends the pending replies, and adds to the counters.
    fn send_replies(&mut self) -> Result<(), Broken> {
        self.stats.add(&mut self.tally);
        Ok(self.output.send(self.member)?)
    }

    /// No whole request is left: sends the replies, then waits for more.
    fn receive(&mut self) -> Result<Flow, Broken> {
        self.send_replies()?;
        // A received request may be the second copy of one that a closed connection has not run yet, or a first copy itself.
        let continues = self.input.receive(self.member.socket())? && self.member.admit()?;
        Ok(if continues { Flow::On } else { Flow::End })
    }

    /// Runs a request with its whole payload.
    #[inline]
    fn run(&mut self, request: Request) -> Result<Flow, Broken> {
        if self.output.is_nearly_full() {
            self.send_replies()?;
        }
        if request.command == command::DISC {
            return Ok(Flow::End);
        }
        self.tally.requests += 1;
        let fua = request.has(command_flag::FUA);
        let (offset, len_bytes) = (request.offset_bytes, u64::from(request.len_bytes));
        let legal = self.check_form(&request);
        if request.command == command::READ {
            return match legal {
                Ok(()) => self.read(&request),
                Err(refusal) => Ok(self.refuse(&request, &refusal)),
            };
        }
        let result = match request.command {
            command::WRITE => {
                let data = self.input.take(request.len_bytes as usize);
                legal.and_then(|()| {
                    self.tally.written_bytes += len_bytes;
                    Ok(self.engine.execute_bytes(offset, BlockOp::Write { data, fua })?)
                })
            }
            _ => legal.and_then(|()| {
                let op = match request.command {
                    command::FLUSH => BlockOp::Flush,
                    command::TRIM if !fua => BlockOp::Discard { len_bytes },
                    // A trim with FUA zeroes durably.
                    _ => BlockOp::WriteZeroes { len_bytes, fua },
                };
                Ok(self.engine.execute_bytes(offset, op)?)
            }),
        };
        self.answer(&request, result);
        Ok(Flow::On)
    }

    /// Checks a request against the protocol.
    #[inline]
    fn check_form(&self, request: &Request) -> Result<(), Refusal> {
        let allowed = command_flag::FUA
            | match request.command {
                command::READ if self.structured => command_flag::DF,
                command::READ | command::WRITE | command::FLUSH | command::TRIM => 0,
                command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
                unknown => return Err(Refusal::Command(unknown)),
            };
        if request.flags & !allowed != 0 {
            return Err(Refusal::Flags(request.flags & !allowed));
        }
        match request.command {
            command::READ | command::WRITE if request.len_bytes > MAX_PAYLOAD_BYTES => {
                Err(Refusal::TooLong(request.len_bytes))
            }
            command::FLUSH if request.offset_bytes != 0 || request.len_bytes != 0 => {
                Err(Refusal::FlushOfRange)
            }
            _ => Ok(()),
        }
    }

    /// Answers a read of legal form: in the buffer if it fits, and through it if it does not.
    #[inline]
    fn read(&mut self, request: &Request) -> Result<Flow, Broken> {
        let Request { cookie, offset_bytes, len_bytes, .. } = *request;
        let len = len_bytes as usize;
        if len == 0 {
            match self.engine.check_read(offset_bytes, 0) {
                Ok(()) => self.output.read_nothing(cookie),
                Err(error) => return Ok(self.refuse(request, &error.into())),
            }
            return Ok(Flow::On);
        }
        if !self.output.has_room_for_data(len) {
            self.send_replies()?;
            if !self.output.has_room_for_data(len) {
                return self.stream_read(request);
            }
        }
        let out = self.output.data_buffer(len);
        if let Err(error) = self.engine.execute_bytes(offset_bytes, BlockOp::Read { out }) {
            return Ok(self.refuse(request, &error.into()));
        }
        self.output.data(cookie, offset_bytes, len_bytes);
        self.tally.read_bytes += u64::from(len_bytes);
        Ok(Flow::On)
    }

    /// Answers a read that is longer than the buffer, in one chunk of data that is loaded and sent piece by piece.
    #[cold]
    fn stream_read(&mut self, request: &Request) -> Result<Flow, Broken> {
        let Request { cookie, offset_bytes, len_bytes, .. } = *request;
        if let Err(error) = self.engine.check_read(offset_bytes, len_bytes.into()) {
            return Ok(self.refuse(request, &error.into()));
        }
        let max_piece = self.output.max_piece(self.sector());
        self.output.streamed_head(cookie, offset_bytes, len_bytes);
        let (mut at, mut left) = (offset_bytes, len_bytes as usize);
        let mut result = Ok(());
        while left > 0 {
            let len = left.min(max_piece);
            let out = self.output.piece(len);
            if result.is_ok() {
                result = self.engine.execute_bytes(at, BlockOp::Read { out: &mut *out });
            }
            match &result {
                Ok(()) => {}
                // The head has announced the data: zeros replace them, and the error that follows invalidates them.
                Err(_) if self.structured => out.fill(0),
                Err(error) => return Err(Broken::Torn(error.clone())),
            }
            self.output.send(self.member)?;
            at += len as u64;
            left -= len;
        }
        match result {
            Ok(()) if self.structured => self.output.read_nothing(cookie),
            Ok(()) => {}
            Err(error) => return Ok(self.refuse(request, &error.into())),
        }
        self.tally.read_bytes += u64::from(len_bytes);
        Ok(Flow::On)
    }

    /// Runs a write that is longer than the buffer, piece by piece as it arrives. It is first accepted or refused as a whole; a refused one
    /// is received too, as the next request follows it.
    #[cold]
    fn stream_write(&mut self, request: Request) -> Result<Flow, Broken> {
        self.tally.requests += 1;
        let fua = request.has(command_flag::FUA);
        let (mut at, mut left) = (request.offset_bytes, request.len_bytes as usize);
        let granule = self.sector();
        let mut result = self
            .check_form(&request)
            .and_then(|()| Ok(self.engine.check_write(at, request.len_bytes.into())?));
        while left > 0 {
            let data = self.input.take_some(left, granule);
            if data.is_empty() {
                if self.receive()? == Flow::End {
                    return Ok(Flow::End);
                }
                continue;
            }
            left -= data.len();
            if result.is_ok() {
                // The last piece's fence covers the pieces before it.
                let op = BlockOp::Write { data, fua: fua && left == 0 };
                result = self.engine.execute_bytes(at, op).map_err(Refusal::from);
                self.tally.written_bytes += data.len() as u64;
                // Only here: a refused write may start at any offset, where this could overflow.
                at += data.len() as u64;
            }
        }
        if self.output.is_nearly_full() {
            self.send_replies()?;
        }
        self.answer(&request, result);
        Ok(Flow::On)
    }

    /// The sector, in whole numbers of which long requests are cut.
    #[expect(clippy::cast_possible_truncation, reason = "a sector has 512 or 4096 bytes")]
    fn sector(&self) -> usize {
        self.engine.geometry().sector().bytes() as usize
    }

    #[inline]
    fn answer(&mut self, request: &Request, result: Result<(), Refusal>) {
        match result {
            Ok(()) => self.output.done(request.cookie),
            Err(refusal) => {
                self.refuse(request, &refusal);
            }
        }
    }

    #[cold]
    fn refuse(&mut self, request: &Request, refusal: &Refusal) -> Flow {
        self.tally.errors += 1;
        self.output.error(request.cookie, refusal.errno(request.command), refusal);
        Flow::On
    }
}

/// Why a request is answered with an error.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("unknown command {0}")]
    Command(u16),
    #[error("flags {0:#x} do not belong to this command")]
    Flags(u16),
    #[error("{0} bytes are more than the {MAX_PAYLOAD_BYTES} of the largest request")]
    TooLong(u32),
    #[error("a flush has no range")]
    FlushOfRange,
    #[error(transparent)]
    Device(#[from] BlockError),
}

impl Refusal {
    /// The protocol's number for it. Writes past the end have one of their own.
    fn errno(&self, command: u16) -> u32 {
        let adds_data = matches!(command, command::WRITE | command::WRITE_ZEROES);
        match self {
            Self::Device(BlockError::OutOfRange { .. }) if adds_data => errno::ENOSPC,
            Self::Device(BlockError::ReadOnly) => errno::EPERM,
            Self::Device(
                BlockError::Medium(_)
                | BlockError::Fault { .. }
                | BlockError::Mismatch { .. }
                | BlockError::Discarded,
            ) => errno::EIO,
            _ => errno::EINVAL,
        }
    }
}
