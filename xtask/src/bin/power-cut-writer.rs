//! In the guest: overwrites slots until the power is cut, and reads them after.
//!
//! Each thread owns the slots whose number is its own modulo the number of threads. It writes one at a time,
//! and reports `KIND SLOT SEQUENCE` when the write is acknowledged, before it begins the next.

#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use clap::{Parser, Subcommand};
use miette::{IntoDiagnostic, Result, WrapErr, miette};
use xtask::powercut::{DeviceSlots, FileSlots, Held, Random, Sequence, Slots};

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
        /// Writers at a time.
        #[arg(long)]
        threads: u64,
        /// The first sequence number.
        #[arg(long)]
        first: Sequence,
    },
    /// Prints a line for each slot that was ever written: its number, and the write that it holds.
    Read {
        #[command(flatten)]
        place: Place,
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
    /// The slots, and the word by which reports name one.
    fn open(&self) -> Result<(Arc<dyn Slots>, &'static str)> {
        match (&self.device, &self.directory) {
            (Some(device), _) => {
                let slots = DeviceSlots::open(device).into_diagnostic();
                Ok((Arc::new(slots.wrap_err_with(|| device.display().to_string())?), "block"))
            }
            (None, Some(directory)) => Ok((Arc::new(FileSlots::new(directory, 256)), "file")),
            (None, None) => Err(miette!("no place to write to")),
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
    }
}

fn write(slots: &dyn Slots, kind: &str, thread: u64, threads: u64, first: Sequence) -> io::Result<()> {
    let mut report: File = OpenOptions::new().write(true).open("/dev/report")?;
    let mut random = Random::new(first + thread);
    let own_count = slots.count() / threads;
    for sequence in (first + thread..).step_by(usize::try_from(threads).unwrap_or(1)) {
        let slot = random.below(own_count) * threads + thread;
        slots.write(slot, sequence)?;
        // One write: lines of several writers do not mix. Drained: it is with the host before the next begins.
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
