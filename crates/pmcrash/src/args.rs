//! The command line.

use crate::select::{Selection, number};
use clap::{Args, Parser, Subcommand};
use pm_cli_common::Docs;
use pm_crashsim::Model;
use std::ffi::OsString;
use std::path::PathBuf;

/// What `--help` ends with.
const EXAMPLES: &str = "\
Examples:
  valgrind --tool=pmemcheck --log-stores=yes --log-file=run.log ./program /mnt/pmem/pool
  pmcrash import pmemcheck run.log -o run.pmc     make a trace of what the program did
  pmcrash show run.pmc --kind store,fence         look at it
  pmcrash replay run.pmc --check ./recover {}     run ./recover on every image that a crash can leave
  pmcrash minimise run.pmc -o small.pmc --check timeout 10 ./recover {}";

/// Crashes the recorded run of a program, and runs its own recovery on each image that is left.
///
/// A trace (.pmc) comes from pm-crashsim or from the log of another tool. It has the contents of a region of persistent memory, and
/// every store, flush and fence; a crash may leave any image that the model allows.
///
/// Ranges are A..B, A.. or ..B, without B itself, or one number; decimal, or hexadecimal after 0x.
///
/// Exit status: 0 for success, 1 for an error, 2 for a wrong command line, 3 when `replay` or `minimise` found an image that the check rejects.
#[derive(Debug, Parser)]
#[command(name = "pmcrash", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print JSON, one object a line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the events of a trace, and at each crash point the pending stores and the number of legal images.
    Show(Show),
    /// Write a trace of some of the events, without crashes.
    Filter(Filter),
    /// Make a trace from the log of another tool.
    #[command(subcommand)]
    Import(Import),
    /// Crash a trace: run a command on each image, or write one image.
    Replay(Replay),
    /// Make a failing trace as short as it can be: fewest events, then fewest lost lines.
    Minimise(Minimise),
    #[command(flatten)]
    Docs(Docs),
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The trace.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) selection: Selection,
}

#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// The trace.
    pub(crate) file: PathBuf,
    /// The file for the new trace.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) selection: Selection,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// A log of `valgrind --tool=pmemcheck --log-stores=yes`.
    Pmemcheck(Pmemcheck),
}

#[derive(Debug, Args)]
pub(crate) struct Pmemcheck {
    /// The log.
    pub(crate) log: PathBuf,
    /// The file for the trace.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The model to crash it under.
    #[arg(long, value_name = "MODEL", default_value = "px86-line", value_parser = model)]
    pub(crate) model: Model,
    /// The registered file that is the region; needed if there is more than one.
    #[arg(long, value_name = "NAME")]
    pub(crate) file: Option<String>,
    /// The region's first address, in place of what was registered.
    #[arg(long, value_name = "ADDRESS", requires = "size", value_parser = number)]
    pub(crate) base: Option<u64>,
    /// The region's length in bytes.
    #[arg(long, value_name = "BYTES", requires = "base", value_parser = number)]
    pub(crate) size: Option<u64>,
    /// The contents of the region at the start: a copy of the file from before the run. Zeros by default.
    #[arg(long, value_name = "FILE")]
    pub(crate) start: Option<PathBuf>,
    /// Take this marker for the end of an operation.
    #[arg(long, value_name = "MARKER")]
    pub(crate) ack_at: Option<String>,
    /// Skip and count records of no known kind.
    #[arg(long)]
    pub(crate) skip_unknown: bool,
    /// Accept a log without an end.
    #[arg(long)]
    pub(crate) unfinished: bool,
}

/// Which crashes.
#[derive(Debug, Args)]
pub(crate) struct Crashes {
    /// The model, if not the trace's own: eadr, px86-line, px86-loc, chunk8 or page.
    #[arg(long, value_name = "MODEL", value_parser = model)]
    pub(crate) model: Option<Model>,
    /// The maximal number of images for each crash point.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) choices: u64,
    /// The maximal number of images in total. A few telling ones are tried at crash points at even distances, then at every point, before
    /// more are tried at any, so that long traces are covered from end to end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) recoveries: Option<u64>,
    /// The number of seconds after which no more images are tried. No limit by default: the progress is shown.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
}

impl Crashes {
    /// The bounds as options.
    pub(crate) fn bounds(&self) -> String {
        let recoveries = self.recoveries.map(|recoveries| format!("--recoveries {recoveries}"));
        let seconds = self.seconds.map(|seconds| format!("--seconds {seconds}"));
        match [recoveries, seconds].into_iter().flatten().collect::<Vec<_>>().as_slice() {
            [] => format!("the bound is --choices {}", self.choices),
            others => format!("the bounds are --choices {} and {}", self.choices, others.join(" and ")),
        }
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(false).args(["check", "output"]))]
pub(crate) struct Replay {
    /// The trace.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) crashes: Crashes,
    /// `all`, `recorded` for the last one in the trace, or a name such as px86-line:9f86d081:12+0. By default the recorded one, if there is
    /// one; else all.
    #[arg(long, value_name = "CRASH")]
    pub(crate) crash: Option<String>,
    /// Write the image of one crash to this file.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Save the trace with the failing crash to this file.
    #[arg(long, value_name = "FILE", requires = "check")]
    pub(crate) save: Option<PathBuf>,
    /// The command, to the end of the line. `{}` stands for the path of the image, which is appended otherwise. The command may change the
    /// image. Any exit status but 0 is a failure.
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true)]
    pub(crate) check: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Minimise {
    /// The trace. If it has no crash, a failing one is searched for.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) crashes: Crashes,
    /// The file for the new trace.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The command, to the end of the line, as for `replay`. The minimised trace fails with the same exit status, and is accepted when
    /// nothing is lost, if the whole trace is.
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true, required = true)]
    pub(crate) check: Vec<OsString>,
}

fn model(name: &str) -> Result<Model, String> {
    Model::ALL.into_iter().find(|model| model.name() == name).ok_or_else(|| {
        let names: Vec<&str> = Model::ALL.into_iter().map(Model::name).collect();
        format!("a model is one of {}", names.join(", "))
    })
}
