//! Random programs with short blocks and huge blocks. Headers are corrupted while the heap is open and while it is closed. Repairs, crashes and opens
//! follow. No line of a live block is allocated, and each block with an intact header is listed.

use super::prelude::*;
use crate::discarding::allocate_all;

fn options(entries: u32) -> HeapOptions {
    crate::harness::options().lanes(1).lane_entries(entries).chunk_bytes(4096)
}

struct Program {
    rng: Rng,
    /// By payload: the number of lines of each live block, and whether its header may be corrupted.
    live: BTreeMap<u64, (u64, bool)>,
    name: String,
}

impl Program {
    fn lines(&mut self) -> u64 {
        [1, 1, 2, 3, 4, 5, 6, 8, 12, 20, 33, 63, 70, 100, 127, 128, 150][self.rng.below(17) as usize]
    }

    fn allocated(&mut self, at: u64, lines: u64) {
        let over = self.live.iter().find(|live| at < live.0 + 64 * live.1.0 && *live.0 < at + 64 * lines);
        assert!(over.is_none(), "{}: {at}, {lines} lines, allocated over {over:?}", self.name);
        self.live.insert(at, (lines, false));
    }

    fn step(&mut self, heap: &SimHeap) {
        if self.rng.one_in(2) || self.live.is_empty() {
            let (lines, is_rolled_back) = (self.lines(), self.rng.one_in(4));
            let kind = self.rng.below(3);
            let mut rolled_back = vec![];
            let result = heap.transaction(|tx| {
                let words = 8 * lines - 1;
                let block = match kind {
                    0 if lines < 20 => tx.alloc_aligned::<u64>(words, 512)?.offset(),
                    1 => tx.alloc_slice(&vec![self.rng.next(); words as usize])?.offset(),
                    _ => tx.alloc_uninit::<u64>(words)?.offset(),
                };
                if is_rolled_back {
                    rolled_back.push(block);
                    return Err(TxError::Nested);
                }
                Ok(block)
            });
            if let Some(&at) = rolled_back.first() {
                self.allocated(at, lines);
                self.live.remove(&at);
            }
            match result {
                Ok(at) => self.allocated(at, lines),
                Err(TxError::Nested | TxError::Space(_)) => {}
                Err(error) => panic!("{}: {error}", self.name),
            }
            return;
        }
        let nth = self.rng.below(self.live.len() as u64) as usize;
        let (&at, &(_, is_hit)) = self.live.iter().nth(nth).unwrap();
        match heap.transaction(|tx| tx.free(link_to::<u64>(at))) {
            Ok(()) => drop(self.live.remove(&at)),
            Err(TxError::Free(error)) => assert!(is_hit, "{}: {at}: {error}", self.name),
            Err(error) => panic!("{}: {error}", self.name),
        }
        if self.rng.one_in(6) {
            heap.checkpoint().unwrap();
        }
    }

    /// Overwrites the header of a block, or a word where a header may be. If `anywhere`, it may instead overwrite any word, or up to 64 bytes.
    fn hit(&mut self, sim: &SampledPmem, start: u64, end: u64, anywhere: bool) {
        let headers: Vec<u64> = self.live.keys().map(|at| at - 8).collect();
        let at = if self.rng.one_in(2) && !headers.is_empty() {
            headers[self.rng.below(headers.len() as u64) as usize]
        } else {
            let word = start + 8 * self.rng.below((end - start) / 8);
            // Headers are the last words of lines.
            if anywhere && self.rng.one_in(4) { word } else { word / 64 * 64 + 56 }
        };
        let len = if anywhere && self.rng.one_in(3) { 64.min(end - at) } else { 8 };
        let value =
            [0, self.rng.next(), sim.load_u64(at) ^ 1 << self.rng.below(64)][self.rng.below(3) as usize];
        (0..len / 8).for_each(|word| sim.store_u64(at + 8 * word, value));
        sim.persist(at, len).unwrap();
        // The live blocks whose headers are overwritten.
        self.live.range_mut(at + 8..at + 8 + len).for_each(|(_, live)| live.1 = true);
    }

    fn check(&mut self, heap: &SimHeap) {
        let listed = heap.blocks();
        for (at, (_, is_hit)) in &self.live {
            assert!(*is_hit || listed.contains(at), "{}: {at} is not listed", self.name);
        }
        let allocated: Vec<(u64, u64)> = allocate_all(heap, || 8 * self.lines() - 1)
            .into_iter()
            .map(|(at, words)| (at, words / 8 + 1))
            .collect();
        for &(at, lines) in &allocated {
            self.allocated(at, lines);
        }
        for (at, _) in allocated {
            self.live.remove(&at);
        }
    }
}

fn run(seed: u64, anywhere: bool) {
    let mut rng = Rng::of(seed);
    let options = options([30, 64][rng.below(2) as usize]);
    let mut sim = Arc::new(SampledPmem::new([52, 72, 100][rng.below(3) as usize] << 10));
    let mut heap = Heap::format(any(Arc::clone(&sim)), &options).unwrap();
    let mut program = Program { rng, live: BTreeMap::new(), name: String::new() };
    let layout = *heap.layout();
    let end = layout.chunk_offset(heap.check().chunks.len() as u64);
    for round in 0..4 {
        program.name = format!("round {round}");
        for _ in 0..program.rng.below(50) {
            program.step(&heap);
        }
        if program.rng.one_in(2) {
            // The checkpoint prevents a replay of the header that is corrupted next.
            heap.checkpoint().unwrap();
            program.hit(&sim, layout.chunks_start, end, anywhere);
            for _ in 0..program.rng.below(30) {
                program.step(&heap);
            }
            if program.rng.one_in(2) {
                for corruption in heap.take_corruption() {
                    heap.repair(&corruption).unwrap();
                }
            }
            for _ in 0..program.rng.below(30) {
                program.step(&heap);
            }
        }
        if program.rng.one_in(2) {
            program.check(&heap);
        }
        if program.rng.one_in(2) {
            drop(heap);
        } else {
            let left = sim.state().crash(&mut program.rng);
            core::mem::forget(heap);
            sim = Arc::new(SampledPmem::of(left));
            // This open replays the log before a header is corrupted.
            drop(Heap::attach(any(Arc::clone(&sim)), &options).unwrap());
        }
        if program.rng.one_in(3) {
            program.hit(&sim, layout.chunks_start, end, anywhere);
        }
        heap = Heap::attach(any(Arc::clone(&sim)), &options).unwrap();
        if program.rng.one_in(2) {
            program.check(&heap);
        }
        if program.rng.one_in(2) {
            for corruption in heap.check().corruptions {
                heap.repair(&corruption).unwrap();
            }
            let corruptions = heap.check().corruptions;
            assert!(corruptions.is_empty(), "{}: {corruptions:?} after a repair", program.name);
        }
        program.check(&heap);
    }
}

#[test]
fn corrupted_headers_lose_no_block_with_intact_header() {
    each_seed(150, |seed| run(seed, false));
}

#[test]
fn live_block_is_not_reallocated_after_stray_write() {
    each_seed(60, |seed| run(seed, true));
}
