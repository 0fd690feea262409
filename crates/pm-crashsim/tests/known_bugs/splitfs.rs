//! SplitFS: a metadata operation is an entry of a log. The directory follows later; after a crash, by replaying the log.

use crate::harness::*;

/// How many entries of the log are valid, and the entries: what was done, the name, the new name, the inode.
const LOG_COUNT: u64 = 0;
const LOG: u64 = 64;
const CREATE: u64 = 1;
const RENAME: u64 = 2;
/// The directory: entries of a word on a line each, the name in the upper half, the inode in the lower.
const DIRECTORY: u64 = 1024;
const ENTRY_COUNT: u64 = 4;

fn log(pmem: &SimPmem, operation: [u64; 4]) -> Done {
    let count = pmem.load_u64(LOG_COUNT);
    pmem.store(LOG + 64 * count, &bytes_of(&operation));
    pmem.persist(LOG + 64 * count, 32)?;
    pmem.put(LOG_COUNT, count + 1)
}

fn put(pmem: &SimPmem, place: u64, name: u64, inode: u64) {
    pmem.store_u64(place, name << 32 | inode); //~ B31 kept in recovery
    pmem.flush(place, 8);
}

/// The entries that are taken: where, name and inode.
fn directory(pmem: &SimPmem) -> impl Iterator<Item = (u64, u64, u64)> {
    let places = (0..ENTRY_COUNT).map(|index| DIRECTORY + 64 * index);
    let entries = places.map(|place| (place, pmem.load_u64(place)));
    entries
        .filter(|&(_, word)| word != 0)
        .map(|(place, word)| (place, word >> 32, word & u64::from(u32::MAX)))
}

fn by_name(pmem: &SimPmem, wanted: u64) -> Option<u64> {
    directory(pmem).find(|&(_, name, _)| name == wanted).map(|(place, ..)| place)
}

fn by_inode(pmem: &SimPmem, wanted: u64) -> Option<u64> {
    directory(pmem).find(|&(.., inode)| inode == wanted).map(|(place, ..)| place)
}

/// Creates the file, unless it was created before: by its name, or by what a rename leaves as it is.
fn replay_create(pmem: &SimPmem, form: Form, name: u64, inode: u64) {
    let done = if form == Form::Bug { by_name(pmem, name) } else { by_inode(pmem, inode) };
    if done.is_none() {
        let free = (0..ENTRY_COUNT).map(|index| DIRECTORY + 64 * index).find(|&at| pmem.load_u64(at) == 0);
        put(pmem, free.expect("the directory has room"), name, inode);
    }
}

/// Renames the file, unless that was done before.
fn replay_rename(pmem: &SimPmem, name: u64, new_name: u64, inode: u64) {
    if by_name(pmem, new_name).is_none() {
        put(pmem, by_name(pmem, name).expect("was created"), new_name, inode);
    }
}

/// Does what the log says, in order, then empties it.
fn recover(pmem: &SimPmem, form: Form) -> Done {
    let count = pmem.load_u64(LOG_COUNT);
    for number in 0..count {
        let [action, name, new_name, inode] = load_words(pmem, LOG + 64 * number);
        match action {
            CREATE => replay_create(pmem, form, name, inode),
            RENAME => replay_rename(pmem, name, new_name, inode),
            other => panic!("the log says {other}"),
        }
    }
    if count > 0 {
        pmem.fence()?;
        // Not flushed: until it is durable, the next recovery replays the same.
        pmem.store_u64(LOG_COUNT, 0);
    }
    Ok(())
}

/// B31, reported by Chipmunk: a crash inside the replay leaves a part of the log replayed, and the next replay starts
/// from its beginning. The file whose rename is done has a new name, so its creation under the old one is done again:
/// the directory has it twice. Corrected, a replay looks for the inode.
pub(crate) fn replay_resurrects_a_renamed_file(form: Form) -> Case {
    let operations = [[CREATE, 5, 0, 50], [RENAME, 5, 6, 50]];
    let states = [vec![], vec![(5, 50)], vec![(6, 50)]];
    Case::steps(image(|_| ()), operations, log, states, move |pmem| {
        recover(pmem, form)?;
        Ok(directory(pmem).map(|(_, name, inode)| (name, inode)).collect())
    })
}
