//! `pmcrash import`

use crate::args::Pmemcheck;
use crate::io::{answer, are_the_same, chain, image, save};
use miette::{Context as _, IntoDiagnostic as _, bail, miette};
use pm_crashsim::import::{self, ImportError, PmemcheckOptions};
use serde_json::json;
use std::fs::File;
use std::io::BufReader;

/// `pmcrash import pmemcheck`
pub(crate) fn pmemcheck(args: &Pmemcheck, json: bool) -> miette::Result<()> {
    for (what, read) in [("the log", Some(&args.log)), ("the start", args.start.as_ref())] {
        if read.is_some_and(|read| are_the_same(read, &args.output)) {
            bail!("the trace would be written over {what}, {}", args.output.display());
        }
    }
    let mut options =
        PmemcheckOptions::new().model(args.model).skip_unknown(args.skip_unknown).unfinished(args.unfinished);
    if let Some(file) = &args.file {
        options = options.file(file);
    }
    if let (Some(base), Some(size)) = (args.base, args.size) {
        options = options.region(base, size);
    }
    if let Some(start) = &args.start {
        options = options.start(image(start)?);
    }
    if let Some(marker) = &args.ack_at {
        options = options.ack_at(marker);
    }
    let log = File::open(&args.log).into_diagnostic().wrap_err_with(|| args.log.display().to_string())?;
    let imported = import::pmemcheck(BufReader::new(log), &options).map_err(|error| {
        let text = format!("{}: {}", args.log.display(), chain(&error));
        match help(&error) {
            Some(help) => miette!(help = help, "{text}"),
            None => miette!("{text}"),
        }
    })?;
    save(&imported.file, &args.output)?;
    let tally = imported.tally;
    let value = || {
        json!({
            "output": args.output.to_string_lossy(),
            "region_bytes": imported.file.start().len_bytes(),
            "stores": tally.stores,
            "flushes": tally.flushes,
            "fences": tally.fences,
            "acks": tally.acks,
            "markers": tally.markers,
            "stores_outside": tally.stores_outside,
            "flushes_outside": tally.flushes_outside,
            "unknown": tally.unknown,
        })
    };
    answer(json, value, || format!("{}: {tally}", args.output.display()));
    Ok(())
}

const fn help(error: &ImportError) -> Option<&'static str> {
    match error {
        ImportError::NoStart => {
            Some("make the log with valgrind --tool=pmemcheck --log-stores=yes --log-file=LOG")
        }
        ImportError::SeveralStarts { .. } => {
            Some("valgrind --log-file=run.%p.log gives each process a log of its own")
        }
        ImportError::NoStop { .. } => Some("--unfinished accepts it"),
        ImportError::NoRegion => Some("--base and --size set the addresses of the region"),
        ImportError::SeveralFiles { .. } => Some("--file chooses"),
        ImportError::Record { error: import::RecordError::Unknown, .. } => {
            Some("--skip-unknown skips and counts it")
        }
        ImportError::Unaligned { .. } => {
            Some("map the file at an address that is a multiple of 64, or choose --base so")
        }
        ImportError::TooLarge { .. } => Some("--base and --size choose a part of it"),
        _ => None,
    }
}
