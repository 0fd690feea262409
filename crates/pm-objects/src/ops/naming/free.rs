//! Frees an object that has no name: its chunks from the last one on, then its table and its block.

use crate::error::ObjectError;
use crate::format::{Entry, LEAF_ENTRIES, tier};
use crate::session::shared::{NamesState, Shared};
use crate::volume::object::ObjectRef;
use crate::volume::root::Pending;
use crate::volume::table::{Home, Leaf, Table};
use pm_core::Pmem;

/// The number of chunks that one transaction frees.
const STEP_CHUNKS: usize = 32;

/// What is left of an object to be freed.
struct Rest {
    table: Option<Table>,
    chunks: u64,
    len_bytes: u64,
    leaves: Vec<Leaf>,
}

impl Rest {
    /// All of an object. Where its block or its table is corrupted, its chunks are not found, and stay in use.
    fn of<P: Pmem>(shared: &Shared<P>, object: &ObjectRef) -> Self {
        let volume = &shared.volume;
        let len_bytes = object.len_bytes(volume).unwrap_or(0);
        let chunks = object.chunks(len_bytes);
        match Table::of(volume, object) {
            Ok(table) => Self { table: Some(table), chunks, len_bytes, leaves: table.leaves(volume, object) },
            Err(_) => Self { table: None, chunks: 0, len_bytes: 0, leaves: Vec::new() },
        }
    }

    /// Takes the next chunks to be freed off the end, with their places. A chunk whose entry is corrupted stays in use.
    fn take<P: Pmem>(&mut self, shared: &Shared<P>, object: &ObjectRef) -> Vec<(u64, Home)> {
        let mut taken = Vec::new();
        let mut leaves = 0;
        while self.chunks > 0 && taken.len() < STEP_CHUNKS && leaves < STEP_CHUNKS {
            let index = self.chunks - 1;
            leaves += usize::from(index.is_multiple_of(LEAF_ENTRIES));
            let len_bytes = object.chunk(index, self.len_bytes);
            let table = self.table.expect("there are chunks");
            let home =
                table.home(&shared.volume, &shared.slots, object, index, len_bytes.end - len_bytes.start);
            if let Ok(home @ (Home::Slot(_) | Home::File { .. })) = home {
                taken.push((index, home));
            }
            self.chunks = index;
        }
        taken
    }
}

/// Frees an object that the intent names as the one to be freed. With its end the intent is none.
///
/// # Durability
/// In steps, each a transaction of one fence: after a crash, recovery goes on with what is left.
pub(crate) fn free<P: Pmem>(
    shared: &Shared<P>,
    state: &mut NamesState,
    object: &ObjectRef,
) -> Result<(), ObjectError> {
    let volume = &shared.volume;
    let mut rest = Rest::of(shared, object);
    loop {
        let taken = rest.take(shared, object);
        let is_last = rest.chunks == 0;
        let first_kept = rest.leaves.partition_point(|leaf| leaf.first < rest.chunks);
        let leaves = rest.leaves.split_off(first_kept);
        let mut slots = shared.slot_change();
        for (_, home) in &taken {
            match home {
                Home::Slot(slot) => slots.free(slot.clone()),
                Home::File { slot, .. } => slots.free_in_file(*slot),
                Home::Hole => {}
            }
        }
        let freed = volume.transaction(|change| {
            slots.write(change)?;
            for leaf in &leaves {
                change.free(leaf.block)?;
            }
            if is_last {
                let blocks = [rest.table.and_then(Table::block), Some(object.offset)];
                blocks.into_iter().flatten().try_for_each(|block| change.free(block))?;
                return shared.roots.set_pending(change, &Pending::None);
            }
            let table = rest.table.expect("there are chunks");
            for leaf in &leaves {
                change.set_sealed(object.number, leaf.link_at, 0)?;
            }
            let is_in_leaf =
                |index| leaves.iter().any(|leaf| (leaf.first..leaf.first + LEAF_ENTRIES).contains(&index));
            let hole = |index| (index, Entry::new(volume.seed, object.number, index, tier::HOLE, 0));
            let left = taken.iter().map(|(index, _)| *index).filter(|index| !is_in_leaf(*index));
            let holes: Vec<(u64, Entry)> = left.rev().map(hole).collect();
            table.write_existing(change, object, &holes)
        });
        freed?;
        slots.complete();
        if let Some(placement) = &shared.placement {
            placement.note_pool_full(false);
        }
        if is_last {
            (state.has_intent, state.is_unfinished) = (false, false);
            return Ok(());
        }
    }
}
