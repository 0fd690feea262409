//! Reads of another thread's stores before they are durable, until they are, or until it is too late.

use super::catalog::Lint;
use super::finding::{Raw, Role};
use super::pending::{Durable, Pending, is_overwritten};
use crate::line::{WORD, index, lines, pieces};
use crate::trace::Trace;
use pm_core::line::LINE_BYTES;
use std::collections::BTreeMap;

/// The reads that may still turn out harmful.
///
/// A thread's reads of its own stores are ignored: it persists them in its own order.
#[derive(Default)]
pub(super) struct Reads {
    /// By reader, store and line.
    open: BTreeMap<(u32, usize, u64), Read>,
}

#[derive(Clone, Copy)]
struct Read {
    /// The first load.
    load: usize,
    /// The first byte that was read and not durable, and the end of the last word with such a byte.
    start: u64,
    end: u64,
}

impl Reads {
    /// The thread loads a range.
    pub(super) fn load(
        &mut self,
        pending: &Pending<'_>,
        at: usize,
        thread: u32,
        offset: u64,
        len_bytes: u64,
    ) {
        for number in lines(offset, len_bytes) {
            let stores = pending.line(number);
            if stores.is_empty() {
                continue;
            }
            let start = offset.max(number * LINE_BYTES);
            let len = (offset + len_bytes).min((number + 1) * LINE_BYTES) - start;
            for word in pieces(start, index(len), WORD) {
                let mut unread = word.within.clone().fold(0_u8, |mask, byte| mask | 1 << byte);
                for store in stores.iter().rev().filter(|store| store.chunk.word == word.unit) {
                    let seen = unread & store.chunk.mask;
                    unread &= !store.chunk.mask;
                    if seen != 0 && store.thread != thread {
                        let first = store.chunk.offset() + u64::from(seen.trailing_zeros());
                        let end = store.chunk.offset() + WORD as u64 - u64::from(seen.leading_zeros());
                        let read = self.open.entry((thread, store.chunk.event, number));
                        let read = read.or_insert(Read { load: at, start: first, end });
                        if read.load == at {
                            read.end = read.end.max(end);
                        }
                    }
                }
            }
        }
    }

    /// Something has become durable at event `at`: harmful if it includes a later store of a reader to another line while the store
    /// that it read is not durable.
    pub(super) fn commit(
        &mut self,
        pending: &Pending<'_>,
        trace: &Trace,
        at: usize,
        durable: &Durable,
    ) -> Vec<Raw> {
        if durable.is_empty() {
            return Vec::new();
        }
        self.open.retain(|&(_, store, line), _| is_pending(pending, store, line));
        let effect_of = |&(reader, _, line): &(u32, usize, u64), read: &Read| {
            let is_effect = |&&(store, of): &&(usize, u64)| {
                store > read.load && of != line && trace.events()[store].thread == reader
            };
            durable.iter().find(is_effect).map(|&(store, _)| store)
        };
        let mut found = Vec::new();
        self.open.retain(|key, read| {
            let effect = effect_of(key, read);
            found.extend(effect.map(|effect| {
                let related = vec![(Role::Stored, key.1), (Role::ActedUpon, effect), (Role::Fenced, at)];
                read.raw(related)
            }));
            effect.is_none()
        });
        found
    }

    /// The thread acknowledges an operation.
    pub(super) fn acknowledge(&mut self, pending: &Pending<'_>, at: usize, thread: u32) -> Vec<Raw> {
        let mut found = Vec::new();
        self.open.retain(|&(reader, store, line), read| {
            let is_harm = reader == thread && is_pending(pending, store, line);
            if is_harm {
                found.push(read.raw(vec![(Role::Stored, store), (Role::Acknowledged, at)]));
            }
            reader != thread
        });
        found
    }
}

impl Read {
    fn raw(&self, related: Vec<(Role, usize)>) -> Raw {
        let (lint, offset, len_bytes) = (Lint::UnpersistedRead, self.start, self.end - self.start);
        Raw { lint, at: self.load, related, offset, len_bytes }
    }
}

/// Whether bytes of the store on that line can still be lost.
fn is_pending(pending: &Pending<'_>, store: usize, line: u64) -> bool {
    let stores = pending.line(line);
    (0..stores.len()).any(|index| stores[index].chunk.event == store && !is_overwritten(&stores, index))
}
