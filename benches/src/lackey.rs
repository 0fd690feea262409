//! Reads the output of Valgrind's tool lackey with `--trace-mem=yes`, and counts the writes to each line of the heap.
//!
//! A traced program first prints, on its standard output, which of its memory is not heap: lines with two hexadecimal addresses,
//! `own START END` for its stack and its own data, `static START END` for the variables of its libraries. All other memory that it writes is
//! heap. Then the program stores to [`START_MARKER`], runs the measured phase, and stores to [`END_MARKER`], as `c/alloc_workload.c` does.
//!
//! ```
//! use pm_bench::lackey::{self, Ranges};
//! let trace = " S 30000000,8\nI  00401000,3\n S 04a00000,16\n M 04a00010,8\n L 04a00040,8\n S 30000008,8\n";
//! let writes = lackey::import(trace.as_bytes(), || Ok(Ranges::default()))?;
//! assert_eq!(writes.heap.total_writes(), 1); // two consecutive stores to one line
//! # Ok::<(), miette::Report>(())
//! ```

use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail, miette};
use pm_core::{Coalescing, LineWrites};
use std::io::{self, BufRead};
use std::ops::Range;

/// The address of the store of eight bytes that begins the measured phase.
pub const START_MARKER: u64 = 0x3000_0000;

/// The address of the store of eight bytes that ends the measured phase.
pub const END_MARKER: u64 = START_MARKER + 8;

/// Memory that is not heap.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<(Range<u64>, Kind)>);

/// The kind of memory that a store goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Heap,
    Static,
    Own,
}

impl Ranges {
    /// Parses the ranges that a traced program has printed.
    pub fn parse(text: &str) -> Result<Self> {
        text.lines().map(range).collect::<Result<_>>().map(Self)
    }

    /// If ranges overlap, the first counts.
    fn kind(&self, address: u64) -> Kind {
        self.0.iter().find(|(range, _)| range.contains(&address)).map_or(Kind::Heap, |&(_, kind)| kind)
    }
}

fn range(text: &str) -> Result<(Range<u64>, Kind)> {
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
    parse().ok_or_else(|| miette!("a range of memory should be a kind, a start and an end, and is {text:?}"))
}

/// The line writes of the measured phase. Consecutive stores to a line are one write ([`Coalescing`]), regardless of stores to other kinds
/// of memory between them.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    /// Writes to the heap: blocks, and the allocator's data next to and between them.
    pub heap: LineWrites,
    /// Writes to the variables of libraries, where allocators keep the heads of their lists. With a heap in persistent memory they would be
    /// there too.
    pub statics: LineWrites,
}

/// Reads a trace to its end. `ranges` is called when the measured phase begins: the program has printed them by then.
///
/// # Errors
/// If reading fails, a store is malformed, or a marker is missing; the last line of the trace is then part of the error.
pub fn import(mut trace: impl BufRead, ranges: impl FnOnce() -> Result<Ranges>) -> Result<Writes> {
    let mut reader = Reader::default();
    reader.until(&mut trace, START_MARKER, |_, _| ()).wrap_err("the measured phase has no start")?;
    let ranges = ranges()?;
    let (mut writes, mut heap, mut statics) =
        (Writes::default(), Coalescing::default(), Coalescing::default());
    let end = reader.until(&mut trace, END_MARKER, |address, bytes| match ranges.kind(address) {
        Kind::Heap => heap.store(address, bytes, &mut writes.heap),
        Kind::Static => statics.store(address, bytes, &mut writes.statics),
        Kind::Own => (),
    });
    end.wrap_err("the measured phase has no end")?;
    // A program that cannot write its trace does not end.
    io::copy(&mut trace, &mut io::sink()).into_diagnostic()?;
    Ok(writes)
}

/// A position in a trace.
#[derive(Default)]
struct Reader {
    line: u64,
    text: Vec<u8>,
}

impl Reader {
    /// Passes `each` all stores before the one to `marker`.
    fn until(&mut self, trace: &mut impl BufRead, marker: u64, mut each: impl FnMut(u64, u64)) -> Result<()> {
        let mut next = Vec::new();
        loop {
            next.clear();
            if trace.read_until(b'\n', &mut next).into_diagnostic()? == 0 {
                bail!("the trace has no store to the marker {marker:#x}; its last line is {:?}", self.last());
            }
            std::mem::swap(&mut self.text, &mut next);
            self.line += 1;
            // A modification (M) is a load and a store. Instructions, loads and messages do not count.
            let operands = self.text.strip_prefix(b" S ").or_else(|| self.text.strip_prefix(b" M "));
            let Some(operands) = operands else { continue };
            let Some((address, bytes)) = parse_operands(operands) else {
                bail!(
                    "line {} of the trace is not a store with address and size: {:?}",
                    self.line,
                    self.last()
                );
            };
            if address == marker {
                return Ok(());
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

    fn import_text(trace: &str) -> Result<Writes> {
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
        assert_eq!(writes.statics.total_writes(), 0);
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
        let error = |trace: &str| {
            let error = import_text(trace).unwrap_err();
            error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")
        };
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
