//! Random programs against a shadow model: transactions with long writes, rolled back ones, ones within which another thread commits or a word is
//! stored, deferred ones, blocks with their links, roots. Each run is killed or loses power at a random event, again and again.

use crate::prelude::*;
use crate::sim::LINE;
use crate::sim::programs::{
    self, Failure, States, alloc_and_link, assert_allowed, hit_log, is_done, new_block, stopped_recoveries,
};
use pm_alloc::Durability;
use pm_alloc::format::BlockState;

const SLOTS: usize = 10;
const WORDS: usize = 24;
const BIG: usize = 48;
const NAMES: [&str; 4] = ["r0", "r1", "r2", "r3"];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Shadow {
    slots: [u64; SLOTS],
    words: Vec<u64>,
    big: Vec<u64>,
    roots: [u64; 4],
}

fn words_of(id: u64) -> usize {
    (id & 0xfff) as usize
}

fn content(id: u64) -> Vec<u64> {
    programs::content(id, words_of(id))
}

fn offsets(heap: &SimHeap) -> [u64; 3] {
    heap.view(|view| ["slots", "words", "big"].map(|name| view.root::<u64>(name).unwrap().unwrap().offset()))
}

fn look(heap: &SimHeap) -> Shadow {
    let report = heap.check();
    assert!(report.is_clean(), "corruption: {report:?}");
    let [slots, words, big] = offsets(heap);
    let mut reachable: BTreeSet<u64> = [slots, words, big].into();
    let pmem = heap.pool().pmem();
    let block = |offset: u64, reachable: &mut BTreeSet<u64>| {
        if offset == 0 {
            return 0;
        }
        assert!(reachable.insert(offset), "linked twice: {offset}");
        let id = pmem.load_u64(offset);
        assert!(words_of(id) > 0, "a block without contents at {offset}");
        let found: Vec<u64> = (0..words_of(id) as u64).map(|at| pmem.load_u64(offset + 8 * at)).collect();
        assert_eq!(found, content(id), "contents at {offset}");
        id
    };
    let mut shadow = Shadow { slots: [0; SLOTS], words: vec![], big: vec![], roots: [0; 4] };
    for at in 0..SLOTS {
        shadow.slots[at] = block(pmem.load_u64(slots + 8 * at as u64), &mut reachable);
    }
    shadow.words = (0..WORDS as u64).map(|at| pmem.load_u64(words + 8 * at)).collect();
    shadow.big = (0..BIG as u64).map(|at| pmem.load_u64(big + 8 * at)).collect();
    for (at, name) in NAMES.iter().enumerate() {
        let found = heap.view(|view| view.root::<u64>(name).unwrap().map(Link::offset));
        shadow.roots[at] = block(found.unwrap_or(0), &mut reachable);
    }
    let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
    assert_eq!(listed, reachable, "leaked or lost");
    shadow
}

struct World {
    rng: Rng,
    serial: u64,
}

