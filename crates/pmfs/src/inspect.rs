//! `pmfs ls` and `pmfs cat`: the files of a file system that is not mounted.

use crate::pool::{BUFFER_BYTES, PoolPath, open_read_only};
use jiff::Timestamp;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, miette};
use pm_fs::{Attributes, FileKind, Handle};
use rustix::fs::{major, minor};
use serde_json::{Value, json};
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::PathBuf;

/// Arguments of `pmfs ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// The file.
    file: PathBuf,
    /// A path in the file system, from its root. Symbolic links are not followed, and `..` is no name.
    #[arg(default_value = "/")]
    path: PathBuf,
    /// Show types, permissions, numbers of links, owners, groups, sizes, times of modification (in UTC) and targets of links.
    #[arg(short, long)]
    long: bool,
    /// List the directories below, too.
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Arguments of `pmfs cat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Cat {
    /// The file.
    file: PathBuf,
    /// Paths in the file system, from its root. Symbolic links are not followed, and `..` is no name.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// A file in a listing.
struct Item {
    path: PoolPath,
    attributes: Attributes,
    /// Of a symbolic link.
    target: Option<Vec<u8>>,
}

/// `pmfs ls`
pub(crate) fn ls(args: &Ls, is_json: bool) -> Result<()> {
    let fs = open_read_only(&args.file)?;
    let path = PoolPath::new(args.path.as_os_str())?;
    let top = path.find(&fs)?;
    let mut listing = Listing::new(args, is_json);
    if top.kind() != FileKind::Directory {
        let item = Item::new(path, &top)?;
        // As it was asked for.
        return ended(listing.add(None, &[item]).and_then(|()| listing.end()));
    }
    let mut directories = vec![(path, top)];
    while let Some((path, directory)) = directories.pop() {
        let mut items = Vec::new();
        let mut below = Vec::new();
        let mut entries = directory.entries(0).map_err(|error| path.error(error))?;
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for entry in entries {
            let path = path.join(&entry.name);
            let file = directory.lookup(&entry.name).map_err(|error| path.error(error))?;
            items.push(Item::new(path.clone(), &file)?);
            if args.recursive && file.kind() == FileKind::Directory {
                below.push((path, file));
            }
        }
        if let Err(error) = listing.add(Some(&path), &items) {
            return ended(Err(error));
        }
        directories.extend(below.into_iter().rev());
    }
    ended(listing.end())
}

/// `pmfs cat`
pub(crate) fn cat(args: &Cat) -> Result<()> {
    let fs = open_read_only(&args.file)?;
    let mut out = io::stdout().lock();
    let mut bytes = vec![0; BUFFER_BYTES];
    for path in &args.paths {
        let path = PoolPath::new(path.as_os_str())?;
        let file = path.find(&fs)?;
        if file.kind() != FileKind::File {
            return Err(miette!(":{path} is {}, and no regular file", described(file.kind())));
        }
        let mut offset = 0;
        loop {
            let len = file.read_at(offset, &mut bytes).map_err(|error| path.error(error))?;
            if len == 0 {
                break;
            }
            if let Err(error) = out.write_all(&bytes[..len]) {
                return ended(Err(error));
            }
            offset += len as u64;
        }
    }
    ended(out.flush())
}

/// What output has ended with. A reader may close the pipe when it has read enough.
fn ended(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.into_diagnostic().wrap_err("writing to standard output"),
    }
}

impl Item {
    fn new(path: PoolPath, file: &Handle) -> Result<Self> {
        let read = || {
            let is_link = file.kind() == FileKind::Symlink;
            Ok((file.attributes()?, if is_link { Some(file.read_link()?) } else { None }))
        };
        match read() {
            Ok((attributes, target)) => Ok(Self { path, attributes, target }),
            Err(error) => Err(path.error(error)),
        }
    }

    fn to_json(&self) -> Value {
        let Attributes { ino, kind, mode, uid, gid, nlink, size, mtime_ns, .. } = self.attributes;
        let mut value = json!({
            "path": String::from_utf8_lossy(&self.path.bytes()), "type": name_of(kind), "mode": format!("{mode:04o}"), "links": nlink, "uid": uid,
            "gid": gid, "size": size, "mtime": utc(mtime_ns, "%FT%T.%9fZ"), "ino": ino,
        });
        if let Some(target) = &self.target {
            value["target"] = String::from_utf8_lossy(target).into();
        }
        value
    }

    /// The columns of the long form, up to the time.
    fn columns(&self) -> [String; 6] {
        let Attributes { kind, mode, uid, gid, rdev, nlink, size, mtime_ns, .. } = self.attributes;
        let size = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                format!("{},{}", major(rdev.into()), minor(rdev.into()))
            }
            _ => size.to_string(),
        };
        let [links, uid, gid] = [nlink, uid.into(), gid.into()].map(|number| number.to_string());
        [mode_string(kind, mode), links, uid, gid, size, utc(mtime_ns, "%FT%TZ")]
    }
}

/// A listing on standard output.
struct Listing {
    out: BufWriter<io::Stdout>,
    /// The objects of the array, if it is JSON.
    json: Option<Vec<Value>>,
    is_long: bool,
    /// Whether directories have headings.
    has_headings: bool,
    /// Whether control characters are replaced: a terminal would obey them.
    is_terminal: bool,
    is_empty: bool,
}

impl Listing {
    fn new(args: &Ls, is_json: bool) -> Self {
        Self {
            out: BufWriter::new(io::stdout()),
            json: is_json.then(Vec::new),
            is_long: args.long,
            has_headings: args.recursive,
            is_terminal: io::stdout().is_terminal(),
            is_empty: true,
        }
    }

    /// Adds the entries of a directory, or one file with its path.
    fn add(&mut self, directory: Option<&PoolPath>, items: &[Item]) -> io::Result<()> {
        if let Some(json) = &mut self.json {
            json.extend(items.iter().map(Item::to_json));
            return Ok(());
        }
        if let Some(directory) = directory.filter(|_| self.has_headings) {
            let gap = if self.is_empty { "" } else { "\n" };
            self.out.write_all(gap.as_bytes())?;
            self.write_name(&directory.bytes())?;
            self.out.write_all(b":\n")?;
        }
        self.is_empty = false;
        let rows: Vec<_> = items.iter().map(|item| self.is_long.then(|| item.columns())).collect();
        let widths: [usize; 6] = core::array::from_fn(|column| {
            rows.iter().flatten().map(|row| row[column].len()).max().unwrap_or_default()
        });
        for (item, row) in items.iter().zip(rows) {
            for (text, width) in row.iter().flatten().zip(widths) {
                write!(self.out, "{text:>width$} ")?;
            }
            let name = item.path.name().filter(|_| directory.is_some());
            self.write_name(&name.map_or_else(|| item.path.bytes(), <[u8]>::to_vec))?;
            if let Some(target) = item.target.as_ref().filter(|_| self.is_long) {
                self.out.write_all(b" -> ")?;
                self.write_name(target)?;
            }
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn write_name(&mut self, name: &[u8]) -> io::Result<()> {
        if !self.is_terminal {
            return self.out.write_all(name);
        }
        let name = String::from_utf8_lossy(name).replace(char::is_control, "?");
        self.out.write_all(name.as_bytes())
    }

    fn end(&mut self) -> io::Result<()> {
        if let Some(json) = self.json.take() {
            writeln!(self.out, "{}", Value::from(json))?;
        }
        self.out.flush()
    }
}

/// A time; the number itself beyond the range of the calendar.
fn utc(ns: i64, format: &str) -> String {
    let time = Timestamp::from_nanosecond(ns.into());
    time.map_or_else(|_| format!("{ns} ns"), |time| time.strftime(format).to_string())
}

const fn name_of(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Pipe => "pipe",
        FileKind::CharDevice => "character device",
        FileKind::Directory => "directory",
        FileKind::BlockDevice => "block device",
        FileKind::File => "file",
        FileKind::Symlink => "symbolic link",
        FileKind::Socket => "socket",
    }
}

/// A kind in a sentence.
pub(crate) fn described(kind: FileKind) -> String {
    format!("a {}", name_of(kind))
}

/// The type and the permissions, as ls(1) shows them.
fn mode_string(kind: FileKind, mode: u32) -> String {
    let kind = match kind {
        FileKind::Pipe => 'p',
        FileKind::CharDevice => 'c',
        FileKind::Directory => 'd',
        FileKind::BlockDevice => 'b',
        FileKind::File => '-',
        FileKind::Symlink => 'l',
        FileKind::Socket => 's',
    };
    let mut text = String::from(kind);
    // The set-user-ID, set-group-ID and sticky bits are shown in the place of the permission to execute.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_shown_as_by_ls() {
        for (kind, mode, expected) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::File, 0o4750, "-rwsr-x---"),
            (FileKind::Socket, 0o7000, "s--S--S--T"),
        ] {
            assert_eq!(mode_string(kind, mode), expected);
        }
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(utc(1_000_000_007, "%FT%T.%9fZ"), "1970-01-01T00:00:01.000000007Z");
        assert_eq!(utc(1_700_000_000_000_000_000, "%FT%TZ"), "2023-11-14T22:13:20Z");
        assert_eq!(utc(i64::MAX, "%FT%TZ"), "2262-04-11T23:47:16Z");
        assert_eq!(utc(-1, "%FT%T.%9fZ"), "1969-12-31T23:59:59.999999999Z");
    }
}
