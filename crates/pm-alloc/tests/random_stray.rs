//! Random programs with blocks longer than a chunk, whose headers are hit while the heap is open and while it is closed, with repairs, crashes and
//! reopenings in between. No live block is handed out, and each that was not hit is listed. As many as `PM_CRASH_SEQUENCES` says, from the
//! seed `PM_CRASH_FIRST` on.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod links;
mod sim;

use links::link_to;
use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{Pmem, PoolOptions, Uuid};
use sim::{Rng, Sim, crash, seeds};
use std::collections::BTreeMap;
use std::sync::Arc;

type SimHeap = Heap<Arc<Sim>>;

fn options(entries: u32) -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(1).lane_entries(entries).chunk_bytes(4096)
}

struct World {
    rng: Rng,
    /// Lines and whether it may have been hit, by payload.
    live: BTreeMap<u64, (u64, bool)>,
    told: String,
}

impl World {
    fn lines(&mut self) -> u64 {
        [1, 1, 2, 3, 4, 5, 6, 8, 12, 20, 33, 63, 70, 100, 127, 128, 150][self.rng.below(17) as usize]
    }

    fn allocated(&mut self, at: u64, lines: u64) {
        let over = self.live.iter().find(|live| at < live.0 + 64 * live.1.0 && *live.0 < at + 64 * lines);
        assert!(over.is_none(), "{}: {at}, {lines} lines, handed out over {over:?}", self.told);
        self.live.insert(at, (lines, false));
    }

    fn step(&mut self, heap: &SimHeap) {
        if self.rng.one_in(2) || self.live.is_empty() {
            let (lines, is_given_up) = (self.lines(), self.rng.one_in(4));
            let kind = self.rng.below(3);
            let mut given_up = vec![];
            let result = heap.transaction(|tx| {
                let words = 8 * lines - 1;
                let block = match kind {
                    0 if lines < 20 => tx.alloc_aligned::<u64>(words, 512)?.offset(),
                    1 => tx.alloc_slice(&vec![self.rng.next(); words as usize])?.offset(),
                    _ => tx.alloc_uninit::<u64>(words)?.offset(),
                };
                if is_given_up {
                    given_up.push(block);
                    return Err(TxError::Nested);
                }
                Ok(block)
            });
            if let Some(&at) = given_up.first() {
                self.allocated(at, lines);
                self.live.remove(&at);
            }
            match result {
                Ok(at) => self.allocated(at, lines),
                Err(TxError::Nested | TxError::Space(_)) => {}
                Err(error) => panic!("{}: {error}", self.told),
            }
            return;
        }
        let nth = self.rng.below(self.live.len() as u64) as usize;
        let (&at, &(_, is_hit)) = self.live.iter().nth(nth).unwrap();
        match heap.transaction(|tx| tx.free(link_to::<u64>(at))) {
            Ok(()) => drop(self.live.remove(&at)),
            Err(TxError::Free(error)) => assert!(is_hit, "{}: {at}: {error}", self.told),
            Err(error) => panic!("{}: {error}", self.told),
        }
        if self.rng.one_in(6) {
            heap.checkpoint().unwrap();
        }
    }

    fn hit(&mut self, sim: &Sim, heap_start: u64, end: u64) {
        let headers: Vec<u64> = self.live.keys().map(|at| at - 8).collect();
        let at = if self.rng.one_in(2) && !headers.is_empty() {
            headers[self.rng.below(headers.len() as u64) as usize]
        } else {
            heap_start + 64 * self.rng.below((end - heap_start) / 64) + 56
        };
        let value =
            [0, self.rng.next(), sim.load_u64(at) ^ 1 << self.rng.below(64)][self.rng.below(3) as usize];
        sim.store_u64(at, value);
        sim.flush(at, 8);
        sim.fence().unwrap();
        // Before a free extent, too: what is live is behind the one block that it may be.
        if let Some(live) = self.live.get_mut(&(at + 8)) {
            live.1 = true;
        }
    }

    fn check(&mut self, heap: &SimHeap) {
        let listed = heap.blocks();
        for (at, (_, is_hit)) in &self.live {
            assert!(*is_hit || listed.contains(at), "{}: {at} is not listed", self.told);
        }
        let mut handed_out = vec![];
        let given_up = heap.transaction(|tx| {
            loop {
                let wanted = self.lines();
                let (block, lines) = match tx.alloc_uninit::<u64>(8 * wanted - 1) {
                    Ok(block) => (block, wanted),
                    Err(_) => (tx.alloc_uninit::<u64>(7)?, 1),
                };
                handed_out.push((block.offset(), lines));
            }
            #[expect(unreachable_code, reason = "for the type")]
            Ok::<(), TxError>(())
        });
        assert!(matches!(given_up, Err(TxError::Space(_))), "{}: {given_up:?}", self.told);
        for &(at, lines) in &handed_out {
            self.allocated(at, lines);
        }
        for (at, _) in handed_out {
            self.live.remove(&at);
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::of(seed);
    let options = options([30, 64][rng.below(2) as usize]);
    let mut sim = Arc::new(Sim::new([52, 72, 100][rng.below(3) as usize] << 10));
    let mut heap = Heap::format(Arc::clone(&sim), &options).unwrap();
    let told = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1");
    let mut world = World { rng, live: BTreeMap::new(), told };
    let layout = *heap.layout();
    let end = layout.chunk_offset(heap.check().chunks.len() as u64);
    for round in 0..4 {
        world.told = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: round {round}");
        for _ in 0..world.rng.below(50) {
            world.step(&heap);
        }
        if world.rng.one_in(2) {
            // Nothing may be left in the log that stores the header again.
            heap.checkpoint().unwrap();
            world.hit(&sim, layout.chunks_start, end);
            for _ in 0..world.rng.below(30) {
                world.step(&heap);
            }
            if world.rng.one_in(2) {
                for corruption in heap.take_corruption() {
                    heap.repair(&corruption).unwrap();
                }
            }
            for _ in 0..world.rng.below(30) {
                world.step(&heap);
            }
        }
        if world.rng.one_in(2) {
            world.check(&heap);
        }
        if world.rng.one_in(2) {
            drop(heap);
        } else {
            let left = crash(&sim.state(), &mut world.rng);
            core::mem::forget(heap);
            sim = Arc::new(Sim::of(left));
            // To have the log replayed before anything is hit.
            drop(Heap::attach(Arc::clone(&sim), &options).unwrap());
        }
        if world.rng.one_in(3) {
            world.hit(&sim, layout.chunks_start, end);
        }
        heap = Heap::attach(Arc::clone(&sim), &options).unwrap();
        if world.rng.one_in(2) {
            world.check(&heap);
        }
        if world.rng.one_in(2) {
            for corruption in heap.check().corruptions {
                heap.repair(&corruption).unwrap();
            }
            let corruptions = heap.check().corruptions;
            assert!(corruptions.is_empty(), "{}: {corruptions:?} after a repair", world.told);
        }
        world.check(&heap);
    }
}

#[test]
fn no_live_block_is_handed_out_after_headers_were_hit() {
    seeds(150).for_each(run);
}