impl World {
    fn id(&mut self) -> u64 {
        self.serial += 1;
        let lens = [1, 3, 8, 12, 13, 14, 15, 23, 40, 40, 100, 300, 600, 1100];
        self.serial << 12 | lens[self.rng.below(lens.len() as u64) as usize]
    }
    /// Some changes of one transaction to the slots from `from` to `to`, to words and roots.
    fn change<'p>(
        &mut self,
        tx: &mut Tx<'p, Arc<Sim>>,
        shadow: &mut Shadow,
        at: [u64; 3],
        range: core::ops::Range<usize>,
        words: core::ops::Range<usize>,
    ) -> Result<(), TxError> {
        let [slots, word_at, _] = at;
        for _ in 0..1 + self.rng.below(4) {
            let slot = range.start + self.rng.below(range.len() as u64) as usize;
            let slot_link: Link<'p, u64> = link_to(slots + 8 * slot as u64);
            match self.rng.below(7) {
                0 | 1 if shadow.slots[slot] == 0 => {
                    let id = self.id();
                    let block = new_block(tx, &mut self.rng, &content(id))?;
                    tx.write(slot_link, &block.offset())?;
                    shadow.slots[slot] = id;
                }
                2 | 3 if shadow.slots[slot] != 0 => {
                    let block: Link<'p, u64> = link_to(tx.read(slot_link)?);
                    if self.rng.one_in(3) {
                        tx.write(block, &0xDEAD)?;
                    }
                    tx.free(block)?;
                    tx.write(slot_link, &0)?;
                    shadow.slots[slot] = 0;
                }
                4 => {
                    let id = self.id();
                    let block = tx.alloc_slice(&content(id))?;
                    tx.write(block, &7)?;
                    tx.free(block)?;
                }
                5 if range.end == SLOTS => {
                    let number = self.rng.below(4) as usize;
                    if shadow.roots[number] != 0 {
                        let old = tx.root::<u64>(NAMES[number])?.unwrap();
                        tx.free(old)?;
                        shadow.roots[number] = 0;
                        tx.remove_root(NAMES[number])?;
                    }
                    if self.rng.one_in(2) {
                        let id = self.id();
                        let block = tx.alloc_slice(&content(id))?;
                        tx.set_root(NAMES[number], block)?;
                        shadow.roots[number] = id;
                    }
                }
                _ => {
                    let from = words.start + self.rng.below(words.len() as u64) as usize;
                    let len = 1 + self.rng.below((words.end - from) as u64) as usize;
                    let values: Vec<u64> = (0..len).map(|_| self.rng.next()).collect();
                    tx.write_slice(link_to(word_at + 8 * from as u64), &values)?;
                    shadow.words[from..from + len].copy_from_slice(&values);
                }
            }
        }
        Ok(())
    }

    fn big<'p>(&mut self, tx: &mut Tx<'p, Arc<Sim>>, shadow: &mut Shadow, big: u64) -> Result<(), TxError> {
        let from = self.rng.below(BIG as u64 - 10) as usize;
        let len = 8 + self.rng.below((BIG - from - 8) as u64 + 1) as usize;
        let values: Vec<u64> = (0..len).map(|_| self.rng.next()).collect();
        tx.write_slice(link_to(big + 8 * from as u64), &values)?;
        shadow.big[from..from + len].copy_from_slice(&values);
        Ok(())
    }

    /// One operation. Adds the states that it goes through; after an error, none. Returns whether it stores a word without a transaction, which a
    /// killed process may leave visible and not durable.
    fn step(&mut self, heap: &SimHeap, states: &mut States<Shadow>, is_stopping: bool) -> bool {
        let is_given_up = self.rng.one_in(5);
        let slot = self.rng.below(SLOTS as u64) as usize;
        let kind = self.rng.below(12);
        match kind {
            0 | 1 => self.publish_or_free(heap, states, slot),
            2 => self.word(heap, states),
            3 => self.pair(heap, states),
            4..=6 => self.transaction(heap, states, is_given_up),
            7 => self.long(heap, states, is_given_up),
            8 | 9 => self.nested(heap, states, is_given_up),
            10 => {
                heap.checkpoint().unwrap();
                states.last_mut().unwrap().1 = heap.pool().pmem().events();
            }
            _ if !is_stopping => Self::unfilled_and_freed(heap, states, slot, self.id()),
            _ => {}
        }
        matches!(kind, 2 | 3 | 8 | 9)
    }

    fn publish_or_free(&mut self, heap: &SimHeap, states: &mut States<Shadow>, slot: usize) {
        let [slots, ..] = offsets(heap);
        let mut next = states.last().unwrap().0.clone();
        let place = slots + 8 * slot as u64;
        if next.slots[slot] != 0 {
            heap.view(|view| view.unlink_and_free::<u64>(link_to(place))).unwrap();
            next.slots[slot] = 0;
            return states.push((next, heap.pool().pmem().events()));
        }
        let id = self.id();
        match alloc_and_link(heap, place, &content(id)) {
            Ok(has_length) => {
                assert!(has_length, "no such length");
                next.slots[slot] = id;
                states.push((next, heap.pool().pmem().events()));
            }
            Err(error) => expect_refusal(&error),
        }
    }

    fn word(&mut self, heap: &SimHeap, states: &mut States<Shadow>) {
        let [_, words, _] = offsets(heap);
        let (number, value) = (self.rng.below(WORDS as u64), self.rng.next());
        heap.view(|view| view.store_u64(link_to(words + 8 * number), value)).unwrap();
        let mut next = states.last().unwrap().0.clone();
        next.words[number as usize] = value;
        states.push((next, heap.pool().pmem().events()));
    }

    fn pair(&mut self, heap: &SimHeap, states: &mut States<Shadow>) {
        let [_, words, _] = offsets(heap);
        let (number, value) = (2 * self.rng.below(WORDS as u64 / 2), [self.rng.next(), self.rng.next()]);
        heap.view(|view| view.store_u64_pair(link_to(words + 8 * number), value)).unwrap();
        let mut next = states.last().unwrap().0.clone();
        next.words[number as usize..number as usize + 2].copy_from_slice(&value);
        states.push((next, heap.pool().pmem().events()));
    }

    fn transaction(&mut self, heap: &SimHeap, states: &mut States<Shadow>, is_given_up: bool) {
        let at = offsets(heap);
        let last = states.last().unwrap().0.clone();
        let mut next = last.clone();
        let (has_long, is_long_first) = (self.rng.one_in(3), self.rng.one_in(2));
        let done = heap.transaction(|tx| {
            if has_long && is_long_first {
                self.big(tx, &mut next, at[2])?;
            }
            self.change(tx, &mut next, at, 0..SLOTS, 0..WORDS)?;
            if has_long {
                self.big(tx, &mut next, at[2])?;
            }
            if is_given_up { Err(Failure::GivenUp) } else { Ok(()) }
        });
        // A transaction without changes does not make an earlier deferred one durable.
        if is_done(done) && next != last {
            states.push((next, heap.pool().pmem().events()));
        }
    }

    fn long(&mut self, heap: &SimHeap, states: &mut States<Shadow>, is_given_up: bool) {
        let [.., big] = offsets(heap);
        let mut next = states.last().unwrap().0.clone();
        let durability = if self.rng.one_in(2) { Durability::Deferred } else { Durability::Immediate };
        let done = heap.transaction_with(durability, |tx| {
            self.big(tx, &mut next, big)?;
            if self.rng.one_in(3) {
                self.big(tx, &mut next, big)?;
            }
            if is_given_up { Err(Failure::GivenUp) } else { Ok(()) }
        });
        if is_done(done) {
            states.push((
                next,
                if durability == Durability::Deferred { u64::MAX } else { heap.pool().pmem().events() },
            ));
        }
    }

    /// Within a transaction with a long write, a word is stored, or another thread commits.
    fn nested(&mut self, heap: &SimHeap, states: &mut States<Shadow>, is_given_up: bool) {
        let at = offsets(heap);
        let base = states.last().unwrap().0.clone();
        let (mut outer, mut inner) = (base.clone(), base.clone());
        let mut inner_done = None;
        let is_thread = self.rng.one_in(2) && heap.layout().lane_count > 1;
        let done = heap.transaction(|tx| {
            self.big(tx, &mut outer, at[2])?;
            if is_thread {
                let world = &mut *self;
                let other = || {
                    heap.transaction(|tx| world.change(tx, &mut inner, at, 5..SLOTS - 1, 16..WORDS)).is_ok()
                };
                let committed = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
                if committed && inner != base {
                    outer.slots[5..].copy_from_slice(&inner.slots[5..]);
                    outer.words[16..].copy_from_slice(&inner.words[16..]);
                    inner_done = Some(heap.pool().pmem().events());
                }
            } else {
                let (number, value) = (16 + self.rng.below(8), self.rng.next());
                heap.view(|view| view.store_u64(link_to(at[1] + 8 * number), value))?;
                inner.words[number as usize] = value;
                outer.words[number as usize] = value;
                inner_done = Some(heap.pool().pmem().events());
            }
            self.change(tx, &mut outer, at, 0..5, 0..16)?;
            if is_given_up { Err(Failure::GivenUp) } else { Ok(()) }
        });
        if let Some(event) = inner_done {
            states.push((inner, event));
        }
        if is_done(done) {
            states.push((outer, heap.pool().pmem().events()));
        }
    }

    /// Allocates an uninitialized block, and frees it.
    fn unfilled_and_freed(heap: &SimHeap, states: &mut States<Shadow>, slot: usize, id: u64) {
        let [slots, ..] = offsets(heap);
        let next = states.last().unwrap().0.clone();
        if next.slots[slot] != 0 {
            return;
        }
        let place = slots + 8 * slot as u64;
        let count = words_of(id) as u64;
        match heap.view(|view| view.alloc_uninit_and_link::<u64>(link_to(place), count).map(drop)) {
            Ok(()) => {
                heap.view(|view| view.unlink_and_free::<u64>(link_to(place))).unwrap();
                states.push((next, heap.pool().pmem().events()));
            }
            Err(error) => expect_refusal(&error),
        }
    }
}

