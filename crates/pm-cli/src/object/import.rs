//! `pm object import`

use super::args::Import;
use super::failure::Failure;
use super::pool::{close, create, open_with};
use crate::report::{bytes, count, say};
use indicatif::{ProgressBar, ProgressStyle};
use miette::{Context as _, IntoDiagnostic as _, miette};
use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions};
use serde_json::json;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time between two reports.
const PERIOD: Duration = Duration::from_millis(100);

/// A file to be imported.
struct Found {
    path: PathBuf,
    /// Its path below the directory.
    name: String,
}

/// What was done with the files.
#[derive(Debug, Default)]
struct Done {
    created: u64,
    replaced: u64,
    unchanged: u64,
    bytes: u64,
}

impl Done {
    const fn durable(&self) -> u64 {
        self.created + self.replaced + self.unchanged
    }
}

/// `pm object import`: the files in the order of their names. Each is durable before the next is read.
pub(crate) fn run(args: &Import, json: bool) -> miette::Result<()> {
    let mut skipped = Vec::new();
    let files = find(&args.dir, &mut skipped)?;
    let path = &args.file;
    let exists = path.try_exists().into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    let options = ObjectsOptions::new().dram_bytes(args.dram.0);
    let mut objects =
        if exists { open_with(path, &options)? } else { create(path, args.size, args.file_size, options)? };
    let mut progress = Progress::new(path, json, files.len() as u64);
    let mut done = Done::default();
    let imported = files.iter().try_for_each(|found| {
        import(args, &mut objects, found, &mut done, &mut skipped)?;
        progress.advance(&done, false);
        Ok::<(), miette::Report>(())
    });
    progress.advance(&done, true);
    imported.wrap_err_with(|| {
        format!("{}: the first {} are durable", args.dir.display(), count(done.durable(), "file", "files"))
    })?;
    close(objects, path)?;
    for (file, reason) in &skipped {
        writeln!(io::stderr(), "{}: left out: {reason}", file.display()).unwrap_or_default();
    }
    let Done { created, replaced, unchanged, bytes: imported } = done;
    if json {
        say(json!({
            "path": path.to_string_lossy(), "durable_files": done.durable(), "created": created, "replaced": replaced,
            "unchanged": unchanged, "bytes": imported, "left_out": skipped.len(),
        }));
    } else {
        say(format_args!(
            "{}: {} imported, {}: {created} created, {replaced} replaced, {unchanged} unchanged",
            path.display(),
            count(done.durable(), "file", "files"),
            bytes(imported)
        ));
    }
    match skipped.len() {
        0 => Ok(()),
        left_out => Err(miette!("{} left out", count(left_out as u64, "file was", "files were"))),
    }
}

/// All files below a directory, in the order of their names.
fn find(dir: &Path, skipped: &mut Vec<(PathBuf, String)>) -> miette::Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(next) = dirs.pop() {
        let entries = fs::read_dir(&next).into_diagnostic().wrap_err_with(|| next.display().to_string())?;
        for entry in entries {
            let entry = entry.into_diagnostic().wrap_err_with(|| next.display().to_string())?;
            let path = entry.path();
            let kind = entry.file_type().into_diagnostic().wrap_err_with(|| path.display().to_string())?;
            if kind.is_dir() {
                dirs.push(path);
                continue;
            }
            let is_file = kind.is_file() || kind.is_symlink() && path.is_file();
            let name = path.strip_prefix(dir).ok().and_then(Path::to_str).map(str::to_owned);
            match name {
                Some(name) if is_file => found.push(Found { path, name }),
                Some(_) => skipped.push((path, "it is no file".to_owned())),
                None => skipped.push((path, "its name is not UTF-8".to_owned())),
            }
        }
    }
    found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Makes the object of a file, unless it has one with its contents.
