//! The leaves of a tree: finding a key's leaf and its entry, and changing entries under the leaf's lock.

use super::change::{Expected, Outcome};
use super::ends::Ends;
use super::hints;
use super::index::{Followed, Index};
use super::split_point::{Moving, SplitPoint, sorted_entries, split_point};
use crate::error::{Corruption, CorruptionKind, LeafError, WriteError};
use crate::format::{
    CATALOGUE, ENTRY_BYTES, KIND_BYTES, KIND_WORD, NODE_HEADER_BYTES, NODE_MAGIC, NodeHeader, STATE_LIVE,
    checked,
};
use crate::node::{
    Commit, Entry, Frame, FrameId, FrameLock, INLINE_BYTES, Kind, RecordRef, SearchKey, Separator, Snapshot,
    TreeId, entry_offset, flush_owed, held_entry, inline_lengths, line_mate, node_seed, slots_of,
};
use crate::session::{Reserved, Session};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use pm_core::{Pmem, bytes_of, crc32c_bytes};
use std::sync::OnceLock;

/// A tree: the leaves of a table, and the index to them.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) id: TreeId,
    /// The width of word keys; `None` for byte keys.
    pub(crate) key_width: Option<usize>,
    pub(crate) first: FrameId,
    pub(crate) index: Index,
    pub(crate) ends: Ends,
    /// The number of entries in the leaves that are swept.
    pub(crate) len: AtomicU64,
    /// The first leaf that the sweep could not read.
    pub(crate) unreadable: OnceLock<Corruption>,
}

/// The content of a new entry: the value itself, or a record for it.
#[derive(Debug)]
pub(crate) struct Content<'s> {
    pub(crate) payload: u64,
    pub(crate) low: u32,
    pub(crate) record: Option<Reserved<'s>>,
}

/// An entry to be written while its leaf is split.
pub(crate) struct NewEntry<'a> {
    key: &'a SearchKey<'a>,
    payload: u64,
    low: u32,
    is_inline: bool,
}

impl NewEntry<'_> {
    fn entry<P: Pmem>(&self, session: &Session<P>, leaf: &FrameLock<'_>) -> Result<Entry, WriteError> {
        let commit = Commit::new(Kind::Value, self.is_inline, session.next_stamp(leaf)?);
        Ok(Entry { key: self.key.head(), payload: self.payload, low: self.low, commit })
    }
}

/// A new leaf, whose separator is posted to the index after the leaves are unlocked.
pub(crate) struct Posting {
    id: FrameId,
    pub(crate) low: Separator,
    separator_bytes: Vec<u8>,
}

impl Tree {
    pub(crate) const fn is_word(&self) -> bool {
        self.id.is_word
    }

