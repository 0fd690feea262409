//! `cargo xtask <task>`: the project's tasks, one file each in `tasks/`.

#![forbid(unsafe_code)]

mod tasks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run a benchmark, and print the ratios to rivals.
    Bench(tasks::bench::Args),
    /// Fuzz the readers of trace files and logs.
    Fuzz(tasks::fuzz::Args),
    /// Run the steps of CI, or some of them.
    Test(tasks::test::Args),
    /// Remove each flush and fence in turn, and expect a test to fail.
    Teeth(tasks::teeth::Args),
    /// Check the house rules: unsafe code, durability points, format documents, heads, imports, links, words.
    Tidy,
    /// Demonstrate a disk in persistent memory with file systems of a real kernel, in a minute.
    Demo,
    /// Demonstrate a file system in persistent memory: a clone, builds, and the kill of its server.
    FsDemo,
    /// Boot a real kernel with persistent memory, and run a command or a shell in it.
    Vm(tasks::vm::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Bench(args) => tasks::bench::run(&args),
        Task::Fuzz(args) => tasks::fuzz::run(&args),
        Task::Test(args) => tasks::test::run(&args),
        Task::Teeth(args) => tasks::teeth::run(&args),
        Task::Tidy => tasks::tidy::run(),
        Task::Demo => tasks::demo::run(),
        Task::FsDemo => tasks::fs_demo::run(),
        Task::Vm(args) => tasks::vm::run(args),
    };
    outcome.unwrap_or_else(|report| {
        eprintln!("{report:?}");
        ExitCode::FAILURE
    })
}
