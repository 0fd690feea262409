//! Checks that each object is sound, and that everything in use belongs to an object.

use crate::error::{Corruption, ObjectError, Structure};
use crate::format::{INCOMPLETE, WORD_SLOTS, short};
use crate::session::shared::{Row, Shared};
use crate::volume::object::ObjectRef;
use crate::volume::root::Pending;
use crate::volume::slabs::Slot;
use crate::volume::table::{Home, Table};
use pm_core::Pmem;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// What [`Objects::check`](crate::Objects::check) has found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The number of objects.
    pub objects: u64,
    /// The number of their chunks that have a place.
    pub chunks: u64,
    /// The number of those in the file.
    pub chunks_in_file: u64,
    /// What is not as it should be.
    pub problems: Vec<Problem>,
}

/// Something that no operation and no crash leaves, or space that no object uses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A part of an object is corrupted.
    #[error("object {name:?}: {corruption}")]
    Object {
        /// The name of the object.
        name: String,
        /// The corrupted part.
        corruption: Corruption,
    },
    /// What all objects need is corrupted.
    #[error(transparent)]
    Corrupted(#[from] Corruption),
    /// A chunk in the file cannot be read.
    #[error("object {name:?}: {what}")]
    File {
        /// The name of the object.
        name: String,
        /// The reason.
        what: String,
    },
    /// A chunk is in a slot of the file that counts as free, or that of another chunk.
    #[error(
        "object {name:?}: its chunk in slot {slot} of the file is also another chunk's, or counts as free"
    )]
    FileSlot {
        /// The name of the object.
        name: String,
        /// The number of the slot.
        slot: u64,
    },
    /// A slot of the file counts as in use, and has no chunk of an object. Its space is lost.
    #[error("slot {slot} of the file is in use, and no object has it")]
    OrphanedFileSlot {
        /// The number of the slot.
        slot: u64,
    },
    /// Two chunks have the same place.
    #[error("object {name:?}: its chunk at offset {offset} is also that of another object, or another chunk")]
    Twice {
        /// The name of the object.
        name: String,
        /// The offset of the chunk.
        offset: u64,
    },
    /// A chunk is in a slot that counts as free.
    #[error("object {name:?}: its chunk at offset {offset} is in a slot that counts as free")]
    NotInUse {
        /// The name of the object.
        name: String,
        /// The offset of the chunk.
        offset: u64,
    },
    /// A slot counts as in use, and has no chunk of an object. Its space is lost.
    #[error("the slot at offset {offset} is in use, and no object has it")]
    OrphanedSlot {
        /// The offset of the slot.
        offset: u64,
    },
    /// A block is allocated, and belongs to no object. Its space is lost.
    #[error("the block at offset {offset} is allocated, and belongs to no object")]
    OrphanedBlock {
        /// The offset of the block.
        offset: u64,
    },
    /// The names are corrupted.
    #[error("the names: {0}")]
    Names(String),
    /// The header of a block of the heap is corrupted.
    #[error("the header of the heap's block at offset {offset} is corrupted")]
    Heap {
        /// The offset of the header.
        offset: u64,
    },
}

/// What a check has seen.
struct Seen<'s, P: Pmem> {
    shared: &'s Shared<P>,
    report: CheckReport,
    /// The blocks of the heap that belong to something.
    blocks: BTreeSet<u64>,
    /// By the offset of a slab, a bit for each slot that has a chunk.
    slots: FxHashMap<u64, Vec<u64>>,
    /// Slots of the file that have a chunk.
    in_file: BTreeSet<u64>,
}

/// Verifies everything.
pub(crate) fn check<P: Pmem>(shared: &Shared<P>) -> Result<CheckReport, ObjectError> {
    let volume = &shared.volume;
    let mut seen = Seen {
        shared,
        report: CheckReport::default(),
        blocks: BTreeSet::new(),
        slots: FxHashMap::default(),
        in_file: BTreeSet::new(),
    };
    let problems = &mut seen.report.problems;
    let names = volume.store.check()?;
    problems.extend(names.corruptions.iter().map(|(_, corruption)| Problem::Names(corruption.to_string())));
    problems.extend(
        names.heap.corruptions.iter().map(|corruption| Problem::Heap { offset: corruption.header_offset }),
    );
    let pending = shared.roots.pending(volume);
    if let Err(ObjectError::Corrupted(corruption)) = &pending {
        problems.push(corruption.clone().into());
    }
    if let Some(all) = shared.names() {
        for found in all.range(..) {
            match found {
                Ok((name, row)) => seen.object(name.value(), &row.value()),
                Err(error) => seen.report.problems.push(Problem::Names(error.to_string())),
            }
        }
    }
    seen.unnamed(&pending.unwrap_or(Pending::None));
    seen.slabs();
    seen.file();
    seen.blocks();
    Ok(seen.report)
}

