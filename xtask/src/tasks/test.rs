//! `cargo xtask test`: the steps of CI, on any machine. All steps run, even after one has failed; quick steps are first.
//!
//! Without `--deep` it does what shows most mistakes soon: all tests but those on a real kernel, of which one runs, and teeth only where a source file
//! has changed since a run with `--deep`. Tests of the block device in two machines run with it. It prints what it has left out.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use miette::{Report, Result};
use xtask::cargo::root;
use xtask::teeth::Baseline;

use super::steps::{Context, Output, Step};

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these steps [default: all but replicated-device, which --deep has, and fs-suites].
    #[arg(value_enum)]
    steps: Vec<Step>,
    /// All tests on a real kernel, in one guest and in two, and teeth in all files; if all steps pass, list these files in .ci/teeth.
    #[arg(long)]
    deep: bool,
}

impl Args {
    /// The steps that were named, or those that run by default.
    fn wanted(&self) -> Vec<Step> {
        let wanted = |step: &Step| match self.steps.is_empty() {
            true => step.left_out(self.deep).is_none(),
            false => self.steps.contains(step),
        };
        Step::value_variants().iter().copied().filter(wanted).collect()
    }

    /// The steps that run only on request, and what they are, unless steps were named.
    fn left_out(&self) -> Vec<(Step, &'static str)> {
        let left_out = |step: &Step| Some((*step, step.left_out(self.deep)?));
        let steps = Step::value_variants().iter().filter_map(left_out);
        if self.steps.is_empty() { steps.collect() } else { Vec::new() }
    }
}

/// The result of a step.
#[derive(Debug)]
struct Outcome {
    step: Step,
    /// What has run, and what was left out.
    result: Result<String>,
    took: Duration,
}

/// Runs the steps, prints a table of their results, and succeeds if all have passed.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let steps = args.wanted();
    let context = Context::new(args.deep);
    let outcomes: Vec<Outcome> =
        schedule(&steps).into_iter().flat_map(|(step, beside)| together(step, &beside, &context)).collect();
    if outcomes.len() > 1 {
        println!("\n{} in {:.1} s", table(&outcomes), start.elapsed().as_secs_f64());
    }
    for (step, what) in args.left_out() {
        println!("left out: {}, {what}", step.name());
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.result.is_err()) {
        println!("this step alone: ./x test {}", outcome.step.name());
    }
    let all_passed = outcomes.iter().all(|outcome| outcome.result.is_ok());
    if all_passed && let Some(files) = context.tried() {
        Baseline::write(root(), files)?;
    }
    Ok(if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The steps in their order, each with those that run beside it.
fn schedule(steps: &[Step]) -> Vec<(Step, Vec<Step>)> {
    let runs_beside = |step: &Step| step.beside().filter(|main| steps.contains(main));
    let main = steps.iter().filter(|step| runs_beside(step).is_none());
    let beside =
        |main: &Step| steps.iter().copied().filter(|step| runs_beside(step) == Some(*main)).collect();
    main.map(|step| (*step, beside(step))).collect()
}

/// Runs a step with inherited output, and beside it others one after the other, whose output is printed at their ends.
fn together(step: Step, beside: &[Step], context: &Context) -> Vec<Outcome> {
    thread::scope(|scope| {
        let others = scope.spawn(|| -> Vec<Outcome> {
            beside.iter().map(|step| attempt(*step, context, &Output::captured())).collect()
        });
        let mut outcomes = vec![attempt(step, context, &Output::Inherited)];
        outcomes.extend(others.join().expect("a step does not panic"));
        outcomes
    })
}

fn attempt(step: Step, context: &Context, output: &Output) -> Outcome {
    let title = format!("\n==> {}: {}", step.name(), step.about());
    if matches!(output, Output::Inherited) {
        println!("{title}");
    }
    let start = Instant::now();
    let printed = step.run(context, output).and_then(|note| Ok((note, output.text()?)));
    let (result, text) = match printed {
        Ok((note, text)) => (Ok(note), text),
        Err(report) => (Err(report), output.text().unwrap_or_default()),
    };
    let outcome = Outcome { step, result, took: start.elapsed() };
    let report = outcome.result.as_ref().err().map(|report: &Report| format!("{report:?}\n"));
    let end = format!("{}<== {}", report.unwrap_or_default(), outcome.line());
    match output {
        Output::Inherited => println!("{end}"),
        Output::Captured(_) => println!("{title}\n{text}{end}"),
    }
    outcome
}

impl Outcome {
    fn line(&self) -> String {
        let (result, note) = match &self.result {
            Ok(note) => ("ok", note.as_str()),
            Err(_) => ("FAILED", ""),
        };
        let line = format!("{:<17} {result:<8}{:>7.1} s  {note}", self.step.name(), self.took.as_secs_f64());
        line.trim_end().to_owned()
    }
}

/// A line for each outcome, and their number.
fn table(outcomes: &[Outcome]) -> String {
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let lines: String = outcomes.iter().map(|outcome| outcome.line() + "\n").collect();
    let (good, all) = (outcomes.len() - failed, outcomes.len());
    format!("{lines}{good} of {all} steps passed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn steps(arguments: &[&str]) -> Option<Vec<Step>> {
        Cli::try_parse_from([&["test"], arguments].concat()).ok().map(|cli| cli.args.steps)
    }

    #[test]
    fn steps_are_chosen_by_name() {
        assert_eq!(steps(&[]), Some(vec![]));
        assert_eq!(steps(&["tidy", "clippy"]), Some(vec![Step::Tidy, Step::Clippy]));
        assert_eq!(steps(&["vm"]), None);
        for &step in Step::value_variants() {
            assert_eq!(steps(&[&step.name()]), Some(vec![step]));
        }
    }

    #[test]
    fn default_steps_and_those_left_out_are_all() {
        for deep in [false, true] {
            let mut args = Args { steps: vec![], deep };
            let left_out = args.left_out();
            assert_eq!(args.wanted().len() + left_out.len(), Step::value_variants().len());
            assert!(left_out.iter().any(|(step, _)| *step == Step::FsSuites));
            assert_eq!(left_out.iter().any(|(step, _)| *step == Step::ReplicatedDevice), !deep);
            args.steps = vec![Step::ReplicatedDevice];
            assert_eq!((args.wanted(), args.left_out()), (vec![Step::ReplicatedDevice], vec![]));
        }
    }

    #[test]
    fn step_runs_beside_another_only_if_that_runs() {
        let both = schedule(&[Step::Tests, Step::Kernel, Step::Loom, Step::Teeth]);
        assert_eq!(both, [(Step::Tests, vec![Step::Loom]), (Step::Kernel, vec![Step::Teeth])]);
        assert_eq!(schedule(&[Step::Tidy, Step::Teeth]), [(Step::Tidy, vec![]), (Step::Teeth, vec![])]);
    }

    #[test]
    fn table_counts_failed_steps() {
        let outcome = |step, result| Outcome { step, result, took: Duration::from_millis(1500) };
        let outcomes = [
            outcome(Step::Kernel, Ok("1 of 25 tests".to_owned())),
            outcome(Step::Docs, Err(miette::miette!("no"))),
        ];
        assert_eq!(
            table(&outcomes),
            "kernel            ok          1.5 s  1 of 25 tests\ndocs              FAILED      1.5 s\n1 of 2 steps passed"
        );
    }
}
