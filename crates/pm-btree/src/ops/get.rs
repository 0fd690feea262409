//! Getting: the entry of a key is read without a lock, and read again if its leaf has changed meanwhile.

use crate::error::{Corruption, CorruptionKind, LeafError};
use crate::node::{Bytes, Entry, SearchKey, entry_offset, held_entry, slots_of};
use crate::session::Session;
use crate::tree::{Tree, has_broken_seal, verify_range};
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// The value of a key. `None` if there is none.
#[inline]
pub(crate) fn get<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    key: &SearchKey<'_>,
) -> Result<Option<Bytes>, LeafError> {
    read(session, tree, key, false, |entry| entry.value(&session.pmem(), tree.is_word()))
}

/// Whether a key has a value.
#[inline]
pub(crate) fn contains<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    key: &SearchKey<'_>,
) -> Result<bool, LeafError> {
    Ok(read(session, tree, key, false, |_| ())?.is_some())
}

/// The entry of a key, whose seal is verified: what it refers to was in the leaf when the entry was read. `None` if there is none.
#[inline]
pub(super) fn get_entry<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    key: &SearchKey<'_>,
) -> Result<Option<Entry>, LeafError> {
    read(session, tree, key, true, |entry| *entry)
}

/// Reads the entry of `key` with `read`. `None` if there is none. `verifies_seal`: an entry with a wrong seal is an error, as if reads were verified.
///
/// `read` may be called several times, and with an entry that is being overwritten: only its last result is returned.
#[inline]
fn read<P: Pmem, R>(
    session: &Session<P>,
    tree: &Tree,
    key: &SearchKey<'_>,
    verifies_seal: bool,
    mut read: impl FnMut(&Entry) -> R,
) -> Result<Option<R>, LeafError> {
    let pmem = &session.pmem();
    loop {
        let (_, frame, snapshot) = tree.locate(session, key)?;
        let node = frame.node();
        let mut found = None;
        for slot in slots_of(frame.matches(key.fingerprint(), snapshot.live)) {
            let (entry, seal) = Entry::load(pmem, entry_offset(node, slot));
            let has_key = entry.has_key(pmem, key);
            // The key of a corrupted record may have been this one.
            if has_key || session.verifies_reads && entry.key == key.head() {
                let is_intact = (!verifies_seal && !session.verifies_reads
                    || entry.seal(frame.seed()) == seal)
                    && (!session.verifies_reads || entry.is_record_intact(pmem, tree.is_word()));
                let corruption = Corruption::new(entry_offset(node, slot), CorruptionKind::Record);
                if !is_intact {
                    found = Some(Err(corruption));
                } else if has_key {
                    found = Some(Ok(read(&entry)));
                } else {
                    continue;
                }
                break;
            }
        }
        if found.is_none() && session.verifies_reads && has_broken_seal(session, frame, snapshot) {
            found = Some(Err(Corruption::new(node, CorruptionKind::Entry)));
        }
        if found.is_none() && session.verifies_reads {
            found = verify_range(session, tree.id, node, key).err().map(Err);
        }
        // A change in progress may have stored a part of an entry.
        if matches!(found, Some(Err(_))) && !snapshot.is_settled() && session.check_not_poisoned().is_ok() {
            core::hint::spin_loop();
            continue;
        }
        let held = frame.held.load(Ordering::Relaxed);
        if frame.is_current(snapshot) {
            return match found {
                None if held != 0 => Err(held_entry(node, held).into()),
                found => Ok(found.transpose()?),
            };
        }
    }
}
