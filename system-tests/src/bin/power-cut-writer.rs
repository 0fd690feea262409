//! In the guest: overwrites slots until the power is cut, and reads them afterwards.
//!
//! Each thread owns the slots whose number is its own modulo the number of threads. It reports each acknowledged write as `KIND SLOT SEQUENCE` before it
//! begins the next. In a heap a thread owns a queue, and reports `heap THREAD NUMBER` after the transaction that added the node of this number. In a pm-fs
//! a thread owns a directory, and reports `fs THREAD NUMBER` after the call of this number.

#![forbid(unsafe_code)]

/// The load of the heap's test with `kill -9`.
#[path = "../../../crates/pm-alloc/tests/library/queues/mod.rs"]
mod queues;

/// The load of a file system.
#[path = "power-cut-writer/calls.rs"]
mod calls;

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use clap::{Parser, Subcommand};
use miette::{IntoDiagnostic, Result, WrapErr, miette};
use pm_alloc::{Heap, HeapOptions};
use pm_system_tests::powercut::{DeviceSlots, FileSlots, Held, Sequence, Slots};

const HEAP_BYTES: u64 = 16 << 20;
/// A report acknowledges all of them.
const TRANSACTIONS_A_REPORT: u64 = 32;

/// Overwrites slots and reports each acknowledged write; reads them back.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Overwrites slots at random until the power is cut.
    Write {
        #[command(flatten)]
        place: Place,
        /// The number of writers.
        #[arg(long)]
        threads: u64,
        /// The first sequence number.
        #[arg(long)]
        first: Sequence,
    },
    /// Prints a line for each slot that was written: its number and its content.
    Read {
        #[command(flatten)]
        place: Place,
    },
    /// Runs transactions until the power is cut, on a heap that is created if it does not exist.
    Transact {
        /// The heap's file.
        heap: PathBuf,
    },
    /// Calls a pm-fs in process until the power is cut. The file system is created if it does not exist.
    Call {
        /// The file system's file.
        fs: PathBuf,
    },
    /// Checks the file system, and prints a line for each thread: its number, and its number of calls.
    Audit {
        /// The file system's file.
        fs: PathBuf,
    },
    /// Checks the heap, and prints a line for each thread: its number, and its number of transactions.
    Look {
        /// The heap's file.
        heap: PathBuf,
    },
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Place {
    /// The 4 KiB blocks of this device.
    #[arg(long)]
    device: Option<PathBuf>,
    /// 256 files in this directory.
    #[arg(long)]
    directory: Option<PathBuf>,
}

impl Place {
    /// The slots, and their kind in reports.
    fn open(&self) -> Result<(Arc<dyn Slots>, &'static str)> {
        match (&self.device, &self.directory) {
            (Some(device), _) => {
                let slots = DeviceSlots::open(device).into_diagnostic();
                Ok((Arc::new(slots.wrap_err_with(|| device.display().to_string())?), "block"))
            }
            (None, Some(directory)) => Ok((Arc::new(FileSlots::new(directory, 256)), "file")),
            (None, None) => Err(miette!("neither --device nor --directory")),
        }
    }
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Write { place, threads, first } => {
            let (slots, kind) = place.open()?;
            let writers: Vec<_> = (0..threads)
                .map(|thread| {
                    let slots = Arc::clone(&slots);
                    thread::spawn(move || write(&*slots, kind, thread, threads, first))
                })
                .collect();
            // A writer ends only by failing.
            for writer in writers {
                writer.join().map_err(|_| miette!("a writer panicked"))?.into_diagnostic()?;
            }
            Ok(())
        }
        Command::Read { place } => read(&*place.open()?.0).into_diagnostic().wrap_err("cannot read"),
        Command::Transact { heap } => {
            let exists = heap.exists();
            let options = HeapOptions::new();
            let heap =
                if exists { Heap::open(&heap, &options) } else { Heap::create(&heap, HEAP_BYTES, &options) };
            let heap = heap.into_diagnostic()?;
            thread::scope(|scope| {
                let threads: Vec<_> = (0..queues::THREADS)
                    .map(|thread| {
                        let heap = &heap;
                        scope.spawn(move || transact(heap, thread))
                    })
                    .collect();
                threads
                    .into_iter()
                    .try_for_each(|thread| thread.join().map_err(|_| miette!("a writer panicked"))?)
            })
        }
        Command::Call { fs } => calls::run(&fs),
        Command::Audit { fs } => {
            for (thread, count) in calls::audit(&fs)?.into_iter().enumerate() {
                println!("{thread} {count}");
            }
            Ok(())
        }
        Command::Look { heap } => {
            let heap = Heap::open(&heap, &HeapOptions::new()).into_diagnostic()?;
            for (thread, ever) in queues::check(&heap).into_iter().enumerate() {
                println!("{thread} {ever}");
            }
            Ok(())
        }
    }
}

fn transact(heap: &Heap, thread: u64) -> Result<()> {
    let mut report = File::options().write(true).open("/dev/report").into_diagnostic()?;
    loop {
        // Reports are rare, so that the power cut is likely during a transaction.
        for _ in 1..TRANSACTIONS_A_REPORT {
            queues::step(heap, thread).into_diagnostic()?;
        }
        let number = queues::step(heap, thread).into_diagnostic()?;
        report.write_all(format!("heap {thread} {number}\n").as_bytes()).into_diagnostic()?;
        rustix::termios::tcdrain(&report).into_diagnostic()?;
    }
}

fn write(slots: &dyn Slots, kind: &str, thread: u64, threads: u64, first: Sequence) -> io::Result<()> {
    let mut report: File = OpenOptions::new().write(true).open("/dev/report")?;
    let mut random = fastrand::Rng::with_seed(first + thread);
    let own_count = slots.count() / threads;
    for sequence in (first + thread..).step_by(usize::try_from(threads).unwrap_or(1)) {
        let slot = random.u64(..own_count) * threads + thread;
        slots.write(slot, sequence)?;
        // A single write, so that lines of several writers do not mix; drained, so that the host has it before the next write.
        report.write_all(format!("{kind} {slot} {sequence}\n").as_bytes())?;
        rustix::termios::tcdrain(&report)?;
    }
    Ok(())
}

fn read(slots: &dyn Slots) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for slot in 0..slots.count() {
        match slots.read(slot)? {
            Held::Nothing => {}
            held => writeln!(out, "{slot} {held}")?,
        }
    }
    out.flush()
}
