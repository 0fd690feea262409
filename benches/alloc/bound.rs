//! Allocate-and-link and unlink-and-free against their bound: the same lines and fences in a C loop, which allocates nothing.

use crate::transactions::{POOL_BYTES, make_slots, run, time_plan};
use crate::workload::{PlanFile, nanoseconds};
use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use pm_alloc::{Heap, HeapOptions};
use pm_bench::{Cli, Report, Side, rounds};
use pm_core::insn::{FlushInsn, NtWidth};
use pm_core::line::{LINE_BYTES, line_start, lines_spanned};
use pm_core::{FenceError, Link, Pmem, Region, forward_pmem};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use tempfile::NamedTempFile;

/// `c/line_replay.c`, compiled.
const LINE_REPLAY: &str = env!("PM_BENCH_LINE_REPLAY");

/// Measures one row, on the processor that the caller has chosen.
pub(crate) fn measure(
    cli: &Cli,
    name: &str,
    plan: &PlanFile,
    memory: &Path,
    report: &mut Report,
) -> Result<()> {
    let ours = memory.join("ours.pool");
    let bound = memory.join("bound.lines");
    File::create(&bound).and_then(|file| file.set_len(POOL_BYTES)).into_diagnostic()?;
    let insns = Region::anonymous(1 << 20).into_diagnostic()?.insns();
    let (flush, width) = match (insns.flush(), insns.nt_width()) {
        (FlushInsn::Clflush, width) => ("0", width),
        (FlushInsn::ClflushOpt, width) => ("1", width),
        (FlushInsn::Clwb, width) => ("2", width),
        _ => {
            report.fact("bound", format!("not measured: there is no C loop for {insns}"));
            return Ok(());
        }
    };
    let width = match width {
        NtWidth::B16 => "0",
        NtWidth::B32 => "1",
        _ => "2",
    };
    let steps = record(plan)?;
    let [pairs] = rounds(cli.round_count(9, 3), |side| {
        let seconds = match side {
            Side::Ours => {
                let time = time_plan(&ours, plan)?;
                std::fs::remove_file(&ours).into_diagnostic()?;
                time.as_secs_f64()
            }
            Side::Theirs => {
                let mut replay = Command::new(LINE_REPLAY);
                nanoseconds(replay.args([&bound, steps.path()]).args([flush, width]))? / 1e9
            }
        };
        Ok([plan.op_count as f64 / seconds])
    })?;
    report.row(name, "the same lines and fences in C", "op/s", pairs, Some(0.6));
    Ok(())
}

/// The steps of `c/line_replay.c` that this plan takes, in a file.
fn record(plan: &PlanFile) -> Result<NamedTempFile> {
    let region = Region::anonymous(POOL_BYTES).into_diagnostic()?;
    let heap = Heap::format(Recording { inner: region, steps: Mutex::default() }, &HeapOptions::new());
    let heap = heap.into_diagnostic()?;
    make_slots(&heap, plan, 1)?;
    let steps = &heap.pool().pmem().steps;
    steps.lock().unwrap_or_else(PoisonError::into_inner).clear();
    heap.view(|view| {
        let slots = view.root::<Link<'_, u8>>("slots").into_diagnostic()?.expect("it was set above");
        run(view, slots, plan)
    })?;
    let steps = std::mem::take(&mut *steps.lock().unwrap_or_else(PoisonError::into_inner));
    let mut file = NamedTempFile::new().into_diagnostic()?;
    let bytes: Vec<u8> = steps.iter().flat_map(|step| step.to_le_bytes()).collect();
    file.write_all(&bytes).into_diagnostic().wrap_err("steps of the bound")?;
    Ok(file)
}

/// What is done to a line, in the low bits of its offset, as `c/line_replay.c` reads them.
#[derive(Clone, Copy)]
enum Kind {
    Store,
    Flush,
    Stream,
    Fence,
}

/// A seam that records the lines of each call, and forwards it.
#[derive(Debug)]
struct Recording {
    inner: Region,
    steps: Mutex<Vec<u64>>,
}

impl Recording {
    fn push(&self, kind: Kind, offset: u64, len_bytes: u64) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        for line in 0..lines_spanned(offset, len_bytes) {
            let step = (line_start(offset) + line * LINE_BYTES) | kind as u64;
            // Stores of one after another word of a line are one store of it.
            if steps.last() != Some(&step) {
                steps.push(step);
            }
        }
    }
}

impl Pmem for Recording {
    forward_pmem!(|this| this.inner => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data, load);
    forward_pmem!(|this| this.inner => try_load, load_u64, load_words, prefetch, prefetch_read, populate);

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.inner.store(offset, bytes);
        self.push(Kind::Store, offset, bytes.len() as u64);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.inner.store_nt(offset, bytes);
        self.push(Kind::Stream, offset, bytes.len() as u64);
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.inner.store_u64(offset, value);
        self.push(Kind::Store, offset, 8);
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.inner.store_u128(offset, value);
        self.push(Kind::Store, offset, 16);
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let outcome = self.inner.compare_exchange_u64(offset, current, new);
        self.push(Kind::Store, offset, 8);
        outcome
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.inner.flush(offset, len_bytes);
        self.push(Kind::Flush, offset, len_bytes);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.push(Kind::Fence, 0, 1);
        self.inner.fence()
    }
}
