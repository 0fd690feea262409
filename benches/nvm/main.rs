//! What slow and fast memories do to whole systems: the figures of Caulfield et al., "Understanding the Impact of Emerging Non-Volatile
//! Memories on High-Performance, IO-Intensive Computing" (SC 2010), on emulated technologies.
//!
//! The process that is started only supervises: it starts itself once more as the worker, and takes down what the worker has set up, however that ends.

mod bandwidth;
mod bpf;
mod charts;
mod client;
mod evaluation;
mod export;
mod files;
mod latency;
mod on;
mod paging;
mod programs;
mod queued;
mod supervisor;
mod zram;

use clap::Parser;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, ensure, miette};
use pm_bench::Cli;
use pm_bench::nvm::figures;
use pm_bench::nvm::technology::Technologies;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xtask::{apt, cargo};

/// Of a device in memory, its page cache, and the programs on it.
const NEEDED_BYTES: u64 = 3 << 30;

/// Figures on emulated memories.
#[derive(Debug, Parser)]
#[command(name = "nvm", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    cli: Cli,
    /// Also evaluate the technologies of this TOML file; its format is that of benches/nvm/technologies.toml.
    #[arg(long, value_name = "FILE")]
    technologies: Option<PathBuf>,
    /// Evaluate only these technologies [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure only these figures of 4 to 10, or "files": Postmark, Patch and Build [default: all, and single properties of the paths].
    #[arg(long, value_name = "FIGURES", value_delimiter = ',', value_parser = evaluation::FIGURES)]
    figures: Vec<String>,
    /// Also write the paper's numbers, ours beside them, into this Markdown file. A relative path is below the root of the repository.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Run COMMAND on XFS on each of these technologies, in place of the figures.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "command")]
    on: Vec<String>,
    /// The input of a shell in the root directory of a new file system.
    #[arg(value_name = "COMMAND", requires = "on")]
    command: Option<String>,
    /// Before each run of COMMAND, run this without delay, and do not measure it.
    #[arg(long, value_name = "COMMAND", requires = "on")]
    prepare: Option<String>,
    /// Take down what a killed run has left, and do nothing else.
    #[arg(long)]
    clean: bool,
    /// Be the program that pages, with an array of so many bytes.
    #[arg(long, value_name = "BYTES", hide = true)]
    thrash: Option<u64>,
    /// The control group of that program.
    #[arg(long, value_name = "DIR", hide = true)]
    group: Option<PathBuf>,
    /// Be another program under measurement: its name, and its arguments.
    #[arg(long, value_name = "PROGRAM", num_args = 1.., hide = true)]
    serve: Vec<String>,
    /// Do the work, for the supervisor.
    #[arg(long, hide = true)]
    worker: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if let Some(bytes) = options.thrash {
        return paging::serve(bytes, options.group.as_deref());
    }
    if let [program, arguments @ ..] = &options.serve[..] {
        return serve(program, arguments);
    }
    if options.clean {
        return supervisor::clean();
    }
    // Everything that the user has given is checked before anything is set up.
    let technologies = technologies(&options)?;
    // Cargo runs benchmarks in the directory of their package.
    let document = options.document.map(|path| cargo::root().join(path));
    if let Some(path) = &document {
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    }
    let free = available_bytes()?;
    ensure!(
        free >= NEEDED_BYTES,
        "{} MB of memory are available; the devices in memory need {} MB",
        free / 1_000_000,
        NEEDED_BYTES / 1_000_000
    );
    let chosen: Result<Vec<_>, _> = options.on.iter().map(|name| technologies.get(name)).collect();
    let chosen = chosen.into_diagnostic()?;
    if options.command.is_some() {
        let missing = zram::Zram::missing().or_else(export::Export::missing);
        ensure!(missing.is_none(), "{}", missing.unwrap_or_default());
        apt::ensure(&evaluation::NEEDS)?;
    }
    let chosen_cells = evaluation::Chosen { technologies: options.only, figures: options.figures };
    if options.worker {
        if let Some(command) = options.command {
            let program = on::Program { command, prepare: options.prepare };
            return on::run(&options.cli, &chosen, &program);
        }
        return evaluation::run(&options.cli, &technologies, &chosen_cells, document.as_deref());
    }
    supervisor::run()
}

/// Is a program under measurement.
fn serve(program: &str, arguments: &[String]) -> Result<ExitCode> {
    match (program, arguments) {
        ("postmark", [directory]) => programs::serve_postmark(directory.as_ref()),
        (query, [directory]) if figures::QUERIES.contains(&query) => {
            programs::serve_postgres(query, directory.as_ref())
        }
        ("patch", [tree, patches]) => programs::serve_patch(tree.as_ref(), patches.as_ref()),
        (kernel, groups @ ([] | [_])) => paging::serve_kernel(kernel, groups.first().map(Path::new)),
        _ => Err(miette!("{program} has other arguments than {arguments:?}")),
    }
}

/// The memory that programs can have, as the kernel estimates it.
fn available_bytes() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).into_diagnostic().wrap_err(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| miette!("{path} has no MemAvailable"))
}

fn technologies(options: &Options) -> Result<Technologies> {
    let mut technologies = Technologies::built_in();
    if let Some(path) = &options.technologies {
        let text = std::fs::read_to_string(path).into_diagnostic();
        let text = text.wrap_err_with(|| path.display().to_string())?;
        let more = Technologies::parse(&path.display().to_string(), &text).into_diagnostic()?;
        technologies.extend(more);
    }
    for name in &options.only {
        technologies.get(name).into_diagnostic()?;
    }
    Ok(technologies)
}