fn import(
    args: &Import,
    objects: &mut Objects,
    found: &Found,
    done: &mut Done,
    skipped: &mut Vec<(PathBuf, String)>,
) -> miette::Result<()> {
    let (path, name) = (&args.file, &found.name);
    let in_file = || found.path.display().to_string();
    let file = File::open(&found.path).into_diagnostic().wrap_err_with(in_file)?;
    let len = file.metadata().into_diagnostic().wrap_err_with(in_file)?.len();
    let is_new = match objects.open_bytes(name) {
        Ok(object)
            if object.len() == len
                && has_contents(&object, &file).into_diagnostic().wrap_err_with(in_file)? =>
        {
            done.unchanged += 1;
            done.bytes += len;
            return Ok(());
        }
        // It is replaced, also if it cannot be read.
        Ok(_) | Err(ObjectError::Corrupted(_)) => false,
        Err(ObjectError::NotFound) => true,
        Err(error @ (ObjectError::Name | ObjectError::TooLong { .. })) => {
            skipped.push((found.path.clone(), error.to_string()));
            return Ok(());
        }
        Err(error) => return Err(Failure::of(path, name)(error).into()),
    };
    loop {
        let mut source = File::open(&found.path).into_diagnostic().wrap_err_with(in_file)?;
        match objects.replace::<u8>(name, Contents::Read(len, &mut source)).map_err(Failure::of(path, name)) {
            Ok(_) => break,
            Err(failure) if failure.is_full() => grow(args, objects, failure)?,
            Err(failure) => return Err(failure.into()),
        }
    }
    *(if is_new { &mut done.created } else { &mut done.replaced }) += 1;
    done.bytes += len;
    Ok(())
}

/// Whether an object has the contents of a file.
fn has_contents(object: &pm_objects::Object<u8>, mut file: &File) -> io::Result<bool> {
    let mut start = 0;
    while start < object.len() {
        let len = usize::try_from((1 << 20).min(object.len() - start)).expect("a part is short");
        let (mut stored, mut wanted) = (vec![0; len], vec![0; len]);
        file.read_exact(&mut wanted)?;
        // An object that cannot be read has other contents.
        if object.read(start, &mut stored).is_err() || stored != wanted {
            return Ok(false);
        }
        start += len as u64;
    }
    Ok(true)
}

/// Doubles the size of the pool, or gives it the greatest one that it may have. If it has that, the error stays.
fn grow(args: &Import, objects: &mut Objects, full: Failure) -> miette::Result<()> {
    let path = &args.file;
    let stats = objects.stats().map_err(Failure::of_all(path))?;
    let now = stats.pool_bytes;
    if stats.file_bytes != 0 {
        return Err(full.into());
    }
    let wanted = (2 * now).min(args.max_size.map_or(u64::MAX, |size| size.0));
    if wanted <= now {
        return Err(full.into());
    }
    Ok(objects.grow(wanted).map_err(Failure::open(path))?)
}

/// Reports of durable files, in the order of their names: every 0.1 s, and at the end.
struct Progress<'a> {
    path: &'a Path,
    is_json: bool,
    bar: Option<ProgressBar>,
    next: Instant,
}

impl<'a> Progress<'a> {
    fn new(path: &'a Path, is_json: bool, files: u64) -> Self {
        let bar = (!is_json && io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{msg} {bar:30} {pos} of {len} files, {elapsed}");
            ProgressBar::new(files).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { path, is_json, bar, next: Instant::now() + PERIOD }
    }

    fn advance(&mut self, done: &Done, is_last: bool) {
        if !is_last && Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + PERIOD;
        let files = done.durable();
        if self.is_json {
            // Standard output is flushed at the end of each line, also if it is a file.
            say(json!({ "durable_files": files }));
        } else if let Some(bar) = &self.bar {
            bar.set_message(format!("{} are durable", bytes(done.bytes)));
            bar.set_position(files);
            if is_last {
                bar.finish_and_clear();
            }
        } else {
            // Standard error has no buffer. Without a reader the import continues.
            writeln!(io::stderr(), "{}: {files} files are durable", self.path.display()).unwrap_or_default();
        }
    }
}
