//! Corrupted lines of the log. A corrupted line is always found, and reverts at most data that its own transaction wrote. A closed heap needs no line
//! of the log.

use super::prelude::*;
use pm_core::Region;

const ENTRIES: u32 = 16;

fn options() -> HeapOptions {
    crate::harness::options().lanes(1).lane_entries(ENTRIES).chunk_bytes(4096)
}

fn attach(region: &Region) -> Heap<AnyPmem<'_>> {
    Heap::attach(any(region), &options()).unwrap()
}

fn write(heap: &Heap<AnyPmem<'_>>, place: u64, value: u64) {
    heap.transact(|tx| tx.write(link_to(place), &value)).unwrap();
}

/// How a line is corrupted.
const CORRUPTIONS: [fn(&Region, u64); 4] = [
    |region, line| region.store(line, &[0; 64]),
    |region, line| region.store_u64(line + 56, 0),
    |region, line| region.store_u64(line + 16, region.load_u64(line + 16) ^ 4),
    |region, line| region.store(line, &[0xA5; 64]),
];

/// An empty region, another one, and a heap in that: a transaction wrote the word `x`, `commits` later ones wrote `y`, and then `x` was stored in place.
fn two_words(commits: u64) -> (Region, &'static Region, Heap<AnyPmem<'static>>, [u64; 2], u64) {
    let region = Region::anonymous(1 << 16).unwrap();
    // The heap borrows the region until the test ends.
    let held: &'static Region = Box::leak(Box::new(region));
    let heap = Heap::format(any(held), &options()).unwrap();
    let at = heap.transact(|tx| tx.alloc_zeroed::<u64>(48).map(Link::offset)).unwrap();
    drop(heap);
    let heap = attach(held);
    let (x, y) = (at, at + 128);
    write(&heap, x, 1);
    (1..=commits).for_each(|value| write(&heap, y, value));
    heap.view(|view| view.store_u64(link_to(x), 2)).unwrap();
    let first_entry = heap.layout().entry_offset(0, 0);
    (Region::anonymous(1 << 16).unwrap(), held, heap, [x, y], first_entry)
}

/// A heap with longer rings and a block of 3,000 bytes, closed and opened again.
fn with_long_block(region: &Region) -> (Heap<AnyPmem<'_>>, u64) {
    let heap = Heap::format(any(region), &options().lanes(2).lane_entries(256)).unwrap();
    let at = heap.transact(|tx| tx.alloc_zeroed::<u8>(3000).map(Link::offset)).unwrap();
    drop(heap);
    (attach(region), at)
}

/// Copies the contents that a kill of the process would leave to another region.
fn killed(heap: Heap<AnyPmem<'static>>, into: &Region) {
    let bytes = crate::harness::bytes(heap.pool().pmem());
    drop(heap);
    into.store(0, &bytes);
}

#[test]
fn corruption_of_closed_log_changes_nothing() {
    for corrupt in CORRUPTIONS {
        for entry in 0..u64::from(ENTRIES) {
            let (_, region, heap, [x, y], first_entry) = two_words(2);
            drop(heap);
            corrupt(region, first_entry + 64 * entry);
            let heap = attach(region);
            assert_eq!((region.load_u64(x), region.load_u64(y)), (2, 2), "entry {entry}");
            assert_eq!(heap.open_report().recovery.replayed, 0);
            assert_eq!(heap.open_report().recovery.corrupted_entries, 1, "it is reported");
        }
    }
}

#[test]
fn one_corrupted_line_reverts_no_data_of_other_transactions() {
    for commits in 2..40 {
        for corrupt in CORRUPTIONS {
            for entry in 0..u64::from(ENTRIES) {
                let (region, _, heap, [x, y], first_entry) = two_words(commits);
                killed(heap, &region);
                corrupt(&region, first_entry + 64 * entry);
                match Heap::attach(any(&region), &options()) {
                    Ok(heap) => {
                        let recovery = &heap.open_report().recovery;
                        assert_eq!(recovery.corrupted_entries, 1, "{commits}, {entry}: {recovery:?}");
                        assert_eq!(region.load_u64(y), commits, "y is kept: {commits}, {entry}");
                    }
                    Err(HeapError::Recover(RecoverError::Corrupted { lane, offset })) => {
                        assert_eq!((lane, offset), (0, first_entry + 64 * entry));
                    }
                    Err(error) => panic!("{error}"),
                }
                assert_eq!(region.load_u64(x), 2, "{commits} commits, entry {entry}");
                let heap = Heap::attach(any(&region), &options().discard_corrupted_records(true)).unwrap();
                assert_eq!(region.load_u64(x), 2, "discarded: {commits} commits, entry {entry}");
                let found = region.load_u64(y);
                assert!(
                    found == commits || found == commits - 1,
                    "{commits} commits, entry {entry}: {found}"
                );
                write(&heap, y, 100);
            }
        }
    }
}

