//! A connection to a node, as a Redis client: requests of a few strings, and their replies.

use miette::{Context as _, IntoDiagnostic as _, miette};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

/// The length of a reply's line, and of its string.
const LINE_BYTES: u64 = 1 << 16;
const STRING_BYTES: usize = 1 << 24;

/// A connection.
pub(super) struct Connection {
    address: String,
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects, and authenticates with the password, if there is one.
    pub(super) fn open(address: &str, password: Option<&[u8]>) -> miette::Result<Self> {
        let stream = TcpStream::connect(address).into_diagnostic().wrap_err_with(|| address.to_owned())?;
        let mut connection = Self { address: address.to_owned(), stream: BufReader::new(stream) };
        if let Some(password) = password {
            connection.call(&[b"AUTH", password])?;
        }
        Ok(connection)
    }

    /// Sends a request, and waits for its reply, a string. An error reply is an error.
    pub(super) fn call(&mut self, request: &[&[u8]]) -> miette::Result<Vec<u8>> {
        let mut bytes = format!("*{}\r\n", request.len()).into_bytes();
        for string in request {
            bytes.extend(format!("${}\r\n", string.len()).into_bytes());
            bytes.extend_from_slice(string);
            bytes.extend_from_slice(b"\r\n");
        }
        let failed = || self.address.clone();
        self.stream.get_mut().write_all(&bytes).into_diagnostic().wrap_err_with(failed)?;
        let mut line = Vec::new();
        let failed = || self.address.clone();
        let mut limited = (&mut self.stream).take(LINE_BYTES);
        limited.read_until(b'\n', &mut line).into_diagnostic().wrap_err_with(failed)?;
        let unknown = || miette!("{}: the reply is none of this protocol", self.address);
        let Some(line) = line.strip_suffix(b"\r\n") else {
            let ended = miette!("{}: the node has ended the connection", self.address);
            return Err(if line.is_empty() { ended } else { unknown() });
        };
        let text = String::from_utf8_lossy(line.get(1..).unwrap_or_default()).into_owned();
        match line.first() {
            Some(b'+') => Ok(text.into_bytes()),
            Some(b'-') => {
                let reason = text.strip_prefix("ERR ").unwrap_or(&text);
                Err(miette!("{}: {reason}", self.address))
            }
            Some(b'$') => {
                let length =
                    text.parse().ok().filter(|length| *length <= STRING_BYTES).ok_or_else(unknown)?;
                let mut string = vec![0; length + 2];
                let read = self.stream.read_exact(&mut string);
                read.into_diagnostic().wrap_err_with(|| self.address.clone())?;
                string.truncate(length);
                Ok(string)
            }
            _ => Err(unknown()),
        }
    }
}
