//! Reads what Valgrind's tool lackey prints with `--trace-mem=yes`, and counts the writes to each line of the heap.
//!
//! A traced program says first, on its standard output, which of its memory is not the heap: lines of a kind and two
//! hexadecimal addresses, `own START END` for its stack and what else is its own business, `static START END` for the
//! variables of its libraries. Whatever else it writes to is the heap. Then it stores to [`START_MARKER`], runs what is to be
//! measured, and stores to [`END_MARKER`]. `c/alloc_workload.c` does that.
//!
//! ```
//! use pm_bench::lackey::{self, Ranges};
//! let trace = " S 30000000,8\nI  00401000,3\n S 04a00000,16\n M 04a00010,8\n L 04a00040,8\n S 30000008,8\n";
//! let writes = lackey::import(trace.as_bytes(), || Ok(Ranges::default()))?;
//! assert_eq!(writes.heap.total(), 1); // two stores to one line, one after the other
//! # Ok::<(), pm_bench::lackey::LackeyError>(())
//! ```

use pm_core::{Coalescing, LineWrites};
use std::io::{self, BufRead};
use std::ops::Range;

/// The store of eight bytes after which all counts.
pub const START_MARKER: u64 = 0x3000_0000;

/// The store of eight bytes with which all ends.
pub const END_MARKER: u64 = START_MARKER + 8;

/// Why a trace says nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LackeyError {
    /// Reading failed.
    #[error("the trace cannot be read")]
    Io(#[from] io::Error),
    /// A store that is none.
    #[error("line {line} of the trace should be a store, its address and its bytes, and is {text:?}")]
    Store {
        /// Counted from 1.
        line: u64,
        /// The line.
        text: String,
    },
    /// A range that is none.
    #[error("a range of memory should be a kind, a start and an end, and is {text:?}")]
    Range {
        /// The line.
        text: String,
    },
    /// The program never came to what is to be measured.
    #[error("the trace has no store to the start marker; last line: {last:?}")]
    NoStart {
        /// Often says why.
        last: String,
    },
    /// The program did not come to the end of it.
    #[error("the trace has no store to the end marker; last line: {last:?}")]
    NoEnd {
        /// Often says why.
        last: String,
    },
}

/// Memory that is not the heap.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<(Range<u64>, Kind)>);

/// The owner of the memory that a store goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Heap,
    Static,
    Own,
}

impl Ranges {
    /// What a traced program printed.
    ///
    /// # Errors
    /// [`LackeyError::Range`].
    pub fn parse(text: &str) -> Result<Self, LackeyError> {
        text.lines().map(range).collect::<Result<_, _>>().map(Self)
    }

    /// Of ranges that overlap the first counts.
    fn kind(&self, address: u64) -> Kind {
        self.0.iter().find(|(range, _)| range.contains(&address)).map_or(Kind::Heap, |&(_, kind)| kind)
    }
}

fn range(text: &str) -> Result<(Range<u64>, Kind), LackeyError> {
    let parse = || {
        let mut words = text.split(' ');
        let kind = match words.next()? {
            "static" => Kind::Static,
            "own" => Kind::Own,
            _ => return None,
        };
        let mut address = || u64::from_str_radix(words.next()?, 16).ok();
        Some((address()?..address()?, kind))
    };
    parse().ok_or_else(|| LackeyError::Range { text: text.to_owned() })
}

/// The writes of the measured phase, where stores that follow each other are one write to a line ([`Coalescing`]); stores
/// to memory of another kind do not come between them.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    /// To the heap: blocks, and what the allocator keeps beside and between them.
    pub heap: LineWrites,
    /// To the variables of libraries, where allocators keep the roots of their lists. They would be in persistent memory
    /// too, if the heap were, but a tool that looks at the heap alone does not see them.
    pub statics: LineWrites,
}

/// Reads a trace to its end. `ranges` is asked when the measured phase begins: the program has printed them by then.
///
/// # Errors
/// See [`LackeyError`].
pub fn import(
    mut trace: impl BufRead,
    ranges: impl FnOnce() -> Result<Ranges, LackeyError>,
) -> Result<Writes, LackeyError> {
    let mut reader = Reader::default();
    let Some(()) = reader.until(&mut trace, START_MARKER, |_, _| ())? else {
        return Err(LackeyError::NoStart { last: reader.last() });
    };
    let ranges = ranges()?;
    let (mut writes, mut heap, mut statics) =
        (Writes::default(), Coalescing::default(), Coalescing::default());
    let end = reader.until(&mut trace, END_MARKER, |address, bytes| match ranges.kind(address) {
        Kind::Heap => heap.store(address, bytes, &mut writes.heap),
        Kind::Static => statics.store(address, bytes, &mut writes.statics),
        Kind::Own => (),
    })?;
    if end.is_none() {
        return Err(LackeyError::NoEnd { last: reader.last() });
    }
    // A program that cannot write its trace does not end.
    io::copy(&mut trace, &mut io::sink())?;
    Ok(writes)
}

