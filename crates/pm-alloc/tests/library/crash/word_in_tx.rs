//! A thread in a transaction calls `store_u64` and `store_u64_pair` on the same heap. When a call returns, its words are durable. A rollback of the
//! transaction does not revert them. Words that the transaction has written in place are refused.

use super::prelude::*;

/// The number of words, of a block of 40 words, that the transaction writes in place.
const LONG: usize = 16;

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(16).chunk_bytes(4096).in_place_from_bytes(64)
}

fn prepared() -> Image {
    let sim = Arc::new(SimPmem::new(48 << 10));
    let heap = Heap::format(any(Arc::clone(&sim)), &options()).unwrap();
    heap.transact(|tx| {
        let words = tx.alloc_zeroed::<u64>(40)?;
        tx.set_root("words", words)
    })
    .unwrap();
    heap.close().unwrap();
    sim.to_image()
}

fn offset(heap: &SimHeap, number: usize) -> u64 {
    heap.view(|view| view.root::<u64>("words").unwrap().unwrap().element(number as u64).offset())
}

fn store_u64(heap: &SimHeap, number: usize) -> Result<(), TxError> {
    let offset = offset(heap, number);
    heap.view(|view| view.store_u64(link_to(offset), 7))
}

fn store_u64_pair(heap: &SimHeap, number: usize) -> Result<(), TxError> {
    let offset = offset(heap, number);
    heap.view(|view| view.store_u64_pair(link_to(offset), [7, 7]))
}

fn explore(is_rolled_back: bool) {
    let operation = |run: &Run<()>| {
        let heap = Heap::attach(any(Arc::clone(run.pmem())), &options()).unwrap();
        let done = heap.transaction(|tx| {
            let words = link_to::<u64>(offset(&heap, 0));
            tx.write_slice(words, &[1; LONG])?;
            for refused in [store_u64(&heap, 0), store_u64(&heap, LONG - 1), store_u64_pair(&heap, LONG - 2)]
            {
                assert!(matches!(refused, Err(TxError::WrittenInPlace { .. })), "{refused:?}");
            }
            store_u64(&heap, LONG)?;
            store_u64_pair(&heap, LONG + 2)?;
            run.ack(());
            if is_rolled_back { Err(TxError::Nested) } else { Ok(()) }
        });
        assert_eq!(done.is_err(), is_rolled_back, "{done:?}");
        run.ack(());
        store_u64(&heap, 0).unwrap();
        run.ack(());
    };
    let check = |crash: &Crash<()>| {
        let heap = recovered_heap(crash, &options())?;
        let at = offset(&heap, 0);
        let words = heap.view(|view| view.read(link_to::<[u64; 20]>(at)).unwrap());
        let (long, others) = words.split_at(LONG);
        let done = crash.acked().len();
        let (first, rest) = (long[0], &long[1..]);
        let is_whole = |value: u64| rest.iter().all(|&word| word == value);
        let may_be = |value: u64| first == value || first == 7 && done >= 2;
        let is_right = match (is_rolled_back, done) {
            (true, _) => is_whole(0) && may_be(0),
            (false, 0 | 1) => is_whole(0) && may_be(0) || is_whole(1) && may_be(1),
            (false, _) => is_whole(1) && may_be(1),
        };
        let are_stored = done == 0 || others == [7, 0, 7, 7];
        let is_last_stored = done < 3 || first == 7;
        if is_right && are_stored && is_last_stored { Ok(()) } else { Err(format!("{done} done: {words:?}")) }
    };
    let coverage = Explorer::new(Model::Px86Line).kills(1).check(&prepared(), operation, check);
    println!("{coverage}");
}

#[test]
fn word_stored_in_transaction_survives_its_rollback() {
    explore(true);
}

#[test]
fn word_stored_in_transaction_is_durable_before_its_commit() {
    explore(false);
}
