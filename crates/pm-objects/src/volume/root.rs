//! The two copies of the root block: what never changes, the session, the intent.

use super::file::FileTier;
use super::options::ObjectsOptions;
use super::volume::{Change, Volume};
use crate::error::{Corruption, ObjectError, OpenError, Structure};
use crate::format::{
    Intent, KNOWN_INCOMPAT, MAGIC, ROOT, ROOT_COPY, RootBlock, RootHeader, VERSION, intent_kind, owner, seal,
    unseal,
};
use core::mem::{offset_of, size_of};
use pm_btree::Store;
use pm_core::{Pmem, bytes_of, from_bytes};

/// The offsets of the copies of the root block. A copy whose root is lost has none.
#[derive(Clone, Debug)]
pub(crate) struct Roots {
    copies: Vec<u64>,
}

/// The identity of the file of a pool: that of the pool, with another version number.
const fn file_uuid(mut pool: [u8; 16]) -> [u8; 16] {
    pool[6] = pool[6] & 0x0f | 0x80;
    pool
}

/// The change of names in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Nothing is to be done.
    None,
    /// This object is to be freed.
    Build(u64),
    /// The name is to be that of `new`, or of no object, and then `old` is to be freed.
    Set { name: String, new: Option<u64>, old: Option<u64> },
}

