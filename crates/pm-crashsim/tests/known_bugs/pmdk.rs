//! PMDK's allocator, containers and examples, where they order by hand.

use crate::harness::*;

/// `hashmap_atomic`: a flag, entries of a word each, with the key in its upper half, and their count.
const DIRTY: u64 = 0;
const ENTRIES: u64 = 64;
const ENTRY_COUNT: u64 = 4;
const COUNT: u64 = 512;

fn map_entries(pmem: &SimPmem) -> Vec<u64> {
    let entries = (0..ENTRY_COUNT).map(|index| pmem.load_u64(ENTRIES + 64 * index));
    entries.filter(|&entry| entry != 0).collect()
}

fn map_insert(pmem: &SimPmem, form: Form, entry: u64) -> Done {
    let (during, after) = if form == Form::Bug { (0, 1) } else { (1, 0) };
    let count = pmem.load_u64(COUNT);
    pmem.put(DIRTY, during)?;
    pmem.store_u64(ENTRIES + 64 * count, entry); //~ B22 kept
    pmem.flush(ENTRIES + 64 * count, 8);
    // With the flag inverted, either without the other is wrong.
    pmem.store_u64(COUNT, count + 1); //~ B22 kept
    pmem.flush(COUNT, 8);
    pmem.fence()?;
    // Not flushed: a flag that is still set costs no more than a recount.
    pmem.store_u64(DIRTY, after);
    Ok(())
}

fn map_recover(pmem: &SimPmem) -> Done {
    if pmem.load_u64(DIRTY) != 0 {
        pmem.put(COUNT, map_entries(pmem).len() as u64)?;
        pmem.store_u64(DIRTY, 0);
    }
    Ok(())
}

/// B22, reported by XFDetector: the flag that tells recovery to recount is cleared before an insertion and set after
/// it. A crash inside leaves a count that is wrong, and no flag that says so.
pub(crate) fn dirty_flag_inverted(form: Form) -> Case {
    const PAIRS: [u64; 2] = [1 << 32 | 10, 2 << 32 | 20];
    let states = [0, 1, 2].map(|count| PAIRS[..count].to_vec());
    let insert = move |pmem: &SimPmem, pair| map_insert(pmem, form, pair);
    Case::steps(image(|_| ()), PAIRS, insert, states, |pmem| {
        map_recover(pmem)?;
        let found = map_entries(pmem);
        assert_eq!(pmem.load_u64(COUNT), found.len() as u64, "the count of {found:x?}");
        Ok(found)
    })
}

/// The heap's zone: chunks of two lines. The first line of a huge chunk begins with its header, the last line of it
/// with its footer, and both hold how many chunks it is long. Nothing follows a header of zero.
const ZONE: u64 = 1024;
const CHUNK_BYTES: u64 = 128;

const fn header_at(chunk: u64) -> u64 {
    ZONE + chunk * CHUNK_BYTES
}

const fn footer_at(end_chunk: u64) -> u64 {
    ZONE + end_chunk * CHUNK_BYTES - 64
}

/// The sizes in order, found by the headers.
fn walk_forwards(pmem: &SimPmem) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut chunk = 0;
    while pmem.load_u64(header_at(chunk)) != 0 {
        sizes.push(pmem.load_u64(header_at(chunk)));
        chunk += sizes[sizes.len() - 1];
    }
    sizes
}

/// The sizes in order, found from the end by the footers, as coalescing does.
fn walk_backwards(pmem: &SimPmem, chunk_count: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut chunk = chunk_count;
    while chunk > 0 {
        let size = pmem.load_u64(footer_at(chunk));
        assert!((1..=chunk).contains(&size), "the footer before chunk {chunk} says {size}");
        sizes.insert(0, size);
        chunk -= size;
    }
    sizes
}

fn append_chunk(pmem: &SimPmem, form: Form, chunk: u64, size: u64) -> Done {
    let (header, footer) = (header_at(chunk), footer_at(chunk + size));
    if form == Form::Bug {
        // teeth(fence): the planted bug's own
        pmem.put(header, size)?; //~ B23 kept
    }
    pmem.put(footer, size)?;
    if form == Form::Fixed {
        pmem.put(header, size)?;
    }
    Ok(())
}

/// B23, reported by Witcher: a huge chunk's header is durable before its footer. The header makes the chunk exist, and
/// its neighbour, looking for it by the footer, finds none or what an earlier chunk left there.
pub(crate) fn chunk_header_written_before_its_footer(form: Form) -> Case {
    let append = move |pmem: &SimPmem, (chunk, size)| append_chunk(pmem, form, chunk, size);
    let states = [vec![], vec![2], vec![2, 3]];
    Case::steps(image(|_| ()), [(0, 2), (2, 3)], append, states, |pmem| {
        let found = walk_forwards(pmem);
        assert_eq!(walk_backwards(pmem, found.iter().sum()), found);
        Ok(found)
    })
}

/// An array of a root object: the pointer to its elements, and on another line its length.
const POINTER: u64 = 0;
const LENGTH: u64 = 64;
const ELEMENTS: u64 = 256;

fn array(pmem: &SimPmem) -> Option<Vec<u64>> {
    let elements = pmem.load_u64(POINTER);
    let length = pmem.load_u64(LENGTH);
    (elements != 0).then(|| (0..length).map(|index| pmem.load_u64(elements + 8 * index)).collect())
}

fn make_array(pmem: &SimPmem, form: Form, elements: &[u64]) -> Done {
    let length = elements.len() as u64;
    pmem.store(ELEMENTS, &bytes_of(elements));
    pmem.flush(ELEMENTS, 8 * length);
    if form == Form::Fixed {
        pmem.store_u64(LENGTH, length);
        pmem.flush(LENGTH, 8);
    }
    pmem.fence()?;
    pmem.put(POINTER, ELEMENTS)?; //~ B24 kept
    if form == Form::Bug {
        // teeth: the planted bug's own
        pmem.put(LENGTH, length)?;
    }
    Ok(())
}

/// B24, reported in PMDK's issues: the pointer of an array is durable before its length. A crash between leaves an
/// array of the length that was there before: here none, and so no elements.
pub(crate) fn array_pointer_durable_before_its_length(form: Form) -> Case {
    let make = move |pmem: &SimPmem, elements: [u64; 3]| make_array(pmem, form, &elements);
    let states = [None, Some(vec![3, 1, 4])];
    Case::steps(image(|_| ()), [[3, 1, 4]], make, states, |pmem| Ok(array(pmem)))
}