    /// The leaf whose range includes `key`, and its snapshot.
    #[inline]
    pub(crate) fn locate<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        key: &SearchKey<'_>,
    ) -> Result<(&'c Frame, Snapshot), LeafError> {
        let pmem = &session.pmem();
        loop {
            let followed = self.index.find(session, key)?;
            if let Some(found) = self.move_right(session, &followed, |high| high.is_at_or_below(pmem, key))? {
                return Ok(found);
            }
        }
    }

    /// The first leaf, from one that the index led to, whose upper separator `is_left` does not accept. `None` if one of them changed meanwhile.
    #[inline]
    pub(crate) fn move_right<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        followed: &Followed,
        is_left: impl Fn(&Separator) -> bool,
    ) -> Result<Option<(&'c Frame, Snapshot)>, LeafError> {
        let mut frame = self.leaf(session, followed.leaf())?;
        let mut snapshot = frame.snapshot();
        if !self.index.is_current(session, followed) {
            return Ok(None);
        }
        while let Some((next, high)) = frame.right()
            && is_left(&high)
        {
            let right = self.leaf(session, next)?;
            let of_right = right.snapshot();
            if !frame.is_current(snapshot) {
                return Ok(None);
            }
            (frame, snapshot) = (right, of_right);
            session.count_step();
        }
        Ok(Some((frame, snapshot)))
    }

    /// Reads the entry of `key` with `read`. `None` if there is none. `verifies_seal`: an entry with a wrong seal is an error, as if reads were verified.
    ///
    /// `read` may be called several times, and with an entry that is being overwritten: only its last result is returned.
    #[inline]
    pub(crate) fn get<P: Pmem, R>(
        &self,
        session: &Session<P>,
        key: &SearchKey<'_>,
        verifies_seal: bool,
        mut read: impl FnMut(&Entry) -> R,
    ) -> Result<Option<R>, LeafError> {
        let pmem = &session.pmem();
        loop {
            let (frame, snapshot) = self.locate(session, key)?;
            let node = frame.node();
            let mut found = None;
            for slot in slots_of(frame.matches(key.fingerprint(), snapshot.live)) {
                let (entry, seal) = Entry::load(pmem, entry_offset(node, slot));
                let has_key = entry.has_key(pmem, key);
                // The key of a corrupted record may have been this one.
                if has_key || session.verifies_reads && entry.key == key.head() {
                    let is_intact = (!verifies_seal && !session.verifies_reads
                        || entry.seal(frame.seed()) == seal)
                        && (!session.verifies_reads || entry.is_record_intact(pmem, self.is_word()));
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
            if found.is_none() && session.verifies_reads && self.has_broken_seal(session, frame, snapshot) {
                found = Some(Err(Corruption::new(node, CorruptionKind::Entry)));
            }
            if found.is_none() && session.verifies_reads {
                found = self.verify_range(session, node, key).err().map(Err);
            }
            // A change in progress may have stored a part of an entry.
            if matches!(found, Some(Err(_))) && !snapshot.is_settled() && session.check_not_poisoned().is_ok()
            {
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

    /// Locks the leaf whose range includes `key`.
    #[inline]
    fn lock_leaf<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        key: &SearchKey<'_>,
    ) -> Result<FrameLock<'c>, LeafError> {
        let pmem = &session.pmem();
        loop {
            let followed = self.index.find(session, key)?;
            let mut leaf = self.leaf(session, followed.leaf())?.lock();
            if !self.index.is_current(session, &followed) {
                continue;
            }
            while let Some(next) = leaf.next()
                && leaf.high().is_at_or_below(pmem, key)
            {
                drop(leaf);
                leaf = self.leaf(session, next)?.lock();
                session.count_step();
            }
            return Ok(leaf);
        }
    }

    /// The live entry of `key` in a locked leaf, and its slot.
    #[inline]
    pub(crate) fn find_in<P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: &Frame,
        key: &SearchKey<'_>,
    ) -> Result<Option<(usize, Entry)>, Corruption> {
        let pmem = &session.pmem();
        let live = leaf.live.load(Ordering::Relaxed);
        for slot in slots_of(leaf.matches(key.fingerprint(), live)) {
            let (entry, _) = Entry::load(pmem, entry_offset(leaf.node(), slot));
            if entry.has_key(pmem, key) {
                return Ok(Some((slot, entry)));
            }
        }
        match leaf.held.load(Ordering::Relaxed) {
            0 => Ok(None),
            held => Err(held_entry(leaf.node(), held)),
        }
    }

    /// Takes space for a value, and computes what the entry says about it. Nothing is stored.
    pub(crate) fn prepare<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        key: &SearchKey<'_>,
        value: &[u8],
        record: &mut Vec<u8>,
    ) -> Result<Content<'c>, WriteError> {
        if value.len() <= INLINE_BYTES && key.bytes().len() <= INLINE_BYTES {
            let mut payload = [0; INLINE_BYTES];
            payload[..value.len()].copy_from_slice(value);
            let low = inline_lengths(key.bytes().len(), value.len());
            return Ok(Content { payload: u64::from_le_bytes(payload), low, record: None });
        }
        let too_long =
            |len_bytes| WriteError::TooLong { len_bytes, max_bytes: session.space.record_bytes_max() };
        if !self.is_word() {
            let len = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| too_long(bytes.len() as u64));
            record.clear();
            record.extend_from_slice(&len(key.bytes())?.to_le_bytes());
            record.extend_from_slice(&len(value)?.to_le_bytes());
            record.extend_from_slice(key.bytes());
            record.extend_from_slice(value);
        }
        let bytes = if self.is_word() { value } else { record };
        let len = bytes.len() as u64;
        let reserved = session.space.reserve_record(&session.heap, len)?;
        let payload = RecordRef { offset: reserved.offset(), len }.payload();
        Ok(Content { payload, low: crc32c_bytes(0, bytes), record: Some(reserved) })
    }

    /// Inserts or updates a key, if its value is the expected one.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the old value or the new one. Costs the lines of the record and one line, and one fence;
    /// one line more if an earlier update of the leaf left a line to be flushed; if the leaf is split, the lines of half a leaf and one fence more.
    pub(crate) fn put<P: Pmem>(
        &self,
        session: &Session<P>,
        key: &SearchKey<'_>,
        value: &[u8],
        expected: Expected<'_>,
    ) -> Result<Outcome, WriteError> {
        let _active = session.begin_change()?;
        let mut buffer = Vec::new();
        let content = self.prepare(session, key, value, &mut buffer)?;
        let leaf = loop {
            let leaf = self.lock_leaf(session, key)?;
            if leaf.taken() != session.all_slots() {
                break leaf;
            }
            match leaf.held.load(Ordering::Relaxed) {
                0 => (),
                held => return Err(held_entry(leaf.node(), held).into()),
            }
            // A crash lost the link to the right half of a split, but kept the entry that took the last slot.
            self.split(session, leaf, None)?;
        };
        let old = self.find_in(session, &leaf, key)?;
        if let Some(refused) = expected.refusal(session, self.is_word(), &leaf, old.as_ref())? {
            return Ok(refused);
        }
        if let Some(record) = &content.record {
            session.pmem().store_nt(record.offset(), if self.is_word() { value } else { &buffer });
        }
        let new =
            NewEntry { key, payload: content.payload, low: content.low, is_inline: content.record.is_none() };
        let has_record = content.record.is_some();
        // From here on the record may be durable and referred to, even if a fence fails.
        if let Some(record) = content.record {
            record.keep();
        }
        let is_last = (session.all_slots() & !leaf.taken()).is_power_of_two();
        let is_split = old.is_none() && is_last;
        let payload = new.payload;
        let is_counted = leaf.is_swept.load(Ordering::Relaxed);
        let written = match is_split {
            true => self.split(session, leaf, Some(new)),
            false => self.put_in_place(session, &leaf, &new, old.as_ref()),
        };
        if matches!(written, Err(WriteError::Full)) && has_record {
            // There is no room for the right sibling, and nothing was changed.
            let record = RecordRef::from_payload(payload);
            session.space.release_record(record.offset, record.len);
        }
        written?;
        if old.is_none() && is_counted {
            self.len.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Outcome::Changed { was_present: old.is_some() })
    }

    /// Writes the entry into a free slot, and publishes it in place of the entry in slot `old`.
    fn put_in_place<P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: &FrameLock<'_>,
        new: &NewEntry<'_>,
        old: Option<&(usize, Entry)>,
    ) -> Result<(), WriteError> {
        let pmem = &session.pmem();
        let live = leaf.live.load(Ordering::Relaxed);
        let owed = leaf.owed.load(Ordering::Relaxed);
        let free = session.all_slots() & !leaf.taken();
        // A slot whose line must be flushed anyway, if there is one.
        let slot = if owed == 0 { free } else { owed }.trailing_zeros() as usize;
        let place = entry_offset(leaf.node(), slot);
        let entry = new.entry(session, leaf)?;
        leaf.begin();
        entry.store(pmem, place, leaf.seed());
        pmem.flush(place, ENTRY_BYTES);
        flush_owed(pmem, leaf, owed & !line_mate(slot));
        // DURABILITY POINT
        let fenced = session.fence();
        if fenced.is_ok() {
            settle_owed(session, leaf);
            if live == 0 {
                self.ends.widen(session, leaf, new.key);
            }
            leaf.set_fingerprint(slot, new.key.fingerprint());
            let replaced = old.map_or(0, |(old, _)| 1 << old);
            leaf.live.store(live & !replaced | 1 << slot, Ordering::Release);
            if let Some((old, entry)) = old {
                pmem.store_u64(entry_offset(leaf.node(), *old) + offset_in_entry::COMMIT, 0);
                leaf.owed.store(1 << old, Ordering::Relaxed);
                leaf.owed_payload.store(entry.record().map_or(0, RecordRef::payload), Ordering::Relaxed);
            }
        }
        leaf.end();
        Ok(fenced?)
    }

    /// Removes a key, if its value is the expected one.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the key or removes it. Costs one line and one fence, and one line more if an earlier
    /// update of the leaf left a line to be flushed. If there is no such key, costs nothing.
    pub(crate) fn remove<P: Pmem>(
        &self,
        session: &Session<P>,
        key: &SearchKey<'_>,
        expected: Expected<'_>,
    ) -> Result<Outcome, WriteError> {
        let _active = session.begin_change()?;
        let leaf = self.lock_leaf(session, key)?;
        let old = self.find_in(session, &leaf, key)?;
        if let Some(refused) = expected.refusal(session, self.is_word(), &leaf, old.as_ref())? {
            return Ok(refused);
        }
        if let Some((slot, old)) = &old {
            self.remove_from(session, &leaf, *slot, old)?;
        }
        Ok(Outcome::Changed { was_present: old.is_some() })
    }

    /// Makes the entry in a slot a tombstone, in place. No older entry of the key survives, because the lines of replaced entries have the same fence;
    /// so the slot is free afterwards, and the record too.
    pub(crate) fn remove_from<P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: &FrameLock<'_>,
        slot: usize,
        old: &Entry,
    ) -> Result<(), WriteError> {
        let pmem = &session.pmem();
        let commit = Commit::new(Kind::Tombstone, old.commit.is_inline(), session.next_stamp(leaf)?);
        let place = entry_offset(leaf.node(), slot);
        leaf.begin();
        Entry { commit, ..*old }.store_commit(pmem, place, leaf.seed());
        pmem.flush(place, ENTRY_BYTES);
        flush_owed(pmem, leaf, leaf.owed.load(Ordering::Relaxed) & !line_mate(slot));
        // DURABILITY POINT
        let fenced = session.fence();
        if fenced.is_ok() {
            settle_owed(session, leaf);
            leaf.live.fetch_and(!(1 << slot), Ordering::Release);
        }
        leaf.end();
        fenced?;
        if let Some(record) = old.record() {
            session.release_record(record);
        }
        if leaf.is_swept.load(Ordering::Relaxed) {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Moves the upper half of the leaf's entries to a new right sibling. `new` is an entry to be written by the way, into either half.
    ///
    /// # Durability
    /// Two fences, and the lines of the new node. A crash before the second one leaves the leaf whole, with or without the new entry; a crash after it
    /// finds both halves and the new entry.
    fn split<P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: FrameLock<'_>,
        new: Option<NewEntry<'_>>,
    ) -> Result<(), WriteError> {
        let moving = sorted_entries(&session.pmem(), self.is_word(), &leaf);
        let key = new.as_ref().map(|new| new.key).filter(|_| leaf.next().is_none());
        let point = split_point(self.is_word(), &moving, key);
        let (right, posting) = self.split_at(session, &leaf, &moving, point, new)?;
        drop((leaf, right));
        self.post(session, &posting);
        Ok(())
    }

    /// [Splits](Self::split) a leaf behind so many of its sorted entries, and returns the lock of the right sibling with this low separator.
    pub(crate) fn split_at<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        leaf: &FrameLock<'_>,
        moving: &[Moving],
        (kept, separator_bytes): SplitPoint,
        new: Option<NewEntry<'_>>,
    ) -> Result<(FrameLock<'c>, Posting), WriteError> {
        // Under the lock, as for a stamp.
        session.check_not_poisoned()?;
        let pmem = &session.pmem();
        let right = session.space.reserve_node(&session.heap)?;
        let (low, low_record) = self.store_separator(session, &separator_bytes)?;
        let goes_right = |new: &&NewEntry<'_>| low.is_at_or_below(pmem, new.key);
        let new_in_right = new.as_ref().filter(goes_right);
        let new_in_left = new.as_ref().filter(|new| !goes_right(new));

        let birth = session.epochs.next_birth();
        let frame = session.frames.get(right.frame());
        let seed = node_seed(self.id.table, right.offset(), birth);
        let mut filled = 0;
        for moving in &moving[kept..] {
            moving.entry.store(pmem, entry_offset(right.offset(), filled), seed);
            frame.set_fingerprint(filled, leaf.fingerprint(moving.slot));
            filled += 1;
        }
        if let Some(new) = new_in_right {
            new.entry(session, leaf)?.store(pmem, entry_offset(right.offset(), filled), seed);
            frame.set_fingerprint(filled, new.key.fingerprint());
            filled += 1;
        }
        Self::store_header(
            session,
            self.id,
            right.offset(),
            &low,
            low_record_crc(&low, &separator_bytes),
            birth,
            leaf.next(),
        );
        pmem.flush(right.offset(), NODE_HEADER_BYTES + filled as u64 * ENTRY_BYTES);
        session.fence()?;
        // Nothing refers to the sibling yet, so until here a failure has given both units back.
        let (id, right_node) = (right.frame(), right.offset());
        right.keep();
        if let Some(record) = low_record {
            record.keep();
        }

        self.init_frame(session, id, right_node, seed, (1 << filled) - 1, leaf);
        let right = frame.lock();
        right.publish();
        self.link_sibling(session, leaf, id, low, new_in_left, &moving[kept..])?;
        Ok((right, Posting { id, low, separator_bytes }))
    }

    /// Posts a new leaf to the index.
    pub(crate) fn post<P: Pmem>(&self, session: &Session<P>, posting: &Posting) {
        let Posting { id, low, separator_bytes } = posting;
        self.index.post(session, *low, *id, &self.separator_key(separator_bytes));
    }

    /// Links the right sibling, and writes an entry into the left half if there is one.
    fn link_sibling<P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: &FrameLock<'_>,
        right: FrameId,
        low: Separator,
        new: Option<&NewEntry<'_>>,
        moved: &[Moving],
    ) -> Result<(), WriteError> {
        let pmem = &session.pmem();
        let owed = leaf.owed.load(Ordering::Relaxed);
        let live = leaf.live.load(Ordering::Relaxed);
        let mut remaining = moved.iter().fold(live, |live, moved| live & !(1 << moved.slot));
        // The moved entries are still in their slots, and the link to the sibling may be lost: so only a slot that was free before may be written.
        let free = session.all_slots() & !leaf.taken();
        let slot = if owed == 0 { free } else { owed }.trailing_zeros() as usize;
        let entry = new.map(|new| new.entry(session, leaf)).transpose()?;
        let next = leaf.node() + offset_of!(NodeHeader, next) as u64;
        leaf.begin();
        pmem.store_u64(next, checked(session.space.node_offset(right), next));
        pmem.flush(next, 8);
        if let Some(entry) = entry {
            entry.store(pmem, entry_offset(leaf.node(), slot), leaf.seed());
            pmem.flush(entry_offset(leaf.node(), slot), ENTRY_BYTES);
        }
        flush_owed(pmem, leaf, owed);
        // DURABILITY POINT
        let fenced = session.fence();
        if fenced.is_ok() {
            settle_owed(session, leaf);
            if let Some(new) = new {
                leaf.set_fingerprint(slot, new.key.fingerprint());
                remaining |= 1 << slot;
            }
            if let Some(id) = session.space.frame_of(leaf.node()) {
                self.ends.move_last(id, right);
            }
            leaf.set_next(right, low);
            leaf.live.store(remaining, Ordering::Release);
        }
        leaf.end();
        fenced?;
        if !self.is_word() && !moved.is_empty() {
            self.clear_moved(session, leaf, moved)?;
        }
        Ok(())
    }

    /// Empties the slots of entries that were moved to the right sibling, whose lock the caller has too, and fences.
    ///
    /// Only its record shows that an entry of a byte key was moved, if the first eight bytes of the key are those of the separator. So the slot is durably
    /// empty before a later change of the sibling releases the record.
    fn clear_moved<P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: &FrameLock<'_>,
        moved: &[Moving],
    ) -> Result<(), WriteError> {
        let mut slots = 0;
        for moved in moved {
            session.pmem().store_u64(entry_offset(leaf.node(), moved.slot) + offset_in_entry::COMMIT, 0);
            slots |= 1 << moved.slot;
        }
        // The slot of the new entry may be in one of these lines, and is durable already.
        flush_owed(&session.pmem(), leaf, slots);
        Ok(session.fence()?)
    }

    /// A separator's bytes as a key.
    fn separator_key<'a>(&self, bytes: &'a [u8]) -> SearchKey<'a> {
        if self.is_word() {
            SearchKey::word(crate::node::head_of(bytes))
        } else {
            SearchKey::bytes_key(bytes)
        }
    }

    /// The separator with these bytes. If they do not fit in a word, stores them in a record, which the caller fences.
    fn store_separator<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        bytes: &[u8],
    ) -> Result<(Separator, Option<Reserved<'c>>), WriteError> {
        let head = crate::node::head_of(bytes);
        if self.is_word() || (bytes.len() <= INLINE_BYTES && bytes.last() != Some(&0)) {
            return Ok((Separator { head, record: 0, len: 0 }, None));
        }
        let record = session.space.reserve_record(&session.heap, bytes.len() as u64)?;
        session.pmem().store_nt(record.offset(), bytes);
        let len = u32::try_from(bytes.len()).expect("a key is shorter than a record");
        Ok((Separator { head, record: record.offset(), len }, Some(record)))
    }

    fn store_header<P: Pmem>(
        session: &Session<P>,
        id: TreeId,
        node: u64,
        low: &Separator,
        low_record_crc: u32,
        birth: u64,
        next: Option<FrameId>,
    ) {
        let next = next.map_or(0, |next| session.space.node_offset(next));
        let place = |offset: usize| node + offset as u64;
        let header = NodeHeader {
            magic: NODE_MAGIC,
            level: 0,
            kind: if id.is_word { KIND_WORD } else { KIND_BYTES },
            table: id.table,
            state: checked(STATE_LIVE, place(offset_of!(NodeHeader, state))),
            low: low.head,
            next: checked(next, place(offset_of!(NodeHeader, next))),
            low_record: low.record,
            birth,
            crc: 0,
            low_record_crc,
            low_record_len: low.len,
            reserved: 0,
        };
        let header = NodeHeader { crc: header.expected_crc(node), ..header };
        session.pmem().store(node, bytes_of(&header));
    }

    /// Initializes the frame of a new node, which no reader finds yet.
    fn init_frame<P: Pmem>(
        &self,
        session: &Session<P>,
        id: FrameId,
        node: u64,
        seed: u32,
        live: u64,
        left: &Frame,
    ) {
        let frame = session.frames.get(id);
        frame.node.store(node, Ordering::Relaxed);
        frame.seed.store(seed, Ordering::Relaxed);
        frame.owed.store(0, Ordering::Relaxed);
        frame.held.store(0, Ordering::Relaxed);
        frame.tombstones.store(0, Ordering::Relaxed);
        // The stamps of the moved entries are in the left node's order, and later ones must be greater.
        frame.order.store(left.order.load(Ordering::Relaxed), Ordering::Relaxed);
        frame.set_next(left.next().unwrap_or(FrameId::NONE), left.high());
        frame.is_swept.store(left.is_swept.load(Ordering::Relaxed), Ordering::Relaxed);
        frame.live.store(live, Ordering::Release);
    }

    /// Creates a tree with an empty leaf, and returns the offset of the leaf.
    ///
    /// # Durability
    /// Durable when this returns, at one fence. Nothing refers to the tree yet, and a crash frees it.
    pub(crate) fn create<P: Pmem>(
        session: &Session<P>,
        table: u16,
        key_width: Option<usize>,
    ) -> Result<(u64, Self), WriteError> {
        session.check_not_poisoned()?;
        let node = session.space.reserve_node(&session.heap)?;
        let (offset, first) = (node.offset(), node.frame());
        let birth = session.epochs.next_birth();
        let id = TreeId { table, is_word: key_width.is_some() };
        Self::store_header(session, id, offset, &Separator::LOWEST, 0, birth, None);
        session.pmem().flush(offset, NODE_HEADER_BYTES);
        // The catalogue has few leaves, and nothing that could name its anchor.
        let anchor = if table == CATALOGUE { 0 } else { hints::create_anchor(session, offset)? };
        session.fence()?;
        node.keep();
        let index = Index::new(id, first, anchor);
        let frame = session.frames.get(first).lock();
        frame.node.store(offset, Ordering::Relaxed);
        frame.seed.store(node_seed(table, offset, birth), Ordering::Relaxed);
        frame.set_next(FrameId::NONE, Separator::LOWEST);
        frame.is_swept.store(true, Ordering::Relaxed);
        frame.publish();
        drop(frame);
        let (ends, len, unreadable) = (Ends::new(first), AtomicU64::new(0), OnceLock::new());
        Ok((offset, Self { id, key_width, first, index, ends, len, unreadable }))
    }
}

