//! A load for memcached, in its text protocol on a Unix socket.
//!
//! Only the last command has a reply; the others are `noreply`. So the server is measured, and not the round trips. The server's statistics show
//! that it has executed all commands.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of keys. A fifth of the deletions miss, and most insertions replace an item.
const KEY_COUNT: u32 = 100_000;

/// The approximate number of bytes in one send.
const PIECE_BYTES: usize = 256 << 10;

/// The size of the longest value.
const MAX_VALUE_BYTES: usize = 4096;

/// The time limit for the server to read and to reply.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A command: an insertion of a value of this size, or a deletion.
#[derive(Clone, Copy, Debug)]
struct Operation {
    key: u32,
    value_bytes: Option<u16>,
}

/// A sequence of commands.
#[derive(Debug)]
pub(crate) struct Load {
    operations: Vec<Operation>,
    value: Vec<u8>,
}

impl Load {
    /// `count` operations on random keys of 10 bytes. Four of five, at random, insert values of uniformly distributed `sizes`; the others delete.
    pub(crate) fn new(count: usize, sizes: RangeInclusive<u16>) -> Self {
        assert!(usize::from(*sizes.end()) <= MAX_VALUE_BYTES);
        let mut random = fastrand::Rng::with_seed(0x6D65_6D63_6163_6865);
        let operations = (0..count).map(|_| {
            let (key, value_bytes) = (random.u32(..KEY_COUNT), random.u16(sizes.clone()));
            Operation { key, value_bytes: (random.u8(..5) > 0).then_some(value_bytes) }
        });
        Self { operations: operations.collect(), value: vec![b'v'; MAX_VALUE_BYTES] }
    }

    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// Sends all commands, waits until the server has executed them, and returns the elapsed time.
    ///
    /// # Errors
    /// If the server reports an error, its statistics differ from the commands, or it has evicted items.
    pub(crate) fn run(&self, socket: &Path) -> Result<Duration> {
        let mut connection = Connection::new(socket)?;
        let begin = Instant::now();
        let mut piece = Vec::with_capacity(2 * PIECE_BYTES);
        for operation in &self.operations {
            self.write_command(*operation, &mut piece);
            if piece.len() >= PIECE_BYTES {
                connection.send(&piece)?;
                piece.clear();
            }
        }
        // The only command with a reply; an error message about another one would precede it.
        piece.extend_from_slice(b"mn\r\n");
        connection.send(&piece)?;
        let answer = connection.line()?;
        let elapsed = begin.elapsed();
        if answer != "MN" {
            bail!("memcached replied {answer:?} instead of MN");
        }
        self.check(&connection.statistics()?)?;
        Ok(elapsed)
    }

    fn write_command(&self, Operation { key, value_bytes }: Operation, out: &mut Vec<u8>) {
        let written = match value_bytes {
            Some(bytes) => write!(out, "set k{key:09} 0 0 {bytes} noreply\r\n"),
            None => write!(out, "delete k{key:09} noreply\r\n"),
        };
        written.expect("writing to a vector does not fail");
        if let Some(bytes) = value_bytes {
            out.extend_from_slice(&self.value[..usize::from(bytes)]);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn check(&self, statistics: &HashMap<String, u64>) -> Result<()> {
        let of = |name: &str| statistics.get(name).copied().unwrap_or(0);
        let sets = self.operations.iter().filter(|operation| operation.value_bytes.is_some()).count() as u64;
        let deletes = self.len() as u64 - sets;
        if of("cmd_set") != sets || of("delete_hits") + of("delete_misses") != deletes || of("evictions") != 0
        {
            bail!(
                "memcached got {sets} insertions and {deletes} deletions, and its statistics are {statistics:?}"
            );
        }
        Ok(())
    }
}

/// A connection to memcached.
struct Connection {
    socket: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Connection {
    fn new(path: &Path) -> Result<Self> {
        let socket =
            UnixStream::connect(path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        socket.set_read_timeout(Some(TIMEOUT)).into_diagnostic()?;
        socket.set_write_timeout(Some(TIMEOUT)).into_diagnostic()?;
        Ok(Self { answers: BufReader::new(socket.try_clone().into_diagnostic()?), socket })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.socket.write_all(bytes).into_diagnostic().wrap_err("sending to memcached")
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).into_diagnostic().wrap_err("waiting for memcached")?;
        Ok(line.trim_end().to_owned())
    }

    /// The server's statistics that are integers.
    fn statistics(&mut self) -> Result<HashMap<String, u64>> {
        self.send(b"stats\r\n")?;
        let mut statistics = HashMap::new();
        loop {
            let line = self.line()?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["END"] => return Ok(statistics),
                ["STAT", name, value] => {
                    if let Ok(value) = value.parse() {
                        statistics.insert(name.to_owned(), value);
                    }
                }
                ["STAT", ..] => {}
                _ => bail!("memcached's statistics are {line:?}"),
            }
        }
    }
}
