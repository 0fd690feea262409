//! `pmcrash minimise`: the part of a failing trace that is needed to fail.

use crate::args::Minimise;
use crate::check::{Check, Failed, REJECTED, explore, explorer, most_images, open};
use crate::io::{answer, progress, save, say};
use miette::{IntoDiagnostic as _, bail, miette};
use pm_crashsim::{CrashRecord, EventKind, IllegalCrash, Image, Model, Survivor, TraceFile};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// Aligned words in a line, and in a sector.
const LINE_WORDS: u64 = 8;
const SECTOR_WORDS: u64 = 64;

/// A shorter trace: some events of another, and the crash at their end.
struct Candidate<'f> {
    whole: &'f TraceFile,
    /// Event numbers of the whole.
    events: BTreeSet<usize>,
    /// Survivors, with event numbers of the whole.
    kept: BTreeSet<Survivor>,
}

/// The requirements on a shorter trace.
struct Goal<'c> {
    check: &'c Check,
    /// Fail in this way.
    failed: &'c Failed,
    /// And be accepted when nothing is lost.
    is_loss: bool,
}

/// `pmcrash minimise`
pub(crate) fn run(args: &Minimise, json: bool) -> miette::Result<ExitCode> {
    let file = open(&args.file, &args.crashes)?;
    let Some(file) = last_crash(file, args)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let crash = file.crashes().first().ok_or_else(|| miette!("a crash that was found is in the trace"))?;
    let check = Check::new(&args.check, progress(0, "minimising"))?;
    let image = crash.image().into_diagnostic()?;
    let Some(failed) = check.run(&image)? else {
        bail!(
            help = "does it do the same each time? does it need more than the image?",
            "the command accepts the image of the crash in {}",
            args.file.display()
        );
    };
    let before = Candidate {
        whole: &file,
        events: (0..crash.events()).collect(),
        kept: crash.kept().iter().copied().collect(),
    };
    // If a loss is the reason, it must stay the reason: a removed store could be missed as well, which is another failure.
    let is_loss = check.run(&before.everything_kept()?)?.is_none();
    let goal = Goal { check: &check, failed: &failed, is_loss };
    let (events_before, lost_before) = (before.events.len(), before.lost()?.len());
    let least = before.without_stores(&goal)?.without_fences()?.with_most_kept(&goal)?;
    check.finish();

    let (events, lost) = (least.events.len(), least.lost()?.len());
    let trace = least.trace()?;
    let message = failed.message();
    save(&trace.with_message(&message), &args.output)?;
    let value = || {
        json!({
            "output": args.output.to_string_lossy(),
            "events": events,
            "events_before": events_before,
            "lost_lines": lost,
            "lost_lines_before": lost_before,
            "images": check.runs(),
            "message": message,
        })
    };
    answer(json, value, || {
        let (output, images) = (args.output.display(), check.runs());
        format!(
            "{output}: {events} of {events_before} events, {lost} of {lost_before} lost lines, after {images} images\n  \
             {message}"
        )
    });
    Ok(ExitCode::from(REJECTED))
}

/// The run that the last crash ended, with that crash; without one, a failing crash is searched for. Prints a message and returns `None`
/// if none is found.
fn last_crash(file: TraceFile, args: &Minimise) -> miette::Result<Option<TraceFile>> {
    let crashed = if file.crashes().is_empty() {
        let most = most_images(&file, &args.crashes);
        match explore(&explorer(&file, &args.crashes), &file, &args.check, most)? {
            Ok(coverage) => {
                let of_sample = match coverage.is_exhaustive() {
                    true => String::new(),
                    false => format!(" of a sample ({})", args.crashes.bounds()),
                };
                say(format_args!(
                    "every image{of_sample} was accepted: nothing fails that could be minimised"
                ));
                return Ok(None);
            }
            Err(failure) => TraceFile::from_failure(&failure).ok_or(failure).into_diagnostic()?,
        }
    } else {
        file
    };
    Ok(crashed.level(crashed.crashes().len() - 1))
}

