//! What is told of a disk, to people and to machines.

use pm_cli_common::Size;
use pmbd::DiskInfo;
use pmbd::disk::Kind;
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::Write as _;

/// A disk for machines.
pub(crate) fn to_json(info: &DiskInfo) -> Value {
    let (kind, uuid, created_s) = match info.kind {
        Kind::Pool { uuid, created_s, .. } => ("pool", Some(uuid.to_string()), Some(created_s)),
        Kind::Raw => ("raw", None, None),
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
        "damage": info.damage(),
    })
}

/// A line of the answer. Nobody to read it is no reason to stop: a server outlives the terminal that it was started from.
pub(crate) fn say(line: impl Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        tracing::debug!(%error, "nobody reads the answer");
    }
}

/// A disk for people: a line that says what it is, and some that say more.
pub(crate) fn print(info: &DiskInfo) {
    let size = Size(info.capacity_bytes);
    say(format_args!(
        "{}: {size}, sectors of {} bytes, on {}",
        info.path.display(),
        info.sector_bytes,
        info.medium
    ));
    match info.kind {
        Kind::Pool { uuid, .. } => field("identity", &uuid.to_string()),
        Kind::Raw => field("identity", "none: raw bytes, no pool"),
    }
    field("domain", &format!("{}: {}", info.domain, info.domain.promise()));
    field(
        "writes",
        &match (info.domain.is_cpu_persistent(), info.domain.survives_power_loss()) {
            (true, true) => format!("durable when they complete, by {}", info.insns),
            (true, false) => format!("survive kill -9 when they complete, by {}", info.insns),
            (false, _) => "cached until Flush or FUA, then durable by msync".to_owned(),
        },
    );
    for damage in info.damage() {
        field("damage", &damage);
    }
}

/// One line of an answer for people.
pub(crate) fn field(name: &str, value: &str) {
    say(format_args!("  {name:<9} {value}"));
}