/// All commit entries of the lane are corrupted, among them that of a committed long write.
#[test]
fn committed_long_write_survives_corrupted_commit_entry() {
    for close in [true, false] {
        for corrupt in CORRUPTIONS {
            let region: &'static Region = Box::leak(Box::new(Region::anonymous(1 << 17).unwrap()));
            let (heap, at) = with_long_block(region);
            heap.transact(|tx| tx.write_slice(link_to(at), &[5_u8; 3000])).unwrap();
            let layout = *heap.layout();
            let image = Region::anonymous(1 << 17).unwrap();
            killed(heap, &image);
            let region = if close { region } else { &image };
            let commits = (0..256).map(|entry| layout.entry_offset(0, entry)).filter(|&entry| {
                region.load_u64(entry + 56) != 0 && (region.load_u64(entry) >> 48) & 0x80 != 0
            });
            let commits: Vec<u64> = commits.collect();
            assert!(!commits.is_empty());
            commits.iter().for_each(|&entry| corrupt(region, entry));
            let heap = Heap::attach(any(region), &options().discard_corrupted_records(true)).unwrap();
            assert_eq!(heap.open_report().recovery.rolled_back, 0);
            let mut found = vec![0; 3000];
            region.load(at, &mut found);
            assert_eq!(found, [5; 3000]);
        }
    }
}

/// The process is killed inside a transaction that changed 3,000 bytes in place, and one of the undo entries is corrupted. No group is live then:
/// the lane has no group, or the transaction retired the group that wrote to those bytes before it stored undo entries.
#[test]
fn corrupted_undo_entry_of_open_transaction_is_refused() {
    for was_written in [false, true] {
        let region = Region::anonymous(1 << 17).unwrap();
        let (heap, at) = with_long_block(&region);
        if was_written {
            write(&heap, at, 7);
        }
        let mut bytes = vec![0; 1 << 17];
        let rolled_back = heap.transaction(|tx| {
            tx.write_slice(link_to(at), &[5_u8; 3000])?;
            region.load(0, &mut bytes);
            Err::<(), TxError>(TxError::Nested)
        });
        assert!(matches!(rolled_back, Err(TxError::Nested)));
        let first = u32::from(was_written);
        for entry in first..first + 3000_u32.div_ceil(48) {
            for corrupt in CORRUPTIONS {
                let killed = Region::anonymous(1 << 17).unwrap();
                killed.store(0, &bytes);
                let line = heap.layout().entry_offset(0, entry);
                corrupt(&killed, line);
                let pool = Pool::attach_read_only(&killed).unwrap();
                let inspection = HeapInspection::of(&pool).unwrap();
                drop(pool);
                assert!(inspection.log.lanes[0].is_corruption_live, "entry {entry}");
                match Heap::attach(any(&killed), &options()) {
                    Err(HeapError::Recover(RecoverError::Corrupted { lane, offset })) => {
                        assert_eq!((lane, offset), (0, line));
                    }
                    opened => {
                        panic!("entry {entry}: {:?}", opened.map(|heap| heap.open_report().recovery.clone()))
                    }
                }
            }
        }
    }
}

/// While the heap is open, stray writes overwrite the entries of an idle lane, and later the undo entries of an open transaction.
#[test]
fn stray_write_to_log_of_open_heap_causes_at_most_an_error() {
    let region = Region::anonymous(1 << 17).unwrap();
    let (heap, at) = with_long_block(&region);
    write(&heap, at, 7);
    // A checkpoint retires an idle lane without reading its entries.
    for entry in 0..256 {
        region.store(heap.layout().entry_offset(0, entry), &[0xA5; 64]);
    }
    heap.checkpoint().unwrap();
    let rolled_back = heap.transaction(|tx| {
        tx.write_slice(link_to(at), &[5_u8; 3000])?;
        for entry in 0..256 {
            region.store_u64(heap.layout().entry_offset(0, entry) + 16, 0xbad);
        }
        Err::<(), TxError>(TxError::Nested)
    });
    assert!(matches!(rolled_back, Err(TxError::Nested)));
    let refused = heap.transaction(|tx| tx.write(link_to(at), &8_u64));
    assert!(matches!(refused, Err(TxError::Commit(pm_alloc::CommitError::Corrupted { .. }))), "{refused:?}");
    drop(heap);
    let reopened = Heap::attach(any(&region), &options());
    assert!(matches!(reopened, Err(HeapError::Recover(RecoverError::Corrupted { .. }))));
}