/// A position in a trace.
#[derive(Default)]
struct Reader {
    line: u64,
    text: Vec<u8>,
}

impl Reader {
    /// Gives `each` all stores up to the one to `marker`; `None` when there is no such store.
    fn until(
        &mut self,
        trace: &mut impl BufRead,
        marker: u64,
        mut each: impl FnMut(u64, u64),
    ) -> Result<Option<()>, LackeyError> {
        let mut next = Vec::new();
        loop {
            next.clear();
            if trace.read_until(b'\n', &mut next)? == 0 {
                return Ok(None);
            }
            std::mem::swap(&mut self.text, &mut next);
            self.line += 1;
            // Also a modification, which is a load and a store. Instructions, loads and messages are nothing to us.
            let Some(operands) = self.text.strip_prefix(b" S ").or_else(|| self.text.strip_prefix(b" M "))
            else {
                continue;
            };
            let Some((address, bytes)) = parse_operands(operands) else {
                return Err(LackeyError::Store { line: self.line, text: self.last() });
            };
            if address == marker {
                return Ok(Some(()));
            }
            each(address, bytes);
        }
    }

    fn last(&self) -> String {
        String::from_utf8_lossy(&self.text).trim_end().to_owned()
    }
}

/// `ADDRESS,BYTES`, the former in hexadecimal.
fn parse_operands(text: &[u8]) -> Option<(u64, u64)> {
    let (address, bytes) = str::from_utf8(text).ok()?.trim_end().split_once(',')?;
    let (address, bytes) = (u64::from_str_radix(address, 16).ok()?, bytes.parse().ok()?);
    address.checked_add(bytes)?;
    Some((address, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGES: &str = "own 1000 2000\nstatic 2000 3000\n";

    fn import_text(trace: &str) -> Result<Writes, LackeyError> {
        import(trace.as_bytes(), || Ranges::parse(RANGES))
    }

    #[test]
    fn only_stores_of_measured_phase_count() {
        let writes = import_text(
            "==7== Lackey\n S 5000,8\n S 30000000,8\nI  5000,3\n L 5000,8\n S 5000,8\n M 5040,8\n S 5000,8\n S 30000008,8\n \
             S 5000,8\n==7== Exit code: 0\n",
        )
        .unwrap();
        assert_eq!(writes.heap.by_line(), [(0x5000, 2), (0x5040, 1)]);
        assert_eq!(writes.statics.total(), 0);
    }

    #[test]
    fn stores_elsewhere_are_ignored() {
        let writes = import_text(
            " S 30000000,8\n S 5000,8\n S 1000,8\n S 2000,8\n S 5008,8\n S 1fff,1\n S 2008,8\n S 3000,1\n S 30000008,8\n",
        )
        .unwrap();
        assert_eq!(writes.heap.by_line(), [(0x3000, 1), (0x5000, 1)]);
        assert_eq!(writes.statics.by_line(), [(0x2000, 1)]);
    }

    #[test]
    fn store_across_lines_writes_each_line() {
        let writes = import_text(" S 30000000,8\n S 503c,32\n S 5040,4\n S 30000008,8\n").unwrap();
        assert_eq!(writes.heap.by_line(), [(0x5000, 1), (0x5040, 1)]);
    }

    #[test]
    fn invalid_trace_error_names_its_line() {
        let error = |trace: &str| import_text(trace).unwrap_err().to_string();
        assert!(error("==7== no such program\n").contains("no such program"));
        assert!(error(" S 30000000,8\n==7== killed\n").contains("killed"));
        for line in ["S 5000", "S 5000,", "S x,8", "M ffffffffffffffff,8"] {
            let trace = format!(" S 30000000,8\n {line}\n");
            assert!(error(&trace).contains("line 2 of the trace"), "{line}");
        }
        for text in ["heap 1 2", "own 1", "static x 2", ""] {
            assert!(Ranges::parse(&format!("{text}\n")).is_err(), "{text:?}");
        }
    }
}
