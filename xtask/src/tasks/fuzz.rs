//! `cargo xtask fuzz`: runs libFuzzer on the readers of foreign data, and of corrupted stores and file systems.
//!
//! The targets are in `fuzz/`, with a few seeds each. libFuzzer writes its corpus to `fuzz/corpus` and failing inputs to `fuzz/artifacts`; git ignores
//! both.

use std::fs;
use std::process::{Command, ExitCode};

use clap::ValueEnum;
use miette::{IntoDiagnostic, Result, WrapErr, bail};
use xtask::cargo;
use xtask::process::succeeds;

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The fuzz targets [default: all].
    #[arg(value_enum)]
    targets: Vec<Target>,
    /// The number of inputs for each.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    runs: u64,
    /// The longest input, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    max_len: u32,
    /// The memory limit, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    memory: u32,
}

/// The fuzz targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Corrupted file systems.
    Fs,
    /// Corrupted pools of objects.
    Objects,
    /// Messages of other nodes.
    Peer,
    /// Trace files.
    Pmc,
    /// Logs of pmemcheck.
    Pmemcheck,
    /// Requests of Redis clients, in any parts.
    Redis,
    /// Corrupted stores.
    Store,
}

impl Target {
    /// Its name on the command line, which is also that of its program.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Runs the targets, and succeeds if none fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure_nightly()?;
    ensure_cargo_fuzz()?;
    let targets = if args.targets.is_empty() { Target::value_variants() } else { &args.targets };
    let mut all_passed = true;
    for target in targets {
        println!("\n==> {}: {} inputs", target.name(), args.runs);
        all_passed &= fuzz(*target, args)?;
    }
    Ok(if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn fuzz(target: Target, args: &Args) -> Result<bool> {
    let fuzz = cargo::root().join("fuzz");
    let corpus = fuzz.join("corpus").join(target.name());
    fs::create_dir_all(&corpus)
        .into_diagnostic()
        .wrap_err_with(|| format!("creating {}", corpus.display()))?;
    let status = rustup()
        .args(["run", "nightly", "cargo", "fuzz", "run", &target.name()])
        .args([&corpus, &fuzz.join("seeds").join(target.name())])
        .arg("--")
        .arg(format!("-runs={}", args.runs))
        .arg(format!("-max_len={}", args.max_len))
        .arg(format!("-rss_limit_mb={}", args.memory))
        .args(["-timeout=10", "-print_final_stats=1"])
        .current_dir(cargo::root())
        .status()
        .into_diagnostic()
        .wrap_err("cannot run rustup")?;
    Ok(status.success())
}

/// Installs the nightly compiler, which the sanitizers require.
fn ensure_nightly() -> Result<()> {
    if succeeds(rustup().args(["run", "nightly", "rustc", "--version"])) {
        return Ok(());
    }
    println!("installing the nightly toolchain");
    if succeeds(rustup().args(["toolchain", "install", "nightly", "--profile", "minimal"])) {
        return Ok(());
    }
    bail!("fuzzing needs a nightly compiler: rustup toolchain install nightly")
}

fn ensure_cargo_fuzz() -> Result<()> {
    if succeeds(Command::new("cargo-fuzz").arg("--version")) {
        return Ok(());
    }
    println!("installing cargo-fuzz");
    if succeeds(rustup().args(["run", "nightly", "cargo", "install", "cargo-fuzz", "--locked"])) {
        return Ok(());
    }
    bail!("fuzzing needs cargo-fuzz: cargo install cargo-fuzz, with ~/.cargo/bin in PATH")
}

/// rustup without the environment by which cargo selects this program's toolchain.
fn rustup() -> Command {
    let mut command = Command::new("rustup");
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fuzz_target_has_program_and_seeds() {
        let fuzz = cargo::root().join("fuzz");
        for target in Target::value_variants() {
            let program = fuzz.join(format!("fuzz_targets/{}.rs", target.name()));
            assert!(program.is_file(), "{}", program.display());
            let seeds = fuzz.join("seeds").join(target.name());
            assert!(
                fs::read_dir(&seeds).is_ok_and(|mut seeds| seeds.next().is_some()),
                "{}",
                seeds.display()
            );
        }
    }
}