/// The checksum of the low record of a separator with these bytes.
fn low_record_crc(separator: &Separator, bytes: &[u8]) -> u32 {
    if separator.record == 0 { 0 } else { crc32c_bytes(0, bytes) }
}

/// Notes that the replaced entries of the last change are durably gone, and releases their records.
pub(crate) fn settle_owed<P: Pmem>(session: &Session<P>, leaf: &FrameLock<'_>) {
    leaf.owed.store(0, Ordering::Relaxed);
    leaf.tombstones.store(0, Ordering::Relaxed);
    let release = |record: RecordRef| session.release_record(record);
    match leaf.owed_payload.swap(0, Ordering::Relaxed) {
        0 => (),
        RecordRef::LIST_PAYLOAD => session.batches.take_replaced(leaf.node()).into_iter().for_each(release),
        payload => release(RecordRef::from_payload(payload)),
    }
}

/// The records of the replaced entries of the last change, which are not released yet.
pub(crate) fn owed_records<P: Pmem>(session: &Session<P>, leaf: &FrameLock<'_>) -> Vec<RecordRef> {
    match leaf.owed_payload.load(Ordering::Relaxed) {
        0 => Vec::new(),
        RecordRef::LIST_PAYLOAD => session.batches.replaced(leaf.node()),
        payload => vec![RecordRef::from_payload(payload)],
    }
}

/// The offsets of an entry's words.
pub(crate) mod offset_in_entry {
    pub(crate) const COMMIT: u64 = 24;
}