fn expect_refusal(error: &TxError) {
    assert!(is_refusal(error), "{error:?}");
}

fn options(lanes: u32, lane_entries: u32, in_place_from_bytes: usize) -> HeapOptions {
    let options = crate::harness::options().lanes(lanes).lane_entries(lane_entries);
    options.chunk_bytes(4096).in_place_from_bytes(in_place_from_bytes)
}

/// A heap with the blocks that programs begin with.
fn formatted(region_bytes: u64, options: &HeapOptions) -> SimHeap {
    let heap = Heap::format(Arc::new(Sim::new(region_bytes)), options).unwrap();
    heap.transact(|tx| {
        [("slots", SLOTS), ("words", WORDS), ("big", BIG)].into_iter().try_for_each(|(name, count)| {
            let block = tx.alloc_zeroed::<u64>(count as u64)?;
            tx.set_root(name, block)
        })
    })
    .unwrap();
    heap
}

/// The faults of a run.
#[derive(Clone, Copy)]
struct Fate {
    /// Kills and power failures.
    has_kills: bool,
    /// At every other crash one line of the log, of a lane's header or of the state words is corrupted. The heap may refuse to open then.
    has_hits: bool,
}

fn run(seed: u64, Fate { has_kills, has_hits }: Fate) {
    let mut rng = Rng::of(seed);
    let lanes = 1 + rng.below(3) as u32;
    let entries = [16, 30, 44, 80][rng.below(4) as usize];
    let options = options(lanes, entries, [64, 65, 200][rng.below(3) as usize]);
    let mut heap = formatted([120, 160, 252][rng.below(3) as usize] << 10, &options);
    let mut world = World { rng, serial: 0 };
    let mut states: States<Shadow> = vec![(look(&heap), 0)];
    for _round in 0..12 {
        for _ in 0..=world.rng.below(25) {
            world.step(&heap, &mut states, false);
            // The following states are compared with the last one alone, and may be lost with it.
            while states.len() > 1 && states.iter().skip(1).any(|state| state.1 != u64::MAX) {
                states.remove(0);
            }
        }
        assert_eq!(look(&heap), states.last().unwrap().0, "seed {seed}, without a crash");
        let sim = Arc::clone(heap.pool().pmem());
        let begun = sim.events();
        let most = if world.rng.one_in(3) { 12 } else { 60 };
        let stop = begun + world.rng.below(most);
        sim.stop_at(stop);
        let mut is_word = false;
        // The run is stopped in the last one.
        while sim.events() <= stop {
            for state in states.iter_mut().filter(|state| state.1 <= begun) {
                state.1 = 0;
            }
            is_word = world.step(&heap, &mut states, true);
        }
        let layout = *heap.layout();
        drop(heap);
        let is_killed = has_kills && !is_word && world.rng.one_in(2);
        let stopped = sim.stopped().unwrap();
        let left = if is_killed { stopped } else { crash(&stopped, &mut world.rng) };
        let left = stopped_recoveries(left, &options, &mut world.rng, 3, has_kills);
        let sim = Arc::new(Sim::of(left));
        if has_hits && world.rng.one_in(2) {
            hit_log(&sim, &layout, &mut world.rng);
        }
        heap = match Heap::attach(sim, &options) {
            Err(HeapError::Recover(RecoverError::Corrupted { .. })) if has_hits => return,
            opened => opened.unwrap(),
        };
        let found = look(&heap);
        let case = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1");
        assert_allowed(&states, stop, &found, &case);
        states = vec![(found, 0)];
    }
}

