//! The commands of `pm object` on single objects and on all.

use super::args::{Export, Get, Ls, Mv, ObjectCommand, Pin, PinTier, Put, Rm, Sized, Stat, Target};
use super::failure::Failure;
use super::import;
use super::pool::{self, close, open, open_unchanged};
use crate::findings::{CORRUPTED, end_with_corruption};
use crate::report::{bytes, count, field, say};
use miette::{Context as _, IntoDiagnostic as _, miette};
use pm_objects::{Contents, Hints, Locality, Object, ObjectError, ObjectsOptions, Tier};
use serde_json::{Value as Json, json};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

/// The bytes that are copied at once.
const COPY_BYTES: u64 = 1 << 20;

/// Runs a command. A command that finds corruption prints the error and returns the exit code for it.
pub(crate) fn run(command: &ObjectCommand, json: bool) -> miette::Result<ExitCode> {
    let result = match command {
        ObjectCommand::Create(args) => create(args, json),
        ObjectCommand::Import(args) => import::run(args, json),
        ObjectCommand::Export(args) => export(args, json),
        ObjectCommand::Ls(args) => ls(args, json),
        ObjectCommand::Get(args) => get(args),
        ObjectCommand::Put(args) => put(args, json),
        ObjectCommand::Rm(args) => rm(args, json),
        ObjectCommand::Mv(args) => mv(args, json),
        ObjectCommand::Pin(args) => pin(args, json),
        ObjectCommand::Stat(args) => stat(args, json),
        ObjectCommand::Check(args) => return check(args, json),
    };
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(report) if is_corruption(&report) => Ok(end_with_corruption(&report, json)),
        Err(report) => Err(report),
    }
}

fn is_corruption(report: &miette::Report) -> bool {
    report.downcast_ref::<Failure>().is_some_and(|failure| failure.corruption().is_some())
}

fn create(args: &Sized, json: bool) -> miette::Result<()> {
    let path = &args.file;
    close(pool::create(path, args.size, args.file_size, ObjectsOptions::new())?, path)?;
    describe(path, json)
}

/// Writes the contents of an object.
fn copy(object: &Object<u8>, path: &Path, name: &str, out: &mut dyn Write) -> miette::Result<()> {
    let mut start = 0;
    while start < object.len() {
        let len = COPY_BYTES.min(object.len() - start);
        let mut buffer = vec![0; usize::try_from(len).expect("a part is short")];
        object.read(start, &mut buffer).map_err(Failure::of(path, name))?;
        out.write_all(&buffer).into_diagnostic().wrap_err_with(|| format!("writing object {name:?}"))?;
        start += len;
    }
    out.flush().into_diagnostic().wrap_err_with(|| format!("writing object {name:?}"))
}

fn get(args: &Get) -> miette::Result<()> {
    let objects = open_unchanged(&args.file)?;
    let object = objects.open_bytes(&args.name).map_err(Failure::of(&args.file, &args.name))?;
    match &args.output {
        Some(path) => {
            let mut out = create_file(path)?;
            copy(&object, &args.file, &args.name, &mut out)
        }
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            match copy(&object, &args.file, &args.name, &mut out) {
                // The reader has read enough.
                Err(error) if is_broken_pipe(&error) => Ok(()),
                copied => copied,
            }
        }
    }
}

fn is_broken_pipe(error: &miette::Report) -> bool {
    let is_one = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_one))
}

fn create_file(path: &Path) -> miette::Result<File> {
    File::create(path).into_diagnostic().wrap_err_with(|| path.display().to_string())
}

fn put(args: &Put, json: bool) -> miette::Result<()> {
    let (path, name) = (&args.file, &args.name);
    let objects = open(path)?;
    let object = if args.input.as_os_str() == "-" {
        // Its length is known at its end.
        let mut contents = Vec::new();
        io::stdin().lock().read_to_end(&mut contents).into_diagnostic().wrap_err("standard input")?;
        objects.replace(name, Contents::Slice(&contents))
    } else {
        let input = || args.input.display().to_string();
        let mut file = File::open(&args.input).into_diagnostic().wrap_err_with(input)?;
        let len = file.metadata().into_diagnostic().wrap_err_with(input)?.len();
        objects.replace::<u8>(name, Contents::Read(len, &mut file))
    };
    let len = object.map_err(Failure::of(path, name))?.len();
    close(objects, path)?;
    if json {
        say(json!({ "path": path.to_string_lossy(), "name": name, "len": len }));
    } else {
        say(format_args!("{}: object {name:?}: {}", path.display(), bytes(len)));
    }
    Ok(())
}