impl<P: Pmem> Seen<'_, P> {
    fn object(&mut self, name: &str, row: &Row) {
        self.report.objects += u64::from(!name.starts_with(INCOMPLETE));
        let checked = self.shared.find(row).and_then(|object| self.chunks(name, &object));
        if let Err(ObjectError::Corrupted(corruption)) = checked {
            self.report.problems.push(Problem::Object { name: name.to_owned(), corruption });
        }
    }

    /// Objects of a change in progress, which a pool that is only read may have: recovery would give them their names, or free them.
    fn unnamed(&mut self, pending: &Pending) {
        let objects = match pending {
            Pending::None => [None, None],
            Pending::Build(new) => [Some(*new), None],
            Pending::Set { new, old, .. } => [*new, *old],
        };
        if !self.shared.volume.is_read_only {
            // Recovery has ended the change.
            return;
        }
        for offset in objects.into_iter().flatten() {
            if self.blocks.contains(&offset) {
                continue;
            }
            let name = "(a change in progress)";
            let checked =
                ObjectRef::find(&self.shared.volume, offset).and_then(|object| self.chunks(name, &object));
            if let Err(ObjectError::Corrupted(corruption)) = checked {
                self.report.problems.push(Problem::Object { name: name.to_owned(), corruption });
            }
        }
    }

    fn chunks(&mut self, name: &str, object: &ObjectRef) -> Result<(), ObjectError> {
        let volume = &self.shared.volume;
        self.blocks.insert(object.offset);
        let len_bytes = object.len_bytes(volume)?;
        let chunks = object.chunks(len_bytes);
        let table = Table::of(volume, object)?;
        self.blocks.extend(table.block());
        self.blocks.extend(table.leaves(volume, object).iter().map(|leaf| leaf.block));
        for index in 0..chunks {
            let chunk = object.chunk(index, len_bytes);
            match table.home(volume, &self.shared.slots, object, index, chunk.end - chunk.start) {
                Ok(Home::Hole) => {}
                Ok(Home::Slot(slot)) => self.slot(name, &slot),
                Ok(Home::File { slot, crc }) => {
                    let len_bytes = short(chunk.end - chunk.start);
                    self.file_slot(name, slot, crc, len_bytes);
                }
                Err(ObjectError::Corrupted(corruption)) => {
                    self.report.problems.push(Problem::Object { name: name.to_owned(), corruption });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn slot(&mut self, name: &str, slot: &Slot) {
        self.report.chunks += 1;
        let words = short(slot.slab.shape.words());
        let bits = self.slots.entry(slot.slab.offset).or_insert_with(|| vec![0; words]);
        let word = &mut bits[short(slot.word())];
        let (name, offset) = (name.to_owned(), slot.offset());
        if *word & slot.bit() != 0 {
            self.report.problems.push(Problem::Twice { name, offset });
            return;
        }
        *word |= slot.bit();
        let used = slot.slab.used_in(&self.shared.volume, slot.word());
        if used.is_some_and(|used| used & slot.bit() == 0) {
            self.report.problems.push(Problem::NotInUse { name, offset });
        }
    }

    fn file_slot(&mut self, name: &str, slot: u64, crc: u32, len_bytes: usize) {
        let file = self.shared.volume.file();
        self.report.chunks += 1;
        self.report.chunks_in_file += 1;
        let name = name.to_owned();
        if let Err(error) = file.load(slot, crc, &mut vec![0; len_bytes]) {
            self.report.problems.push(Problem::File { name: name.clone(), what: error.to_string() });
        }
        let used = file.used_in(slot / WORD_SLOTS);
        let is_free = used.is_some_and(|used| used & 1 << (slot % WORD_SLOTS) == 0);
        if is_free || !self.in_file.insert(slot) {
            self.report.problems.push(Problem::FileSlot { name, slot });
        }
    }

    /// Looks for slots of the file in use without a chunk.
    fn file(&mut self) {
        let Some(file) = &self.shared.volume.file else { return };
        self.blocks.extend(file.blocks());
        if let Some(offset) = file.broken_at() {
            self.report.problems.push(Corruption { offset, what: Structure::Map }.into());
        }
        for word in 0..file.known_words() {
            let Some(used) = file.used_in(word) else {
                let corruption = Corruption { offset: file.word_at(word), what: Structure::Map };
                self.report.problems.push(corruption.into());
                continue;
            };
            let slots = (0..WORD_SLOTS).filter(|bit| used & 1 << bit != 0).map(|bit| word * WORD_SLOTS + bit);
            let orphans = slots.filter(|slot| !self.in_file.contains(slot));
            self.report.problems.extend(orphans.map(|slot| Problem::OrphanedFileSlot { slot }));
        }
    }

    /// Looks for slots in use without a chunk.
    fn slabs(&mut self) {
        for slab in self.shared.slots.slabs() {
            self.blocks.insert(slab.offset);
            let seen = self.slots.get(&slab.offset);
            for word in 0..slab.shape.words() {
                let Some(used) = slab.used_in(&self.shared.volume, word) else {
                    let corruption = Corruption { offset: slab.word_at(word), what: Structure::Slab };
                    self.report.problems.push(corruption.into());
                    continue;
                };
                let has_chunk = seen.map_or(0, |seen| seen[short(word)]);
                let orphans = used & !has_chunk;
                for bit in (0..WORD_SLOTS).filter(|bit| orphans & 1 << bit != 0) {
                    let slot = Slot { slab: slab.clone(), index: word * WORD_SLOTS + bit };
                    self.report.problems.push(Problem::OrphanedSlot { offset: slot.offset() });
                }
            }
        }
    }

    /// Looks for blocks that belong to nothing.
    fn blocks(&mut self) {
        let (directory, broken_at) = self.shared.slots.directory();
        if let Some(offset) = broken_at {
            self.report.problems.push(Corruption { offset, what: Structure::Directory }.into());
        }
        self.blocks.extend(directory);
        self.blocks.extend(self.shared.roots.offsets());
        self.blocks.extend(self.shared.volume.store.blocks());
        let all = self.shared.volume.heap().blocks();
        let orphans = all.into_iter().filter(|block| !self.blocks.contains(block));
        self.report.problems.extend(orphans.map(|offset| Problem::OrphanedBlock { offset }));
    }
}
