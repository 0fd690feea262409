//! A line of the log that is being written to holds an announced stamp over the contents of a former entry. With one chance in 65,536 its
//! 16 bits of checksum fit those contents as well: then an ordinary power failure, with nothing corrupted, brings the former entry back
//! under the newest stamp.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod review_sim;

use pm_alloc::format::{Stamp, seal};
use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{PoolOptions, Uuid};
use review_sim::{Sim, State};
use std::sync::Arc;

type SimHeap = Heap<Arc<Sim>>;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(1).lane_entries(32).chunk_bytes(4096)
}

fn write(heap: &SimHeap, number: u64, value: u64) {
    heap.transaction(|tx| {
        let words = tx.root::<u64>("words")?.unwrap();
        tx.write(words.element(8 * number), &value)
    })
    .map_err(|error: TxError| error)
    .unwrap();
}

fn words(state: &State, line: u64) -> [u64; 8] {
    let bytes = &state.visible[line as usize..line as usize + 64];
    core::array::from_fn(|word| u64::from_le_bytes(*bytes[8 * word..].first_chunk().unwrap()))
}

/// Word 0 was `first` once and is 3 since. What is left when the process is stopped where the line of the entry with `first` is announced to be
/// written again, and what it holds then.
fn stopped(first: u64) -> (State, u64, [u64; 8]) {
    let heap = Heap::format(Arc::new(Sim::new(1 << 16)), &options()).unwrap();
    heap.transaction(|tx| {
        let words = tx.alloc_zeroed::<u64>(24)?;
        tx.set_root("words", words)
    })
    .map_err(|error: TxError| error)
    .unwrap();
    let sim = Arc::clone(heap.pool().pmem());
    let lines = |heap: &SimHeap| {
        let layout = heap.layout();
        (0..layout.lane_entries).map(|index| layout.entry_offset(0, index)).collect::<Vec<u64>>()
    };
    let before = sim.state();
    write(&heap, 0, first);
    let line =
        lines(&heap).into_iter().find(|line| words(&before, *line) != words(&sim.state(), *line)).unwrap();
    let entry = words(&sim.state(), line);
    write(&heap, 0, 3);
    for number in 0..30 {
        write(&heap, 1, number);
    }
    assert_eq!(words(&sim.state(), line), entry, "the ring comes around with the next transaction");
    sim.stop_at_change(line);
    write(&heap, 2, 9);
    let left = sim.stopped().unwrap();
    let announced = words(&left, line);
    assert_eq!(announced[..7], entry[..7], "only the announced stamp is stored yet");
    assert_ne!(announced[7], entry[7]);
    (left, line, announced)
}

#[test]
fn announced_line_brings_no_former_entry_back() {
    let (_, line, announced) = stopped(1);
    let stamp = Stamp::new(announced[7] >> 16);
    assert_eq!(announced[7], seal(stamp, 7, line, &[]));
    // One value in 65,536 will do.
    let fits = |value: &u64| {
        let mut contents: [u64; 7] = *announced.first_chunk().unwrap();
        contents[2] = *value;
        seal(stamp, 7, line, &contents) == announced[7]
    };
    assert_eq!(announced[2], 1, "the entry's first pair is an offset and the word");
    let value = (4..1 << 24).find(fits).unwrap();
    let (left, ..) = stopped(value);
    let heap = Heap::attach(Arc::new(Sim::of(left)), &options()).unwrap();
    let found = heap.view(|view| view.read(view.root::<u64>("words").unwrap().unwrap()).unwrap());
    assert_eq!(
        found,
        3,
        "word 0 was set to {value}, then to 3, thirty transactions ago; recovery: {:?}",
        heap.opened().recovery
    );
}