fn rm(args: &Rm, json: bool) -> miette::Result<()> {
    let path = &args.file;
    let objects = open(path)?;
    for name in &args.names {
        objects.delete(name).map_err(Failure::of(path, name))?;
        if json {
            say(json!({ "path": path.to_string_lossy(), "name": name, "deleted": true }));
        } else {
            say(format_args!("{}: object {name:?}: deleted", path.display()));
        }
    }
    Ok(close(objects, path)?)
}

fn mv(args: &Mv, json: bool) -> miette::Result<()> {
    let (path, from, to) = (&args.file, &args.from, &args.to);
    let objects = open(path)?;
    objects.rename(from, to).map_err(|error| match error {
        ObjectError::Exists => Failure::of(path, to)(error),
        error => Failure::of(path, from)(error),
    })?;
    close(objects, path)?;
    if json {
        say(json!({ "path": path.to_string_lossy(), "from": from, "to": to }));
    } else {
        say(format_args!("{}: object {from:?}: renamed to {to:?}", path.display()));
    }
    Ok(())
}

fn ls(args: &Ls, json: bool) -> miette::Result<()> {
    let path = &args.file;
    let objects = open_unchanged(path)?;
    for name in objects.list(&args.prefix) {
        let name = name.map_err(Failure::of_all(path))?;
        let has_reader = if args.long {
            let len = objects.open_bytes(&name).map_err(Failure::of(path, &name))?.len();
            if json {
                pm_cli_common::tell(json!({ "name": name, "len": len }))
            } else {
                pm_cli_common::tell(format_args!("{len:>12} {name}"))
            }
        } else if json {
            pm_cli_common::tell(json!({ "name": name }))
        } else {
            pm_cli_common::tell(&name)
        };
        if !has_reader {
            break;
        }
    }
    Ok(())
}

/// The file of an object. `None` if the name would lead out of the directory, or is the name of no file.
fn file_of(dir: &Path, name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let is_normal = path.components().all(|part| matches!(part, Component::Normal(_)));
    let is_its_own = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    (is_normal && is_its_own).then(|| dir.join(path))
}

fn export(args: &Export, json: bool) -> miette::Result<()> {
    let path = &args.file;
    let objects = open_unchanged(path)?;
    fs::create_dir_all(&args.dir).into_diagnostic().wrap_err_with(|| args.dir.display().to_string())?;
    let mut exported = 0;
    let mut refused = Vec::new();
    for name in objects.list(&args.prefix) {
        let name = name.map_err(Failure::of_all(path))?;
        let Some(file) = file_of(&args.dir, &name) else {
            refused.push(name);
            continue;
        };
        let object = objects.open_bytes(&name).map_err(Failure::of(path, &name))?;
        let parent = file.parent().unwrap_or(&args.dir);
        fs::create_dir_all(parent).into_diagnostic().wrap_err_with(|| parent.display().to_string())?;
        copy(&object, path, &name, &mut create_file(&file)?)?;
        exported += 1;
    }
    if json {
        say(json!({ "path": path.to_string_lossy(), "exported": exported, "refused": refused }));
    } else {
        say(format_args!("{}: {} exported", path.display(), count(exported, "object", "objects")));
    }
    match refused.first() {
        None => Ok(()),
        Some(name) => Err(miette!(
            help = "`pm object get` writes such an object to a file of any name",
            "{} not exported, whose names are no paths below a directory: {name:?}{}",
            count(refused.len() as u64, "object was", "objects were"),
            if refused.len() > 1 { " and others" } else { "" }
        )),
    }
}

fn pin(args: &Pin, json: bool) -> miette::Result<()> {
    let (path, name) = (&args.file, &args.name);
    let objects = open(path)?;
    let object = objects.open_bytes(name).map_err(Failure::of(path, name))?;
    let pinned = match args.tier {
        PinTier::Pool => object.pin(Tier::Pool),
        PinTier::File => object.pin(Tier::File),
        PinTier::None => object.unpin(),
    };
    pinned.map_err(Failure::of(path, name))?;
    drop(object);
    close(objects, path)?;
    stat(&Stat { file: path.clone(), name: Some(name.clone()) }, json)
}

