//! The host's end of the connection to the agent.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};

use super::frame::Frame;

/// The time at which waiting ends; `None`: waiting is not limited.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout` from now.
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.map(|timeout| Instant::now() + timeout))
    }

    /// The time left, as a socket's timeout: `None` means unlimited, and zero is not allowed.
    fn left(self) -> Result<Option<Duration>, TimedOut> {
        match self.0.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => Err(TimedOut),
            left => Ok(left),
        }
    }
}

/// The deadline has passed. Callers recognise this error by its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[error("the guest did not answer in time")]
pub struct TimedOut;

/// The connection to the agent.
#[derive(Debug)]
pub(super) struct Link {
    stream: UnixStream,
}

impl Link {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Waits until the agent is ready.
    pub(super) fn wait_ready(&mut self, deadline: Deadline) -> Result<()> {
        match self.receive(deadline)? {
            Frame::Ready => Ok(()),
            frame => Err(miette!("the first frame of the agent is {frame:?}")),
        }
    }

    /// Runs `script`, copies its output as it arrives, and returns its exit code.
    pub(super) fn run(
        &mut self,
        script: &str,
        stdout: &mut dyn Write,
        stderr: &mut dyn Write,
        deadline: Deadline,
    ) -> Result<u8> {
        let run = Frame::Run(script.as_bytes().to_vec());
        run.write(&mut self.stream).into_diagnostic().wrap_err("cannot send a command to the guest")?;
        loop {
            let (sink, bytes): (&mut dyn Write, _) = match self.receive(deadline)? {
                Frame::Stdout(bytes) => (&mut *stdout, bytes),
                Frame::Stderr(bytes) => (&mut *stderr, bytes),
                Frame::Exit(code) => return Ok(code),
                frame => bail!("unexpected frame from the guest: {frame:?}"),
            };
            sink.write_all(&bytes)
                .and_then(|()| sink.flush())
                .into_diagnostic()
                .wrap_err("cannot pass on the guest's output")?;
        }
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Frame> {
        self.stream.set_read_timeout(deadline.left()?).into_diagnostic()?;
        match Frame::read(&mut self.stream) {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => Err(miette!("the guest has closed the connection")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(TimedOut.into()),
            Err(error) => Err(error).into_diagnostic().wrap_err("cannot read from the guest"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(frames: &[Frame], script: &str) -> (Result<u8>, Vec<u8>, Vec<u8>) {
        let (host, mut guest) = UnixStream::pair().expect("a pair");
        for frame in frames {
            frame.write(&mut guest).expect("fits the socket");
        }
        guest.shutdown(std::net::Shutdown::Write).expect("open until now");
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let code = Link::new(host).run(script, &mut stdout, &mut stderr, Deadline::default());
        assert_eq!(Frame::read(&mut guest).expect("the command"), Some(Frame::Run(script.into())));
        (code, stdout, stderr)
    }

    #[test]
    fn output_and_exit_code_are_told_apart() {
        let frames = [
            Frame::Stdout(b"a".into()),
            Frame::Stderr(b"oops".into()),
            Frame::Stdout(b"b".into()),
            Frame::Exit(7),
        ];
        let (code, stdout, stderr) = answer(&frames, "something");
        assert_eq!(code.expect("an exit code"), 7);
        assert_eq!((stdout.as_slice(), stderr.as_slice()), (&b"ab"[..], &b"oops"[..]));
    }

    #[test]
    fn closed_link_is_an_error() {
        let (code, stdout, _) = answer(&[Frame::Stdout(b"a".into())], "poweroff");
        assert!(code.expect_err("no exit code came").to_string().contains("closed"));
        assert_eq!(stdout, b"a");
    }

    #[test]
    fn waiting_ends_at_deadline() {
        let (host, _guest) = UnixStream::pair().expect("a pair");
        let error =
            Link::new(host).wait_ready(Deadline::after(Some(Duration::from_millis(5)))).expect_err("silence");
        assert!(error.downcast_ref::<TimedOut>().is_some(), "{error:?}");
    }
}
