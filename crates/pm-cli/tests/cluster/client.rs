//! A Redis client.

use super::nodes::PATIENCE;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) fn ok() -> Self {
        Self::Simple("OK".to_owned())
    }

    pub(crate) fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(Some(bytes.to_vec()))
    }
}

/// A Redis client.
pub(crate) struct Client {
    pub(crate) writer: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(port: u16) -> io::Result<Self> {
        let writer = TcpStream::connect(("127.0.0.1", port))?;
        writer.set_nodelay(true)?;
        writer.set_read_timeout(Some(PATIENCE))?;
        let reader = BufReader::new(writer.try_clone()?);
        Ok(Self { writer, reader })
    }

    pub(crate) fn send(&mut self, requests: &[Vec<&[u8]>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for strings in requests {
            bytes.extend(format!("*{}\r\n", strings.len()).into_bytes());
            for string in strings {
                bytes.extend(format!("${}\r\n", string.len()).into_bytes());
                bytes.extend_from_slice(string);
                bytes.extend(b"\r\n");
            }
        }
        self.writer.write_all(&bytes)
    }

    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = line.trim_end().get(1..).unwrap_or_default().to_owned();
        Ok(match line.as_bytes()[0] {
            b'+' => Reply::Simple(text),
            b'-' => Reply::Error(text),
            b':' => Reply::Integer(text.parse().unwrap()),
            b'$' if text == "-1" => Reply::Bulk(None),
            b'$' => {
                let mut bytes = vec![0; text.parse::<usize>().unwrap() + 2];
                self.reader.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(Some(bytes))
            }
            b'*' => {
                let count = text.parse().unwrap();
                Reply::Array((0..count).map(|_| self.receive()).collect::<Result<_, _>>()?)
            }
            _ => panic!("{line:?} is no reply"),
        })
    }

    pub(crate) fn call(&mut self, request: &[&str]) -> io::Result<Reply> {
        self.send(&[request.iter().map(|string| string.as_bytes()).collect()])?;
        self.receive()
    }
}
