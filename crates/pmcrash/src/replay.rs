//! `pmcrash replay`

use crate::args::{Crashes, Replay};
use crate::check::{Check, Failed, REJECTED, explore, explorer, most_images, open};
use crate::io::{answer, progress, save, say, write_image};
use miette::{Context as _, IntoDiagnostic as _, bail, miette};
use pm_crashsim::{Crash, Explorer, Failure, Image, TraceFile};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// The crashes to replay.
enum Which<'a> {
    All,
    /// The last one in the trace.
    Recorded,
    Named(&'a str),
}

/// `pmcrash replay`
pub(crate) fn run(args: &Replay, json: bool) -> miette::Result<ExitCode> {
    let file = open(&args.file, &args.crashes)?;
    let which = match args.crash.as_deref() {
        None if file.crashes().is_empty() => Which::All,
        None | Some("recorded") => Which::Recorded,
        Some("all") => Which::All,
        Some(name) => Which::Named(name),
    };
    match (&args.output, which) {
        (Some(_), Which::All) => bail!(
            help = "--crash names one, as `replay --check` does when it finds one that fails",
            "an image is written of one crash, and {} has none",
            args.file.display()
        ),
        (Some(output), Which::Recorded) => image(&recorded(&file, &args.file)?, output, json),
        (Some(output), Which::Named(name)) => image(&named(&file, name, &args.crashes)?, output, json),
        (None, Which::Recorded) => check_one(args, &recorded(&file, &args.file)?, json),
        (None, which) => check_many(args, &file, &which, json),
    }
}

/// The image of the last crash in the trace.
fn recorded(file: &TraceFile, path: &Path) -> miette::Result<Image> {
    let crash = file.crashes().last().ok_or_else(|| {
        miette!(help = "--crash all tries all", "{} has no crash under this model", path.display())
    })?;
    crash.image().into_diagnostic().wrap_err_with(|| path.display().to_string())
}

/// The image of the crash with that name.
fn named(file: &TraceFile, name: &str, crashes: &Crashes) -> miette::Result<Image> {
    let explorer = replaying(file, name, crashes)?;
    let found = Mutex::new(None);
    let look = |crash: &Crash<'_, ()>| {
        *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(crash.pmem().to_image());
    };
    explorer.explore_trace(file, look).map_err(|failure| miette!("{}", failure.message))?;
    let image = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    image.ok_or_else(|| miette!("the trace has no crash {name}"))
}

fn replaying(file: &TraceFile, name: &str, crashes: &Crashes) -> miette::Result<Explorer> {
    explorer(file, crashes).try_replay(name).ok_or_else(|| {
        miette!(
            help = "a name looks like px86-line:9f86d081:12+0; `recorded` and `all` are others",
            "{name:?} names no crash under {}",
            file.model()
        )
    })
}

fn image(image: &Image, output: &Path, json: bool) -> miette::Result<ExitCode> {
    write_image(image, output).into_diagnostic().wrap_err_with(|| format!("writing {}", output.display()))?;
    let (output, len_bytes) = (output.display(), image.len_bytes());
    answer(
        json,
        || json!({ "output": output.to_string(), "region_bytes": len_bytes }),
        || format!("{output}: {len_bytes} bytes"),
    );
    Ok(ExitCode::SUCCESS)
}

/// Runs the command on one image.
fn check_one(args: &Replay, image: &Image, json: bool) -> miette::Result<ExitCode> {
    let check = Check::new(&args.check, progress(1, "checking"))?;
    let failed = check.run(image)?;
    check.finish();
    let message = failed.as_ref().map(Failed::message);
    let text = || match &message {
        Some(message) => format!("the recorded crash: rejected, {message}"),
        None => "the recorded crash: accepted".to_owned(),
    };
    answer(json, || json!({ "crash": "recorded", "rejected": message.is_some(), "message": message }), text);
    Ok(if message.is_some() { ExitCode::from(REJECTED) } else { ExitCode::SUCCESS })
}

/// Runs the command on one image after the other, until it rejects one.
fn check_many(args: &Replay, file: &TraceFile, which: &Which<'_>, json: bool) -> miette::Result<ExitCode> {
    let explorer = match which {
        Which::Named(name) => replaying(file, name, &args.crashes)?,
        _ => explorer(file, &args.crashes),
    };
    let most = if matches!(which, Which::Named(_)) { 1 } else { most_images(file, &args.crashes) };
    match explore(&explorer, file, &args.check, most)? {
        Ok(coverage) => {
            if json {
                let exhaustive = coverage.is_exhaustive();
                say(json!({ "rejected": false, "images": coverage.recoveries(), "exhaustive": exhaustive,
                    "choices": args.crashes.choices, "recoveries": args.crashes.recoveries,
                    "coverage": coverage.to_string() }));
            } else {
                let tried = coverage.levels.first().copied().unwrap_or_default();
                say(match coverage.is_exhaustive() {
                    true => format!("every image was accepted: {tried}"),
                    false => {
                        format!("every image of a sample was accepted: {tried}; {}", args.crashes.bounds())
                    }
                });
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) if failure.crashes.is_empty() => Err(miette!("{}", failure.message)),
        Err(failure) => {
            if let (Some(path), Some(trace)) = (&args.save, TraceFile::from_failure(&failure)) {
                save(&trace, path)?;
            }
            tell(&failure, args, json);
            Ok(ExitCode::from(REJECTED))
        }
    }
}

fn tell(failure: &Failure, args: &Replay, json: bool) {
    let saved = args.save.as_ref().map(|path| path.to_string_lossy());
    if json {
        say(json!({
            "rejected": true,
            "message": failure.message,
            "crash": failure.replay,
            "images": failure.coverage.recoveries(),
            "saved": saved,
        }));
        return;
    }
    say(format_args!("an image was rejected: {}", failure.message));
    for crash in &failure.crashes {
        say(crash);
    }
    if let Some(name) = &failure.replay {
        say(format_args!(
            "  --crash {name} repeats it, and `pmcrash minimise` shortens the trace; {} images were tried",
            failure.coverage.recoveries()
        ));
    }
    if let Some(saved) = saved {
        say(format_args!("  {saved} has it"));
    }
}
