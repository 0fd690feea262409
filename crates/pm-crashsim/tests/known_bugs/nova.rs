//! NOVA: each inode has a log, valid up to its tail, which is one word. What spans two logs goes through a journal.

use crate::harness::*;

/// A directory's log: its tail, and the entries, which begin in the middle of a line. An entry is, as its head, what it
/// does and the name; then, 32 bytes in and so on the next line, the inode.
#[derive(Clone, Copy)]
struct Log {
    tail: u64,
    entries: u64,
}

const A: Log = Log { tail: 0, entries: 1024 + 32 };
const B: Log = Log { tail: 64, entries: 2048 + 32 };
const ENTRY_BYTES: u64 = 64;
const HEAD_BYTES: u64 = 32;
const ADD: u64 = 1;
const REMOVE: u64 = 2;

/// What of a new entry is flushed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flushed {
    Whole,
    WithoutHead,
}

/// Writes an entry after the tail, where readers do not look yet, and returns the new tail.
fn write_entry(
    pmem: &SimPmem,
    log: Log,
    flushed: Flushed,
    [action, name, inode]: [u64; 3],
) -> Result<u64, FenceError> {
    let tail = pmem.load_u64(log.tail);
    let entry = log.entries + tail;
    pmem.store(entry, &bytes_of(&[action, name, 0, 0, inode])); //~ B26 lost: flush missing
    match flushed {
        Flushed::Whole => pmem.flush(entry, ENTRY_BYTES),
        // teeth: the planted bug's own
        Flushed::WithoutHead => pmem.flush(entry + HEAD_BYTES, ENTRY_BYTES - HEAD_BYTES),
    }
    pmem.fence()?;
    Ok(tail + ENTRY_BYTES)
}

fn append(pmem: &SimPmem, log: Log, flushed: Flushed, entry: [u64; 3]) -> Done {
    let tail = write_entry(pmem, log, flushed, entry)?;
    pmem.put(log.tail, tail)
}

/// The names and inodes of a directory, from its log.
fn names(pmem: &SimPmem, log: Log) -> BTreeSet<(u64, u64)> {
    let mut names = BTreeSet::new();
    for position in (0..pmem.load_u64(log.tail)).step_by(64) {
        let [action, name, _, _, inode] = load_words(pmem, log.entries + position);
        match action {
            ADD => assert!(names.insert((name, inode)), "{name} is added again"),
            REMOVE => assert!(names.remove(&(name, inode)), "{name} is removed and was not there"),
            other => panic!("an entry of the log at {position} is {other}"),
        }
    }
    names
}

/// B26, reported by Chipmunk: of an entry that straddles a line, the body is flushed and the head is not. The tail
/// covers the entry, and its action and name are lost.
pub(crate) fn tail_durable_before_the_head_of_the_entry(form: Form) -> Case {
    let flushed = if form == Form::Bug { Flushed::WithoutHead } else { Flushed::Whole };
    let append = move |pmem: &SimPmem, name| append(pmem, A, flushed, [ADD, name, 10 * name]);
    let states = [&[][..], &[(5, 50)], &[(5, 50), (6, 60)]].map(|s| s.iter().copied().collect());
    Case::steps(image(|_| ()), [5, 6], append, states, |pmem| Ok(names(pmem, A)))
}

/// The journal of renames: whether it holds, and what both tails shall become.
const JOURNAL_VALID: u64 = 128;
const JOURNAL_TAILS: u64 = 192;

/// Applies the journal, and closes it.
fn finish_journal(pmem: &SimPmem) -> Done {
    let tails: [u64; 2] = load_words(pmem, JOURNAL_TAILS);
    for (log, tail) in [A, B].into_iter().zip(tails) {
        pmem.store_u64(log.tail, tail);
        pmem.flush(log.tail, 8);
    }
    pmem.fence()?;
    // Fenced with the next entry, before its tail: until then, carrying it out again changes nothing.
    pmem.store_u64(JOURNAL_VALID, 0);
    pmem.flush(JOURNAL_VALID, 8);
    Ok(())
}

/// Moves a file from directory A to directory B.
fn rename(pmem: &SimPmem, form: Form, name: u64, inode: u64) -> Done {
    if form == Form::Bug {
        let tail = write_entry(pmem, A, Flushed::Whole, [REMOVE, name, inode])?;
        // teeth: the planted bug's own
        pmem.put(A.tail, tail)?; //~ B27 kept
        return append(pmem, B, Flushed::Whole, [ADD, name, inode]);
    }
    let a_tail = write_entry(pmem, A, Flushed::Whole, [REMOVE, name, inode])?;
    let b_tail = write_entry(pmem, B, Flushed::Whole, [ADD, name, inode])?;
    pmem.store(JOURNAL_TAILS, &bytes_of(&[a_tail, b_tail]));
    pmem.persist(JOURNAL_TAILS, 16)?;
    pmem.put(JOURNAL_VALID, 1)?;
    finish_journal(pmem)
}

/// B27, reported by Chipmunk and Vinter: a rename removes the old name before the new one is durable. A crash between
/// loses the file. Corrected, both logs' tails change together, by the journal.
pub(crate) fn old_name_removed_before_the_new_one_is_durable(form: Form) -> Case {
    let one_file = image(|pmem| append(pmem, A, Flushed::Whole, [ADD, 5, 50]));
    let rename: Step = |pmem, form| rename(pmem, form, 5, 50);
    let create: Step = |pmem, _| append(pmem, A, Flushed::Whole, [ADD, 6, 60]);
    let (five, six) = ((5, 50), (6, 60));
    let states = [[vec![five], vec![]], [vec![], vec![five]], [vec![six], vec![five]]];
    Case::steps(
        one_file,
        [rename, create],
        move |pmem, step| step(pmem, form),
        states,
        |pmem| {
            if pmem.load_u64(JOURNAL_VALID) == 1 {
                finish_journal(pmem)?;
            }
            Ok([A, B].map(|log| names(pmem, log).into_iter().collect::<Vec<_>>()))
        },
    )
}

/// A file: its size, and its data.
const SIZE: u64 = 256;
const DATA: u64 = 512;

/// Copies whole words around the cache, and the rest through it, as `memcpy_to_pmem_nocache` does.
fn copy_nt(pmem: &SimPmem, form: Form, offset: u64, bytes: &[u8]) {
    let (words, rest) = bytes.split_at(bytes.len() / 8 * 8);
    pmem.store_nt(offset, words);
    let rest_at = offset + words.len() as u64;
    pmem.store(rest_at, rest); //~ B28 lost: flush missing
    if form == Form::Fixed {
        pmem.flush(rest_at, rest.len() as u64);
    }
}

/// B28, reported by Vinter: a copy with non-temporal stores writes the bytes that do not fill a word by plain ones, and
/// does not flush these. The last bytes of a file are lost after the write returned.
pub(crate) fn ragged_tail_of_a_non_temporal_copy(form: Form) -> Case {
    const TEXT: &[u8] = b"twenty bytes of data";
    let write = move |pmem: &SimPmem, text: &[u8]| {
        copy_nt(pmem, form, DATA, text);
        pmem.fence()?;
        pmem.put(SIZE, text.len() as u64)
    };
    Case::steps(image(|_| ()), [TEXT], write, [vec![], TEXT.to_vec()], |pmem| {
        let mut data = vec![0; usize::try_from(pmem.load_u64(SIZE)).expect("a short file")];
        pmem.load(DATA, &mut data);
        Ok(data)
    })
}
