//! `cargo xtask bench`: runs a comparison of `pm-bench`. `cargo bench` runs its single operations.

use std::process::ExitCode;

use clap::ValueEnum;
use miette::{IntoDiagnostic, Result, WrapErr};
use xtask::apt::{self, Need};
use xtask::cargo;

/// Required to compile `alloc`, which installs the programs that it runs itself.
const PMDK: Need = Need::new("include/libpmemobj.h", "libpmemobj-dev");

/// Arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The benchmark.
    #[arg(value_enum)]
    name: Name,
    /// Fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Print the JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Fail if a ratio is below its goal.
    #[arg(long)]
    check: bool,
    /// Options of the benchmark itself; `-- --help` lists them.
    #[arg(last = true, value_name = "OPTIONS")]
    options: Vec<String>,
}

/// The benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Our persist, through the seam, against a C loop of the same instructions.
    Core,
    /// pmbd over NBD against nbdkit; in a virtual machine, over ublk against a null target, brd and loop.
    Block,
    /// pm-crashsim: the rate of crash images that are made, recovered from and checked.
    Crashsim,
    /// Allocators: wear, fragmentation and speed.
    Alloc,
    /// Durable ordered stores: single operations, against redb, LMDB and fjall.
    Btree,
    /// File systems: calls in process against tmpfs.
    Fs,
    /// Objects: loads, opens and stores, against the seam, pread, a store and a heap.
    Objects,
    /// pmbd's protections and write schemes, after the figures of PMBD's paper.
    Pmbd,
    /// Emulated memories: their accuracy, and what they do to the clients of a block device.
    Emulate,
    /// Slow and fast memories in whole systems, after the figures of Caulfield et al.; as root.
    Nvm,
    /// Replicated stores: puts and linearizable reads of three processes, against etcd.
    Replicated,
}

impl Name {
    /// The bench target of `pm-bench`.
    const fn target(self) -> &'static str {
        match self {
            // A crate cannot be called core.
            Self::Core => "seam",
            Self::Block => "block",
            Self::Crashsim => "crashsim",
            Self::Alloc => "alloc",
            Self::Btree => "btree",
            Self::Fs => "fs",
            Self::Objects => "objects",
            Self::Pmbd => "pmbd",
            Self::Emulate => "emulate",
            Self::Nvm => "nvm",
            Self::Replicated => "replicated",
        }
    }

    /// The features of `pm-bench` that it is built with.
    const fn features(self) -> &'static str {
        match self {
            Self::Alloc => "pmdk",
            Self::Core
            | Self::Block
            | Self::Crashsim
            | Self::Btree
            | Self::Fs
            | Self::Objects
            | Self::Pmbd
            | Self::Emulate
            | Self::Nvm
            | Self::Replicated => "",
        }
    }
}

/// Runs the benchmark, which writes its results to `target/bench`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.name == Name::Alloc {
        apt::ensure(&[PMDK])?;
    }
    let status = cargo::command()
        .args(["bench", "--quiet", "--package", "pm-bench", "--bench", args.name.target()])
        .args(["--features", args.name.features(), "--"])
        .args(args.quick.then_some("--quick"))
        .args(args.json.then_some("--json"))
        .args(args.check.then_some("--check"))
        .args(&args.options)
        .status()
        .into_diagnostic()
        .wrap_err("cannot run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
