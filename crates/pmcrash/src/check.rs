//! The command that checks images, and the exploration of a trace with it.

use crate::args::Crashes;
use crate::interrupt::remove_when_stopped;
use crate::io::{open as open_file, progress, write_image};
use indicatif::ProgressBar;
use miette::{IntoDiagnostic as _, WrapErr as _, miette};
use pm_crashsim::{Coverage, Explorer, Failure, Image, TraceFile};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// The exit code after an image that the check rejects.
pub(crate) const REJECTED: u8 = 3;

/// The number of output lines of a failing command that are printed.
const OUTPUT_LINES: usize = 10;

/// The command, and the directory of its images.
pub(crate) struct Check {
    command: Vec<OsString>,
    dir: TempDir,
    runs: AtomicU64,
    bar: ProgressBar,
    /// An error that prevented a run of the command. The command has not failed.
    broken: Mutex<Option<io::Error>>,
}

/// How a command failed.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) status: ExitStatus,
    /// The end of what it printed.
    pub(crate) output_end: String,
}

impl Check {
    pub(crate) fn new(command: &[OsString], bar: ProgressBar) -> miette::Result<Self> {
        let dir =
            TempDir::with_prefix("pmcrash-").into_diagnostic().wrap_err("making a directory for images")?;
        remove_when_stopped(dir.path().to_owned())?;
        let (runs, broken) = (AtomicU64::new(0), Mutex::new(None));
        Ok(Self { command: command.to_vec(), dir, runs, bar, broken })
    }

    /// The number of images tried.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Runs the command on a new file with this image; `None` when it accepts the image.
    pub(crate) fn run(&self, image: &Image) -> miette::Result<Option<Failed>> {
        self.try_run(image).map_err(|error| self.explain(&error))
    }

    /// The same for the explorer, which knows only failures: other errors are kept for [`broken`](Self::broken).
    pub(crate) fn verdict(&self, image: &Image) -> Result<(), String> {
        match self.try_run(image) {
            Ok(None) => Ok(()),
            Ok(Some(failed)) => Err(failed.message()),
            Err(error) => {
                let message = error.to_string();
                *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Err(message)
            }
        }
    }

    /// The error that prevented a run of the command.
    pub(crate) fn broken(&self) -> miette::Result<()> {
        match self.broken.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(self.explain(&error)),
            None => Ok(()),
        }
    }

    fn explain(&self, error: &io::Error) -> miette::Report {
        let command = self.command.first().map(|command| command.to_string_lossy().into_owned());
        miette!("running {}: {error}", command.unwrap_or_default())
    }

    fn try_run(&self, image: &Image) -> io::Result<Option<Failed>> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.path().join(format!("image-{number}"));
        write_image(image, &path)?;
        let mut has_place = false;
        let mut words = self.command.iter().map(|word| {
            let is_place = word == "{}";
            has_place |= is_place;
            if is_place { path.clone().into_os_string() } else { word.clone() }
        });
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words.by_ref());
        drop(words);
        if !has_place {
            command.arg(&path);
        }
        let output = command.stdin(Stdio::null()).output()?;
        fs::remove_file(&path).or_else(|error| match error.kind() {
            // The command may delete its file.
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        self.bar.inc(1);
        let printed = [output.stdout, output.stderr].concat();
        let failed =
            || Failed { status: output.status, output_end: last_lines(&String::from_utf8_lossy(&printed)) };
        Ok((!output.status.success()).then(failed))
    }
}

impl Failed {
    pub(crate) fn message(&self) -> String {
        let Self { status, output_end } = self;
        if output_end.is_empty() { status.to_string() } else { format!("{status}\n{output_end}") }
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(OUTPUT_LINES)..].join("\n")
}

/// The trace, under the model of the options.
pub(crate) fn open(path: &Path, crashes: &Crashes) -> miette::Result<TraceFile> {
    let file = open_file(path)?;
    Ok(match crashes.model {
        Some(model) if model != file.model() => file.under(model),
        _ => file,
    })
}

/// The explorer with the bounds of the options.
pub(crate) fn explorer(file: &TraceFile, crashes: &Crashes) -> Explorer {
    // The recovery of a command is not recorded, and so not crashed. The command may read every byte, so reads do not direct the search.
    // `minimise` shrinks failures.
    let explorer =
        Explorer::of(file).crashes(1).reduce(false).shrink(false).choices_per_point(crashes.choices);
    let explorer = explorer.time(crashes.seconds.map_or(Duration::MAX, Duration::from_secs));
    match crashes.recoveries {
        Some(bound) => explorer.recoveries(bound),
        None => explorer,
    }
}

/// The maximal number of images of an exploration.
pub(crate) fn most_images(file: &TraceFile, crashes: &Crashes) -> u64 {
    let at_point = |legal: u128| u64::try_from(legal).unwrap_or(u64::MAX).min(crashes.choices);
    let all = file.crash_points().iter().map(|point| at_point(point.legal)).fold(0, u64::saturating_add);
    all.min(crashes.recoveries.unwrap_or(u64::MAX))
}

/// Runs the command on one image after the other.
pub(crate) fn explore(
    explorer: &Explorer,
    file: &TraceFile,
    command: &[OsString],
    most: u64,
) -> miette::Result<Result<Coverage, Box<Failure>>> {
    let check = Check::new(command, progress(most, "checking"))?;
    let found = explorer.explore_trace(file, |crash| check.verdict(&crash.pmem().to_image()));
    check.finish();
    check.broken()?;
    Ok(found)
}