/// The words for what placement is told of an object.
fn words(hints: Hints) -> (Option<&'static str>, Option<&'static str>) {
    let pinned = hints.pinned().map(|tier| match tier {
        Tier::Dram => "dram",
        Tier::Pool => "pool",
        Tier::File => "file",
    });
    let locality = match hints.expected() {
        Locality::Unknown => None,
        Locality::Hot => Some("hot"),
        Locality::Cold => Some("cold"),
    };
    (pinned, locality)
}

fn stat(args: &Stat, json: bool) -> miette::Result<()> {
    let path = &args.file;
    let Some(name) = &args.name else { return describe(path, json) };
    let objects = open_unchanged(path)?;
    let stat = objects.stat(name).map_err(Failure::of(path, name))?;
    let (pinned, locality) = words(stat.hints);
    if json {
        say(json!({
            "path": path.to_string_lossy(), "name": name, "number": stat.number, "layout": format!("{:016x}", stat.layout),
            "element_bytes": stat.element_bytes, "len": stat.len, "chunks": stat.chunks, "pinned": pinned,
            "locality": locality,
        }));
        return Ok(());
    }
    say(format_args!("{}: object {name:?}", path.display()));
    field("length", bytes(stat.len * u64::from(stat.element_bytes)));
    let elements = count(stat.len, "element", "elements");
    field(
        "type",
        format_args!("{elements} of {} bytes with layout {:016x}", stat.element_bytes, stat.layout),
    );
    field("chunks", stat.chunks);
    pinned.into_iter().for_each(|tier| field("pinned", tier));
    locality.into_iter().for_each(|locality| field("locality", locality));
    Ok(())
}

/// Prints the properties of all objects together.
fn describe(path: &Path, json: bool) -> miette::Result<()> {
    let objects = open_unchanged(path)?;
    let stats = objects.stats().map_err(Failure::of_all(path))?;
    if json {
        say(json!({
            "path": path.to_string_lossy(), "objects": stats.objects, "pool_bytes": stats.pool_bytes,
            "slab_bytes": stats.slab_bytes, "chunk_bytes": stats.chunk_bytes,
            "file_bytes": stats.file_bytes, "file_used_bytes": stats.file_used_bytes,
        }));
        return Ok(());
    }
    say(format_args!("{}: {}", path.display(), count(stats.objects, "object", "objects")));
    let (chunks, slabs, pool) = (bytes(stats.chunk_bytes), bytes(stats.slab_bytes), bytes(stats.pool_bytes));
    field("space", format_args!("{chunks} in chunks, of {slabs} in slabs, in a pool of {pool}"));
    if stats.file_bytes != 0 {
        let (used, file) = (bytes(stats.file_used_bytes), bytes(stats.file_bytes));
        field("file", format_args!("{used} in chunks, of {file}"));
    }
    Ok(())
}

fn check(args: &Target, json: bool) -> miette::Result<ExitCode> {
    let path = &args.file;
    let (objects, problems) = match open_unchanged(path) {
        Ok(objects) => {
            let report = objects.check().map_err(Failure::of_all(path))?;
            (Some(report.objects), report.problems.iter().map(ToString::to_string).collect())
        }
        Err(error) => match error.corruption() {
            Some(message) => (None, vec![message]),
            None => return Err(error.into()),
        },
    };
    if json {
        let list: Vec<Json> = problems.iter().map(|message| json!({ "message": message })).collect();
        say(
            json!({ "path": path.to_string_lossy(), "clean": list.is_empty(), "findings": list, "objects": objects }),
        );
    } else if problems.is_empty() {
        let objects = count(objects.unwrap_or_default(), "object", "objects");
        say(format_args!("{}: sound: the heap, the names and {objects}", path.display()));
    } else {
        say(format_args!("{}: {}", path.display(), count(problems.len() as u64, "problem", "problems")));
        problems.iter().for_each(|problem| say(format_args!("  {problem}")));
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CORRUPTED) })
}
