//! The program that pages: threads update random words, each of an array of its own.
//!
//! It is a process of its own, which can be in a control group: `ready` when the array is filled; then for each line `THREADS MILLISECONDS` of its input a
//! line `SECONDS BUSY UPDATES FAULTS`; at the end of the input `exact`, if the array has all updates.

use super::group;
use miette::{IntoDiagnostic as _, Result, ensure, miette};
use pm_bench::{Conversation, processor_time};
use rustix::thread::disable_transparent_huge_pages;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a run has done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) seconds: f64,
    /// The processor time of the threads, in seconds. It includes their faults, which the kernel serves on their processor.
    pub(super) busy: f64,
    pub(super) updates: f64,
    /// Pages that the kernel has read.
    pub(super) faults: f64,
}

/// Starts the process with an array of this length.
pub(super) fn start(bytes: u64, group: Option<&Path>) -> Result<Conversation> {
    let mut command = Command::new(std::env::current_exe().into_diagnostic()?);
    command.args(["--thrash", &bytes.to_string()]);
    if let Some(group) = group {
        command.arg("--group").arg(group);
    }
    Conversation::start(&mut command)
}

/// Lets threads update words for a time.
pub(super) fn run(thrash: &mut Conversation, threads: usize, time: Duration) -> Result<Ran> {
    let [seconds, busy, updates, faults] = thrash.ask(&format!("{threads} {}", time.as_millis()))?;
    Ok(Ran { seconds, busy, updates, faults })
}

/// Is that program.
pub(crate) fn serve(bytes: u64, group: Option<&Path>) -> Result<ExitCode> {
    if let Some(group) = group {
        group::join(group)?;
    }
    // Pages of 4 KiB are paged, as in the paper.
    disable_transparent_huge_pages(true).into_diagnostic()?;
    let mut random = fastrand::Rng::with_seed(1);
    let count = usize::try_from(bytes / 8).into_diagnostic()?;
    // Random contents are not compressed.
    let mut words: Vec<u64> = std::iter::repeat_with(|| random.u64(..)).take(count).collect();
    let mut expected = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.into_diagnostic()?;
        let numbers: Vec<u64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [threads, milliseconds] = numbers[..] else { return Err(miette!("{line:?} is no run")) };
        let faults = major_faults()?;
        let begin = Instant::now();
        let (updates, busy) = update(&mut words, threads, Duration::from_millis(milliseconds))?;
        let seconds = begin.elapsed().as_secs_f64();
        expected = expected.wrapping_add(updates);
        println!("{seconds} {} {updates} {}", busy.as_secs_f64(), major_faults()? - faults);
    }
    let sum = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
    ensure!(sum == expected, "paging has lost updates: the sum is {sum}, not {expected}");
    println!("exact");
    Ok(ExitCode::SUCCESS)
}

/// Adds one to random words until the time is over. Returns how often, and the processor time.
fn update(words: &mut [u64], threads: u64, time: Duration) -> Result<(u64, Duration)> {
    let threads = usize::try_from(threads).into_diagnostic()?.max(1);
    let is_over = AtomicBool::new(false);
    let of_thread = words.len().div_ceil(threads).max(1);
    let ran: Vec<(u64, Duration)> = std::thread::scope(|scope| {
        let start = |(seed, own): (u64, &mut [u64])| {
            let mut random = fastrand::Rng::with_seed(seed);
            let begin = processor_time();
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let word = &mut own[random.usize(..own.len())];
                *word = word.wrapping_add(1);
                count += 1;
            }
            (count, processor_time() - begin)
        };
        let parts = (7..).zip(words.chunks_mut(of_thread));
        let handles: Vec<_> = parts.map(|part| scope.spawn(move || start(part))).collect();
        std::thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        handles.into_iter().map(|handle| handle.join().unwrap_or_default()).collect()
    });
    Ok((ran.iter().map(|ran| ran.0).sum(), ran.iter().map(|ran| ran.1).sum()))
}

/// The pages of this process that the kernel has read so far: field 12 of proc(5).
pub(super) fn major_faults() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").into_diagnostic()?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let count = fields.split_whitespace().nth(9).and_then(|field| field.parse().ok());
    count.ok_or_else(|| miette!("/proc/self/stat is {stat:?}"))
}