/// Allocates all free space, and rolls back. Returns offset and length of each block.
fn all_room(heap: &SimHeap, rng: &mut Rng) -> Vec<(u64, u64)> {
    let mut handed_out = vec![];
    let given_up = heap.transaction(|tx| {
        loop {
            let wanted = [1, 7, 8, 20, 60][rng.below(5) as usize];
            // The space between two longer blocks.
            let (block, count) = match tx.alloc_uninit::<u64>(wanted) {
                Ok(block) => (block, wanted),
                Err(_) => (tx.alloc_uninit::<u64>(1)?, 1),
            };
            handed_out.push((block.offset(), 8 * count));
        }
        #[expect(unreachable_code, reason = "for the type")]
        Ok::<(), TxError>(())
    });
    assert!(matches!(given_up, Err(TxError::Space(_))), "{given_up:?}");
    handed_out
}

/// One word or line of the chunks is overwritten while the heap is closed. No allocated block is allocated again, before a repair or after it, and
/// each is listed, unless its own header was overwritten.
fn stray(seed: u64) {
    let options = options(1, 60, 4096);
    let heap = formatted(52 << 10, &options);
    let mut world = World { rng: Rng::of(seed), serial: 0 };
    let mut states: States<Shadow> = vec![(look(&heap), 0)];
    for _ in 0..60 {
        world.step(&heap, &mut states, false);
    }
    let (sim, layout) = (Arc::clone(heap.pool().pmem()), *heap.layout());
    let mut live: Vec<(u64, u64)> = vec![];
    heap.check_with(|block| {
        if block.state == BlockState::Allocated {
            live.push((block.payload, u64::from(block.lines) * LINE));
        }
    });
    drop(heap);
    // Another test covers blocks longer than a chunk.
    if live.iter().any(|live| live.1 >= layout.chunk_bytes) {
        return;
    }
    let rng = &mut world.rng;
    let at = layout.chunks_start + 8 * rng.below((sim.len_bytes() - layout.chunks_start) / 8);
    // Headers are the last words of lines.
    let at = if rng.one_in(4) { at } else { at / LINE * LINE + 56 };
    let len = if rng.one_in(3) { LINE.min(sim.len_bytes() - at) } else { 8 };
    let value = [0, rng.next(), sim.load_u64(at) ^ 1 << rng.below(32)][rng.below(3) as usize];
    (0..len / 8).for_each(|word| sim.store_u64(at + 8 * word, value));
    let is_hit = |payload: u64| at < payload && payload - 8 < at + len;
    for round in 0..2 {
        let case = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: round {round}, hit {at}+{len}");
        let mut heap = Heap::attach(Arc::clone(&sim), &options).unwrap();
        let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
        for (payload, _) in &live {
            assert!(is_hit(*payload) || listed.contains(payload), "{case}: {payload} is not listed");
        }
        for (start, len) in all_room(&heap, rng) {
            let over = live.iter().find(|live| start < live.0 + live.1 - 8 && live.0 < start + len);
            assert!(over.is_none(), "{case}: {start}+{len} allocated over {over:?}");
        }
        for corruption in heap.check().corruptions {
            heap.repair(&corruption).unwrap();
        }
        let corruptions = heap.check().corruptions;
        assert!(corruptions.is_empty(), "{case}: {corruptions:?} after a repair");
    }
}

