//! Output: properties of a disk, as text and as JSON.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use pm_cli_common::{Size, say};
use pmbd::disk::{DiskKind, PendingWrites};
use pmbd::{DiskError, DiskInfo};
use serde_json::{Value, json};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The properties of a disk as JSON.
pub(crate) fn to_json(info: &DiskInfo) -> Value {
    let (kind, uuid, created_s) = match info.kind {
        DiskKind::Pool { uuid, created_s, .. } => ("pool", Some(uuid.to_string()), Some(created_s)),
        DiskKind::Raw => ("raw", None, None),
    };
    json!({
        "path": info.path.to_string_lossy(),
        "kind": kind,
        "uuid": uuid,
        "created_s": created_s,
        "capacity_bytes": info.capacity_bytes,
        "sector_bytes": info.sector_bytes,
        "medium": info.medium.name(),
        "domain": info.domain.name(),
        "survives_power_loss": info.domain.survives_power_loss(),
        "instructions": info.insns.to_string(),
        "corruption": info.corruption(),
    })
}

/// Prints a line of a command's result as text, or as JSON.
pub(crate) fn say_either(
    is_json: bool,
    text: impl Display,
    json: impl FnOnce() -> Value,
) -> miette::Result<()> {
    if is_json { say(json()) } else { say(text) }
}

/// Prints a line of a server. A server continues if that fails, as it outlives its terminal.
pub(crate) fn mention(line: impl Display) {
    if let Err(error) = say(line) {
        tracing::debug!(?error, "cannot write to standard output");
    }
}

/// The properties of a disk as text.
pub(crate) fn describe(info: &DiskInfo) -> String {
    let size = Size(info.capacity_bytes);
    let mut lines = vec![format!(
        "{}: {size}, sectors of {} bytes, on {}",
        info.path.display(),
        info.sector_bytes,
        info.medium
    )];
    lines.push(match info.kind {
        DiskKind::Pool { uuid, .. } => line("identity", &uuid.to_string()),
        DiskKind::Raw => line("identity", "none: raw bytes, no pool"),
    });
    lines.push(line("domain", &format!("{}: {}", info.domain, info.domain.promise())));
    lines.push(line(
        "writes",
        &match (info.domain.fences_without_system_call(), info.domain.survives_power_loss()) {
            (true, true) => format!("durable when they complete, by {}", info.insns),
            (true, false) => format!("survive kill -9 when they complete, by {}", info.insns),
            (false, _) => "cached until Flush or FUA, then durable by msync".to_owned(),
        },
    ));
    lines.extend(info.corruption().iter().map(|corruption| line("corruption", corruption)));
    lines.join("\n")
}

/// What a killed server has left, for the operator; `None` if that is nothing.
pub(crate) fn pending(found: &Result<PendingWrites, DiskError>) -> Option<String> {
    Some(match found {
        Ok(PendingWrites::None) => return None,
        Ok(PendingWrites::Deferred) => {
            "completed writes of a killed server may be in the caches; the next server writes all of the disk back".to_owned()
        }
        Ok(PendingWrites::Buffered { path, block_count }) => format!(
            "{block_count} blocks of completed writes of a killed server are in {}; the file lacks them until `pmbd serve` has stored them",
            path.display()
        ),
        Ok(PendingWrites::Lost) => {
            "writes that were buffered and not flushed were lost when the system was restarted".to_owned()
        }
        Ok(_) => "completed writes of a killed server are not stored".to_owned(),
        Err(error) => format!("completed writes of a killed server cannot be stored: {error}"),
    })
}

/// A line with a name and a value.
pub(crate) fn line(name: &str, value: &str) -> String {
    format!("  {name:<9} {value}")
}

/// Prints a line of a server with a name and a value.
pub(crate) fn field(name: &str, value: &str) {
    mention(line(name, value));
}

/// The address of a server on a Unix socket.
///
/// # Source
/// "NBD URI", doc/uri.md of the NetworkBlockDevice project; RFC 3986, 2.3 and 3.4.
pub(super) fn uri_of_socket(socket: &Path) -> String {
    const RESERVED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
    format!("nbd+unix:///?socket={}", percent_encode(socket.as_os_str().as_bytes(), RESERVED))
}

/// A path quoted for a shell.
pub(super) fn shell_word(path: &Path) -> String {
    let path = path.to_string_lossy();
    // Fails only for a zero byte, which paths do not contain.
    shlex::try_quote(&path).map_or_else(|_| path.to_string(), |word| word.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_percent_encoded() {
        let uri = uri_of_socket(Path::new("/run/a b&c#d%é'.sock"));
        assert_eq!(uri, "nbd+unix:///?socket=/run/a%20b%26c%23d%25%C3%A9%27.sock");
        assert_eq!(uri_of_socket(Path::new("/run/x-1_2.~")), "nbd+unix:///?socket=/run/x-1_2.~");
    }

    #[test]
    fn paths_are_quoted_for_shells() {
        assert_eq!(shell_word(Path::new("/run/x.sock")), "/run/x.sock");
        assert_eq!(shell_word(Path::new("/a b'c")), r#""/a b'c""#);
    }
}
