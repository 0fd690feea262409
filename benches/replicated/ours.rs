//! `pm store serve`, and a Redis client.

use crate::load::Client;
use miette::{IntoDiagnostic as _, Result, bail, miette};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use xtask::process;

/// The length of each file.
const FILE_SIZE: &str = "1G";

/// The commands of the nodes of a new cluster.
pub(crate) fn commands(pm: &Path, directory: &Path, addresses: &[SocketAddr]) -> Result<Vec<Command>> {
    let ids = || addresses.iter().zip(1..);
    let cluster: Vec<String> = ids().map(|(address, id)| format!("{id}={address}")).collect();
    let command = |id: u32| {
        let file = directory.join(format!("{id}.pm"));
        process::output(Command::new(pm).args(["store", "create", "--size", FILE_SIZE]).arg(&file))?;
        let mut command = Command::new(pm);
        command.args(["store", "serve"]).arg(&file);
        command.args(["--id", &id.to_string(), "--cluster", &cluster.join(",")]);
        Ok(command)
    };
    ids().map(|(_, id)| command(id)).collect()
}

/// A Redis client.
pub(crate) struct OurClient {
    stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl OurClient {
    /// Sends a request, and returns its reply: a text, or a string with its length before it.
    async fn call(&mut self, strings: &[&[u8]]) -> Result<Reply<'_>> {
        self.request.clear();
        self.request.extend_from_slice(format!("*{}\r\n", strings.len()).as_bytes());
        for string in strings {
            self.request.extend_from_slice(format!("${}\r\n", string.len()).as_bytes());
            self.request.extend_from_slice(string);
            self.request.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&self.request).await.into_diagnostic()?;
        self.reply.clear();
        loop {
            let count = self.stream.read_buf(&mut self.reply).await.into_diagnostic()?;
            if count == 0 {
                bail!("the node has closed the connection");
            }
            if let Some(length) = complete(&self.reply)? {
                return Reply::of(&self.reply[..length]);
            }
        }
    }
}

/// A reply.
enum Reply<'r> {
    /// `OK` and the like.
    Text(&'r str),
    Value(Option<&'r [u8]>),
}

/// The length of a reply, if it is complete.
fn complete(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(line) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let length = match &bytes[..line] {
        [b'$', b'-', ..] | [b'+' | b'-', ..] => line + 1,
        [b'$', digits @ .., b'\r'] => {
            let digits = str::from_utf8(digits).into_diagnostic()?;
            line + 1 + digits.parse::<usize>().into_diagnostic()? + 2
        }
        other => bail!("{:?} is no reply", String::from_utf8_lossy(other)),
    };
    Ok((bytes.len() >= length).then_some(length))
}

impl<'r> Reply<'r> {
    fn of(bytes: &'r [u8]) -> Result<Self> {
        let line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        match bytes {
            [b'+', text @ ..] => Ok(Self::Text(str::from_utf8(text).into_diagnostic()?.trim_end())),
            [b'$', b'-', ..] => Ok(Self::Value(None)),
            [b'$', ..] => Ok(Self::Value(Some(&bytes[line..bytes.len() - 2]))),
            _ => Err(miette!("the node answers: {}", String::from_utf8_lossy(bytes).trim_end())),
        }
    }
}

impl Client for OurClient {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.into_diagnostic()?;
        stream.set_nodelay(true).into_diagnostic()?;
        Ok(Self { stream, request: Vec::new(), reply: Vec::with_capacity(4096) })
    }

    async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.call(&[b"SET", key, value]).await? {
            Reply::Text("OK") => Ok(()),
            _ => bail!("another reply to SET than OK"),
        }
    }

    async fn read(&mut self, key: &[u8]) -> Result<Option<usize>> {
        match self.call(&[b"GET", key]).await? {
            Reply::Value(value) => Ok(value.map(<[u8]>::len)),
            Reply::Text(text) => bail!("the reply to GET is {text}"),
        }
    }

    async fn is_leader(&mut self) -> Result<bool> {
        match self.call(&[b"INFO"]).await? {
            Reply::Value(Some(text)) => {
                Ok(String::from_utf8_lossy(text).lines().any(|line| line == "role:master"))
            }
            _ => bail!("the reply to INFO has no text"),
        }
    }
}
