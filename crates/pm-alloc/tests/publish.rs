//! The calls of a view that change something without a transaction: what they refuse, and that nothing has changed then.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{Link, PlaceError, Region};

const HEAP_BYTES: u64 = 4 << 20;

/// A heap of small chunks, with a block of four words in it that is called "words".
fn heap() -> Heap {
    let options = HeapOptions::new().lanes(2).lane_entries(60).chunk_bytes(64 << 10);
    let heap = Heap::format(Region::anonymous(HEAP_BYTES).unwrap(), &options).unwrap();
    heap.transaction(|tx| {
        let words = tx.alloc(&[1_u64, 2, 3, 4])?;
        tx.set_root("words", words)
    })
    .map_err(|error: TxError| error)
    .unwrap();
    heap
}

#[test]
fn a_pair_needs_sixteen_bytes_in_the_heap_at_a_multiple_of_sixteen() {
    let heap = heap();
    heap.view(|view| {
        let words = view.root::<[u64; 4]>("words").unwrap().unwrap();
        let at = |offset| Link::<[u64; 2]>::vouched(offset);
        let refused = |offset| match view.store_pair(at(offset), [8, 9]).unwrap_err() {
            TxError::Place(error) => error,
            error => panic!("{error:?}"),
        };
        assert_eq!(refused(0), PlaceError::Null);
        for aside in [words.offset() + 8, words.offset() + 24] {
            assert_eq!(refused(aside), PlaceError::Misaligned { offset: aside, align_bytes: 16 });
        }
        assert!(matches!(refused(words.offset() + 4), PlaceError::Misaligned { .. }));
        let outside = [16, heap.pool().data().end, HEAP_BYTES - 8, u64::MAX - 15];
        outside.iter().for_each(|offset| assert!(matches!(refused(*offset), PlaceError::OutOfRange { .. })));
        assert_eq!(view.read(words).unwrap(), [1, 2, 3, 4], "nothing was stored");

        view.store_pair(at(words.offset() + 16), [8, 9]).unwrap();
        assert_eq!(view.read(words).unwrap(), [1, 2, 8, 9]);
    });
    assert!(heap.check().is_clean());
}