impl Candidate<'_> {
    /// Removes stores, loads and acknowledgements, as long as the image of the crash is rejected in the same way.
    /// Flushes and fences stay, because their loss could be the failure.
    fn without_stores(self, goal: &Goal<'_>) -> miette::Result<Self> {
        let (stores, fences) = self.stores_and_fences();
        let with = |stores: &[usize]| self.with(stores.iter().chain(&fences).copied().collect());
        let least = ddmin(stores, |stores| with(stores).fails(goal))?;
        Ok(with(&least))
    }

    /// Removes flushes and fences without which this crash leaves the same bytes.
    fn without_fences(self) -> miette::Result<Self> {
        let bytes = self.image()?.map(|image| image.to_bytes());
        let (stores, fences) = self.stores_and_fences();
        let with = |fences: &[usize]| self.with(fences.iter().chain(&stores).copied().collect());
        let is_same = |fences: &[usize]| {
            Ok::<_, miette::Report>(with(fences).image()?.map(|image| image.to_bytes()) == bytes)
        };
        let least = ddmin(fences, is_same)?;
        Ok(with(&least))
    }

    /// The events that make nothing durable, and the others.
    fn stores_and_fences(&self) -> (Vec<usize>, Vec<usize>) {
        let events = self.whole.trace().events();
        self.events.iter().partition(|&&event| is_only_data(&events[event].kind))
    }

    /// Keeps lost lines, one after the other, as long as the remaining loss is enough to fail.
    fn with_most_kept(mut self, goal: &Goal<'_>) -> miette::Result<Self> {
        for survivors in self.lost()?.into_values() {
            let kept = self.kept.iter().copied().chain(survivors).collect();
            let more = Self { whole: self.whole, events: self.events.clone(), kept };
            if more.fails(goal)? {
                self = more;
            }
        }
        Ok(self)
    }

    /// The same crash after these events only.
    fn with(&self, events: BTreeSet<usize>) -> Self {
        let kept = self.kept.iter().copied().filter(|kept| events.contains(&kept.event)).collect();
        Self { whole: self.whole, events, kept }
    }

    fn fails(&self, goal: &Goal<'_>) -> miette::Result<bool> {
        let Some(image) = self.image()? else { return Ok(false) };
        if goal.check.run(&image)?.is_none_or(|found| found.status != goal.failed.status) {
            return Ok(false);
        }
        Ok(!goal.is_loss || goal.check.run(&self.everything_kept()?)?.is_none())
    }

    /// The image of a crash that loses nothing.
    fn everything_kept(&self) -> miette::Result<Image> {
        let run = self.run();
        let end = run.trace().events().len();
        let crashed = run.crashed(end, run.pending(end)).into_diagnostic()?;
        let image = crashed.crashes().first().map(CrashRecord::image).transpose().into_diagnostic()?;
        image.ok_or_else(|| miette!("a crash that was made is in the trace"))
    }

    /// The image of the crash; `None` if there is no such crash.
    fn image(&self) -> miette::Result<Option<Image>> {
        let Ok(trace) = self.try_trace() else { return Ok(None) };
        trace.crashes().first().map(CrashRecord::image).transpose().into_diagnostic()
    }

    fn trace(&self) -> miette::Result<TraceFile> {
        self.try_trace().into_diagnostic()
    }

    fn try_trace(&self) -> Result<TraceFile, IllegalCrash> {
        let run = self.run();
        let kept = self.kept.iter().map(|kept| Survivor { event: self.number_of(kept.event), ..*kept });
        run.crashed(run.trace().events().len(), kept.collect())
    }

    fn run(&self) -> TraceFile {
        self.whole.filtered(|number, _| self.events.contains(&number))
    }

    /// The number in the run of an event of the whole.
    fn number_of(&self, event: usize) -> usize {
        self.events.range(..event).count()
    }

    /// The lost pending stores, by unit.
    fn lost(&self) -> miette::Result<BTreeMap<u64, Vec<Survivor>>> {
        let run = self.run();
        let numbers: Vec<usize> = self.events.iter().copied().collect();
        let mut lost: BTreeMap<u64, Vec<Survivor>> = BTreeMap::new();
        for pending in run.pending(numbers.len()) {
            let event = *numbers.get(pending.event).ok_or_else(|| miette!("what is pending was stored"))?;
            let pending = Survivor { event, ..pending };
            if !self.kept.contains(&pending) {
                lost.entry(unit(self.whole.model(), pending.word)).or_default().push(pending);
            }
        }
        Ok(lost)
    }
}

/// Whether an event makes nothing durable.
const fn is_only_data(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::Store { .. }
            | EventKind::StoreU128 { .. }
            | EventKind::StoreNt { .. }
            | EventKind::Load { .. }
            | EventKind::Ack
    )
}

/// The unit that may survive whole, independent of others.
const fn unit(model: Model, word: u64) -> u64 {
    match model {
        // What survives is a prefix of all stores: everything, or not.
        Model::Eadr => 0,
        Model::Page => word / SECTOR_WORDS,
        _ => word / LINE_WORDS,
    }
}

/// Delta debugging: removes from `items` what `fails` does not need: halves first, then smaller parts, down to single ones, until each
/// remaining one is needed. `fails` holds for `items` as they are.
///
/// # Source
/// Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (TSE 2002).
fn ddmin<E>(
    mut items: Vec<usize>,
    mut fails: impl FnMut(&[usize]) -> Result<bool, E>,
) -> Result<Vec<usize>, E> {
    let mut parts = 2;
    while !items.is_empty() {
        let len = items.len().div_ceil(parts);
        let mut start = 0;
        let mut took = false;
        while start < items.len() {
            let end = (start + len).min(items.len());
            let without = [&items[..start], &items[end..]].concat();
            if fails(&without)? {
                items = without;
                took = true;
            } else {
                start = end;
            }
        }
        match (len, took) {
            (1, false) => break,
            (1, true) => parts = items.len().max(1),
            _ => parts = (items.len().div_ceil(len) * 2).max(2),
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn only_needed_items_are_left() {
        for needed in [&[][..], &[0], &[99], &[3, 4, 77], &[0, 50, 99]] {
            let mut tries = 0;
            let fails = |items: &[usize]| {
                tries += 1;
                Ok::<bool, Infallible>(needed.iter().all(|item| items.contains(item)))
            };
            assert_eq!(ddmin((0..100).collect(), fails), Ok(needed.to_vec()));
            assert!(tries < 150, "{tries} tries for {needed:?}");
        }
    }
}