/// After a failed fence nothing more is stored, and the heap on the medium is sound.
fn failing(seed: u64) {
    let mut rng = Rng::of(seed);
    let options = options(1 + rng.below(3) as u32, 30, 64);
    let heap = formatted(120 << 10, &options);
    let sim = Arc::clone(heap.pool().pmem());
    let mut world = World { rng, serial: 0 };
    let mut states: States<Shadow> = vec![(look(&heap), 0)];
    for _ in 0..=world.rng.below(60) {
        world.step(&heap, &mut states, true);
    }
    sim.fail_at(sim.events() + world.rng.below(60));
    let mut stores = None;
    let case = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1");
    for _ in 0..40 {
        let step = std::panic::AssertUnwindSafe(|| world.step(&heap, &mut states, true));
        // A step does not expect a refused call.
        let done = std::panic::catch_unwind(step);
        assert!(done.is_ok() || sim.has_failed(), "{case}");
        if sim.has_failed() {
            let before = *stores.get_or_insert(sim.stores());
            assert_eq!(before, sim.stores(), "{case}: something was stored: {done:?}");
        }
    }
    drop(heap);
    assert!(stores.is_none_or(|stores| stores == sim.stores()), "{case}: something was stored");
    let left = crash(&sim.state(), &mut world.rng);
    look(&Heap::attach(Arc::new(Sim::of(left)), &options).unwrap());
}

#[test]
fn failed_fence_stops_all_stores_and_leaves_sound_heap() {
    each_seed(30, failing);
}

#[test]
fn allocated_block_is_not_handed_out_after_stray_write() {
    each_seed(60, stray);
}

#[test]
fn random_programs_survive_power_failures() {
    each_seed(40, |seed| run(seed, Fate { has_kills: false, has_hits: false }));
}

#[test]
fn random_programs_survive_kills_and_power_failures() {
    each_seed(40, |seed| run(seed, Fate { has_kills: true, has_hits: false }));
}

#[test]
fn heap_that_opens_with_corrupted_line_has_lost_nothing() {
    each_seed(200, |seed| run(seed, Fate { has_kills: seed % 2 == 0, has_hits: true }));
}
