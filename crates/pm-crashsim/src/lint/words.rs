//! Findings in plain words.

use super::occasion::Raw;
use super::{Lint, Role};
use crate::trace::{EventKind, Trace};

/// What happened.
pub(super) fn message(trace: &Trace, raw: &Raw) -> String {
    let is_acked = raw.related.iter().any(|(role, _)| *role == Role::Acknowledged);
    let deadline = if is_acked { "the operation was acknowledged" } else { "the run ended" };
    let bytes = bytes(trace, raw);
    match raw.lint {
        Lint::UnflushedStore => format!("{bytes} were stored and not flushed before {deadline}"),
        Lint::UnfencedFlush => format!("{bytes} were flushed and not fenced before {deadline}"),
        Lint::UnfencedStore if matches!(trace.events()[raw.at].kind, EventKind::StoreNt { .. }) => {
            format!("{bytes} were stored around the cache and not fenced before {deadline}")
        }
        Lint::UnfencedStore => format!("{bytes} were stored and not fenced before {deadline}"),
        Lint::EarlyFlush => format!("{bytes} were flushed before they were stored, and not after"),
        Lint::StoreInFlight => {
            format!("{bytes} were stored to a line between its flush and the fence, which may miss them")
        }
        Lint::UnpersistedRead => {
            let effect = if is_acked { "acknowledged" } else { "made durable" };
            format!(
                "{bytes} were read that another thread had not made durable, and what came of it was {effect}"
            )
        }
        Lint::RedundantFlush => format!("{bytes} were flushed with nothing to write back"),
        Lint::RedundantFence => "a fence had nothing to wait for".to_owned(),
    }
}

/// What to do.
pub(super) fn suggestion(raw: &Raw) -> String {
    let (offset, len_bytes) = (raw.offset, raw.len_bytes);
    match raw.lint {
        Lint::UnflushedStore if raw.related.iter().any(|(role, _)| *role == Role::Fenced) => {
            format!("a fence alone writes nothing back: flush({offset:#x}, {len_bytes}) before it")
        }
        Lint::UnflushedStore => format!("persist({offset:#x}, {len_bytes}) after the last store"),
        Lint::UnfencedFlush => "fence on the same thread, after the last flush".to_owned(),
        Lint::UnfencedStore => "fence on the same thread, after the last store".to_owned(),
        Lint::EarlyFlush => "move the flush behind the store, and the fence behind the flush".to_owned(),
        Lint::StoreInFlight => {
            format!("flush({offset:#x}, {len_bytes}) before the fence, or store after the fence")
        }
        Lint::UnpersistedRead => {
            format!(
                "persist({offset:#x}, {len_bytes}) before acting on what was read, or before publishing it"
            )
        }
        Lint::RedundantFlush => "remove it, or flush once after the last store".to_owned(),
        Lint::RedundantFence => "remove it, or let one fence serve several flushes".to_owned(),
    }
}

/// Which bytes; of a store of which only a part is concerned, that too.
fn bytes(trace: &Trace, raw: &Raw) -> String {
    let Raw { offset, len_bytes, .. } = *raw;
    let event = &trace.events()[raw.at].kind;
    match event.extent().filter(|_| event.is_store()) {
        Some((_, whole)) if whole > len_bytes => format!("{len_bytes} of {whole} bytes from {offset:#x}"),
        _ => format!("{len_bytes} bytes from {offset:#x}"),
    }
}