impl Roots {
    /// Makes the root blocks of a new pool, in one transaction.
    ///
    /// # Durability
    /// A crash leaves both or none.
    pub(crate) fn format<P: Pmem>(
        store: Store<P>,
        file: Option<P>,
        options: &ObjectsOptions,
    ) -> Result<Volume<P>, OpenError> {
        let pool_bytes = store.heap().pmem().len_bytes();
        let uuid = *store.heap().pool().uuid().as_bytes();
        let halves = [&uuid[..8], &uuid[8..]].map(|half| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(half);
            u64::from_le_bytes(bytes)
        });
        let header = RootHeader {
            magic: MAGIC,
            version: VERSION,
            chunk_bytes: options.chunk_bytes,
            features_incompat: 0,
            features_compat: 0,
            slab_bytes: options.slab_length(pool_bytes),
            seed: options.seed.unwrap_or(halves[0] ^ halves[1].rotate_left(1)),
            pool_uuid: uuid,
            file_uuid: if file.is_some() { file_uuid(uuid) } else { [0; 16] },
            file_slots: file.as_ref().map_or(0, |file| FileTier::slots_of(file, options.chunk_bytes)),
            reserved: [0; 4],
            crc: 0,
            reserved_1: 0,
        };
        let header = RootHeader { crc: header.expected_crc(), ..header };
        // Durable before the root refers to it.
        let file = file.map(|pmem| FileTier::format(pmem, &header)).transpose()?;
        let volume = Volume::new(store, file, &header, false);
        volume.transaction(|change| {
            let mut intent = Intent::of(intent_kind::NONE, 0, 0, "");
            intent.crc = intent.expected_crc(header.seed);
            for name in [ROOT, ROOT_COPY] {
                let offset = change.alloc(size_of::<RootBlock>() as u64)?;
                let word = |at| seal(header.seed, owner::ROOT, offset + at as u64, 0);
                let (session, slabs) = (offset_of!(RootBlock, session), offset_of!(RootBlock, slabs));
                let block = RootBlock {
                    header,
                    session: word(session),
                    slabs: word(slabs),
                    maps: word(offset_of!(RootBlock, maps)),
                    reserved: [0; 5],
                    intent,
                };
                change.fill(offset, bytes_of(&block));
                change.set_root::<RootBlock>(name, offset)?;
            }
            Ok(())
        })?;
        Ok(volume)
    }

    /// Finds the copies of the root block, and what never changes.
    pub(crate) fn find<P: Pmem>(store: &Store<P>) -> Result<(Self, RootHeader), OpenError> {
        let heap = store.heap();
        let found = |name| {
            let found =
                heap.view(|view| view.root::<RootBlock>(name).map(|root| root.map(|root| root.offset())));
            found.map_err(ObjectError::from)
        };
        let (first, copy) = (found(ROOT), found(ROOT_COPY));
        let copies: Vec<u64> =
            [&first, &copy].into_iter().filter_map(|found| found.as_ref().ok().copied().flatten()).collect();
        if copies.is_empty() {
            first?;
            copy?;
            return Err(OpenError::NoObjects);
        }
        let headers =
            copies.iter().map(|offset| from_bytes::<RootHeader>(|bytes| heap.pmem().load(*offset, bytes)));
        let header = headers
            .into_iter()
            .find(|header| header.magic == MAGIC && header.crc == header.expected_crc())
            .ok_or(Corruption { offset: copies[0], what: Structure::Root })?;
        if header.version != VERSION {
            return Err(OpenError::Version { found: header.version, supported: VERSION });
        }
        let unknown = header.features_incompat & !KNOWN_INCOMPAT;
        if unknown != 0 {
            return Err(OpenError::UnknownFeatures { unknown });
        }
        Ok((Self { copies }, header))
    }

    /// The offsets of the copies.
    pub(crate) fn offsets(&self) -> &[u64] {
        &self.copies
    }

    /// The contents of a sealed word, at `at` in the root block.
    fn word<P: Pmem>(&self, volume: &Volume<P>, at: usize) -> Result<u64, ObjectError> {
        let places = self.copies.iter().map(|copy| copy + at as u64);
        let mut words =
            places.filter_map(|place| unseal(volume.seed, owner::ROOT, place, volume.pmem().load_u64(place)));
        words.next().ok_or(ObjectError::corrupted(self.copies[0] + at as u64, Structure::Root))
    }

    /// Writes a sealed word to both copies.
    fn set_word<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        at: usize,
        contents: u64,
    ) -> Result<(), ObjectError> {
        self.copies.iter().try_for_each(|copy| change.set_sealed(owner::ROOT, copy + at as u64, contents))
    }

    /// The number of the session.
    pub(crate) fn session<P: Pmem>(&self, volume: &Volume<P>) -> Result<u64, ObjectError> {
        self.word(volume, offset_of!(RootBlock, session))
    }

    pub(crate) fn set_session<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        session: u64,
    ) -> Result<(), ObjectError> {
        self.set_word(change, offset_of!(RootBlock, session), session)
    }

    /// The place of the first block of the list of slabs, or 0.
    pub(crate) fn slabs<P: Pmem>(&self, volume: &Volume<P>) -> Result<u64, ObjectError> {
        self.word(volume, offset_of!(RootBlock, slabs))
    }

    pub(crate) fn set_slabs<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        place: u64,
    ) -> Result<(), ObjectError> {
        self.set_word(change, offset_of!(RootBlock, slabs), place)
    }

    /// The place of the first block of the map of the file's slots, or 0.
    pub(crate) fn maps<P: Pmem>(&self, volume: &Volume<P>) -> Result<u64, ObjectError> {
        self.word(volume, offset_of!(RootBlock, maps))
    }

    pub(crate) fn set_maps<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        place: u64,
    ) -> Result<(), ObjectError> {
        self.set_word(change, offset_of!(RootBlock, maps), place)
    }

    /// The change of names in progress.
    pub(crate) fn pending<P: Pmem>(&self, volume: &Volume<P>) -> Result<Pending, ObjectError> {
        let at = |copy: &u64| copy + offset_of!(RootBlock, intent) as u64;
        let unclear = || ObjectError::corrupted(at(&self.copies[0]), Structure::Intent);
        let intents = self.copies.iter().map(|copy| volume.load::<Intent>(at(copy)));
        let is_valid = |intent: &Intent| {
            intent.name_bytes as usize <= crate::format::NAME_MAX
                && intent.crc == intent.expected_crc(volume.seed)
        };
        let intent = intents.into_iter().find(is_valid).ok_or_else(unclear)?;
        let some = |offset: u64| (offset != 0).then_some(offset);
        match intent.kind {
            intent_kind::NONE => Ok(Pending::None),
            intent_kind::BUILD => Ok(Pending::Build(intent.new)),
            intent_kind::SET => {
                let name = core::str::from_utf8(&intent.name[..intent.name_bytes as usize]);
                let name = name.map_err(|_| unclear())?.to_owned();
                Ok(Pending::Set { name, new: some(intent.new), old: some(intent.old) })
            }
            _ => Err(unclear()),
        }
    }

    /// Writes the change of names in progress to both copies.
    pub(crate) fn set_pending<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        pending: &Pending,
    ) -> Result<(), ObjectError> {
        let mut intent = match pending {
            Pending::None => Intent::of(intent_kind::NONE, 0, 0, ""),
            Pending::Build(new) => Intent::of(intent_kind::BUILD, *new, 0, ""),
            Pending::Set { name, new, old } => {
                Intent::of(intent_kind::SET, new.unwrap_or(0), old.unwrap_or(0), name)
            }
        };
        intent.crc = intent.expected_crc(change.volume.seed);
        let bytes = &bytes_of(&intent)[..intent.used_bytes()];
        let at = |copy| copy + offset_of!(RootBlock, intent) as u64;
        self.copies.iter().try_for_each(|copy| change.write_bytes(at(copy), bytes))
    }
}
