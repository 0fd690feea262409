//! `cargo xtask <task>`: the project's own tasks, one file each under `tasks/`.

#![forbid(unsafe_code)]

mod tasks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure, and print ratios: ours against theirs.
    Bench(tasks::bench::Args),
    /// Try random bytes on what reads trace files and logs.
    Fuzz(tasks::fuzz::Args),
    /// Run everything that CI runs, or some steps of it.
    Test(tasks::test::Args),
    /// Take away each flush and fence in turn, and expect a test to fail.
    Teeth(tasks::teeth::Args),
    /// Check the house rules: unsafe code, durability points, format documents, heads, imports, links, words.
    Tidy,
    /// A disk in persistent memory, with a real kernel's file systems on it, in a minute.
    Demo(tasks::demo::Args),
    /// Boot a real kernel with persistent memory, run one command or a shell in it.
    Vm(tasks::vm::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Bench(args) => tasks::bench::run(&args),
        Task::Fuzz(args) => tasks::fuzz::run(&args),
        Task::Test(args) => tasks::test::run(&args),
        Task::Teeth(args) => tasks::teeth::run(&args),
        Task::Tidy => tasks::tidy::run(),
        Task::Demo(args) => tasks::demo::run(&args),
        Task::Vm(args) => tasks::vm::run(args),
    };
    outcome.unwrap_or_else(|report| {
        eprintln!("{report:?}");
        ExitCode::FAILURE
    })
}
