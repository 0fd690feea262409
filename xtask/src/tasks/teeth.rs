//! `cargo xtask teeth`: removes each flush and fence in turn, and expects a test to fail.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use miette::{Result, miette};
use serde_json::json;
use xtask::cargo::root;
use xtask::programs::{Package, Program, packages};
use xtask::teeth::{Campaign, Listed, Selection};

/// Arguments of `cargo xtask teeth`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// The crates, whose own tests and code are used [default: all that use pm-crashsim].
    #[arg(value_name = "CRATE")]
    crates: Vec<String>,
    /// Only sites in files whose path contains this; may be repeated.
    #[arg(long = "file", value_name = "PART")]
    files: Vec<String>,
    /// Only list the sites, with the tests that execute each.
    #[arg(long)]
    list: bool,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
}

/// Prints the sites whose removal no test detects, and succeeds if there are none.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let packages = selected(packages(root())?, &args.crates)?;
    let selection = match &args.files[..] {
        [] => Selection::All,
        files => Selection::Containing(files.to_vec()),
    };
    let bar = bar();
    let progress = |what: &str, done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(what.to_owned());
    };
    let campaign = Campaign::new(root(), &packages, &selection, &progress)?;
    if args.list {
        bar.finish_and_clear();
        print_list(campaign.list(), args.json);
        return Ok(ExitCode::SUCCESS);
    }
    let report = campaign.run(&progress)?;
    bar.finish_and_clear();
    match args.json {
        true => println!("{:#}", report.to_json()),
        false => println!("{report}"),
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The crates of these names, or all that use the simulator if `names` is empty.
fn selected(mut all: Vec<Package>, names: &[String]) -> Result<Vec<Package>> {
    if names.is_empty() {
        all.retain(|package| package.can_simulate);
        return Ok(all);
    }
    let named = |name: &String| {
        let package = all.iter().find(|package| package.name == *name).cloned();
        package.ok_or_else(|| miette!("there is no crate {name} in the workspace"))
    };
    names.iter().map(named).collect()
}

fn print_list<'a>(sites: impl Iterator<Item = Listed<'a>>, json: bool) {
    if json {
        let entry = |listed: Listed<'_>| {
            let test = |(program, name): &(&Program, &str)| json!({"program": program.source, "test": name});
            let tests: Vec<_> = listed.tests.iter().map(test).collect();
            let (package, site) = (&listed.package.name, listed.site.to_string());
            json!({"package": package, "site": site, "tests": tests, "set_aside": listed.set_aside})
        };
        println!("{:#}", json!(sites.map(entry).collect::<Vec<_>>()));
        return;
    }
    for listed in sites {
        let tests: Vec<&str> = listed.tests.iter().map(|(_, name)| *name).collect();
        let set_aside = listed.set_aside.map(|reason| format!("  // {reason}")).unwrap_or_default();
        println!("{}  {}{set_aside}", listed.site, tests.join(" "));
    }
}

/// On standard error, if that is a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {pos}/{len} {elapsed} {wide_msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    // Cleared after an error too.
    let bar = ProgressBar::new(0).with_style(style).with_finish(ProgressFinish::AndClear);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
