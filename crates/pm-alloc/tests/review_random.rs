//! Random programs against a shadow model: transactions with long writes, aborted ones, ones within which another thread commits or
//! a word is stored, lazy ones, blocks with their links, roots. Each run is killed or loses power at a random event, again and again.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

use pm_alloc::{Heap, HeapOptions, Tx, TxError};
use pm_core::{Link, Pmem, PoolOptions, Uuid};
use std::collections::BTreeSet;
use std::sync::Arc;

mod sim;

const LINE: u64 = 64;
use sim::{Rng, Sim, crash};

const SLOTS: usize = 10;
const WORDS: usize = 24;
const BIG: usize = 48;
const NAMES: [&str; 4] = ["r0", "r1", "r2", "r3"];

type SimHeap = Heap<Arc<Sim>>;

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
fn content(id: u64, salt: u64) -> Vec<u64> {
    let mut words: Vec<u64> =
        (0..words_of(id) as u64).map(|at| id.wrapping_mul(31).wrapping_add(at ^ salt)).collect();
    words[0] = id;
    words
}

fn offsets(heap: &SimHeap) -> [u64; 3] {
    heap.view(|view| ["slots", "words", "big"].map(|name| view.root::<u64>(name).unwrap().unwrap().offset()))
}

fn look(heap: &SimHeap) -> Shadow {
    let report = heap.check();
    assert!(report.is_clean(), "damage: {report:?}");
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
        assert_eq!(found, content(id, 0), "contents at {offset}");
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

/// States of a program, with the event from which on a crash must not lose each.
type States = Vec<(Shadow, u64)>;

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
    /// Some changes of one transaction to slots from `from` to `to`, words and roots.
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
            let slot_link: Link<'p, u64> = Link::vouched(slots + 8 * slot as u64);
            match self.rng.below(7) {
                0 | 1 if shadow.slots[slot] == 0 => {
                    let id = self.id();
                    let block = if self.rng.one_in(6) {
                        let align = 128 << self.rng.below(4);
                        let block = tx.alloc_aligned::<u64>(words_of(id) as u64, align)?;
                        assert!(block.offset().is_multiple_of(align));
                        tx.write_slice(block, &content(id, 0))?;
                        block
                    } else if self.rng.one_in(3) {
                        let block = tx.alloc_unfilled::<u64>(words_of(id) as u64)?;
                        for (number, chunk) in content(id, 0).chunks(5).enumerate() {
                            tx.write_slice(block.element(5 * number as u64), chunk)?;
                        }
                        block
                    } else {
                        tx.alloc_slice(&content(id, 0))?
                    };
                    tx.write(slot_link, &block.offset())?;
                    shadow.slots[slot] = id;
                }
                2 | 3 if shadow.slots[slot] != 0 => {
                    let block: Link<'p, u64> = Link::vouched(tx.read(slot_link)?);
                    if self.rng.one_in(3) {
                        tx.write(block, &0xDEAD)?;
                    }
                    tx.free(block)?;
                    tx.write(slot_link, &0)?;
                    shadow.slots[slot] = 0;
                }
                4 => {
                    let id = self.id();
                    let block = tx.alloc_slice(&content(id, 0))?;
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
                        let block = tx.alloc_slice(&content(id, 0))?;
                        tx.set_root(NAMES[number], block)?;
                        shadow.roots[number] = id;
                    }
                }
                _ => {
                    let from = words.start + self.rng.below(words.len() as u64) as usize;
                    let len = 1 + self.rng.below((words.end - from) as u64) as usize;
                    let values: Vec<u64> = (0..len).map(|_| self.rng.next()).collect();
                    tx.write_slice(Link::vouched(word_at + 8 * from as u64), &values)?;
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
        tx.write_slice(Link::vouched(big + 8 * from as u64), &values)?;
        shadow.big[from..from + len].copy_from_slice(&values);
        Ok(())
    }

    /// One operation. States that it goes through are added; of an error, none.
    fn step(&mut self, heap: &SimHeap, states: &mut States, stopping: bool) -> &'static str {
        let sim = heap.pool().pmem();
        let at = offsets(heap);
        let [slots, word_at, big] = at;
        let last = states.last().unwrap().0.clone();
        let mut next = last.clone();
        let abort = self.rng.one_in(5);
        let slot = self.rng.below(SLOTS as u64) as usize;
        let kind = self.rng.below(12);
        let refused = |error: &TxError| {
            let text = format!("{error:?}");
            assert!(
                text.contains("Full")
                    || text.contains("Alignment")
                    || text.contains("TooL")
                    || text.contains("TooLarge")
                    || text == "Aborted",
                "{text}"
            );
        };
        struct Abort;
        enum E {
            Abort,
            Tx(TxError),
        }
        impl From<TxError> for E {
            fn from(error: TxError) -> Self {
                Self::Tx(error)
            }
        }
        let _ = Abort;
        match kind {
            0 | 1 => {
                if next.slots[slot] == 0 {
                    let id = self.id();
                    let words = content(id, 0);
                    let link = |slot: usize| slots + 8 * slot as u64;
                    macro_rules! of {
                        ($($n:literal)*) => { match words_of(id) { $($n => heap.view(|view| view.alloc_into::<[u64; $n]>(Link::vouched(link(slot)), words.as_slice().try_into().unwrap()).map(|_| ())),)* _ => unreachable!() } };
                    }
                    let done = of!(1 3 8 12 13 14 15 23 40 100 300 600 1100);
                    match done {
                        Ok(()) => {
                            next.slots[slot] = id;
                            states.push((next, sim.events()));
                        }
                        Err(error) => refused(&error),
                    }
                } else {
                    heap.view(|view| view.free_from::<u64>(Link::vouched(slots + 8 * slot as u64))).unwrap();
                    next.slots[slot] = 0;
                    states.push((next, sim.events()));
                }
                "published"
            }
            2 => {
                let number = self.rng.below(WORDS as u64);
                let value = self.rng.next();
                heap.view(|view| view.store_word(Link::vouched(word_at + 8 * number), value)).unwrap();
                next.words[number as usize] = value;
                states.push((next, sim.events()));
                "word"
            }
            3 => {
                let number = self.rng.below(WORDS as u64 / 2) * 2;
                let value = [self.rng.next(), self.rng.next()];
                heap.view(|view| view.store_pair(Link::vouched(word_at + 8 * number), value)).unwrap();
                next.words[number as usize..number as usize + 2].copy_from_slice(&value);
                states.push((next, sim.events()));
                "word"
            }
            4..=6 => {
                let with_big = self.rng.one_in(3);
                let big_first = self.rng.one_in(2);
                let done = heap.transaction(|tx| {
                    if with_big && big_first {
                        self.big(tx, &mut next, big)?;
                    }
                    self.change(tx, &mut next, at, 0..SLOTS, 0..WORDS)?;
                    if with_big {
                        self.big(tx, &mut next, big)?;
                    }
                    if abort { Err(E::Abort) } else { Ok(()) }
                });
                match done {
                    // One that changed nothing waits for no lazy one before it.
                    Ok(()) if next == last => {}
                    Ok(()) => states.push((next, sim.events())),
                    Err(E::Abort) => {}
                    Err(E::Tx(error)) => refused(&error),
                }
                "transaction"
            }
            7 => {
                let lazy = self.rng.one_in(2);
                let done = heap.transaction(|tx| {
                    if lazy {
                        tx.lazily();
                    }
                    self.big(tx, &mut next, big)?;
                    if self.rng.one_in(3) {
                        self.big(tx, &mut next, big)?;
                    }
                    if abort { Err(E::Abort) } else { Ok(()) }
                });
                match done {
                    Ok(()) => states.push((next, if lazy { u64::MAX } else { sim.events() })),
                    Err(E::Abort) => {}
                    Err(E::Tx(error)) => {
                        refused(&error);
                        if traced() {
                            println!("refused: {error}");
                        }
                    }
                }
                if abort {
                    "long given up"
                } else if lazy {
                    "lazy"
                } else {
                    "long"
                }
            }
            8 | 9 => {
                // Within a transaction with a long write, a word is stored, or another thread commits.
                let (mut outer, base) = (last.clone(), last.clone());
                let mut inner_states: States = vec![];
                let thread = self.rng.one_in(2) && heap.layout().lane_count > 1;
                let done = heap.transaction(|tx| {
                    self.big(tx, &mut outer, big)?;
                    if !thread {
                        let number = 16 + self.rng.below(8);
                        let value = self.rng.next();
                        heap.view(|view| view.store_word(Link::vouched(word_at + 8 * number), value))
                            .unwrap();
                        let mut inner = base.clone();
                        inner.words[number as usize] = value;
                        outer.words[number as usize] = value;
                        inner_states.push((inner, sim.events()));
                    } else {
                        let mut inner = base.clone();
                        let world = &mut *self;
                        let found = std::thread::scope(|scope| {
                            scope
                                .spawn(|| {
                                    heap.transaction(|tx| {
                                        world.change(tx, &mut inner, at, 5..SLOTS - 1, 16..WORDS)
                                    })
                                    .is_ok()
                                })
                                .join()
                                .unwrap()
                        });
                        if found && inner != base {
                            outer.slots[5..].copy_from_slice(&inner.slots[5..]);
                            outer.words[16..].copy_from_slice(&inner.words[16..]);
                            inner_states.push((inner, sim.events()));
                        }
                    }
                    self.change(tx, &mut outer, at, 0..5, 0..16)?;
                    if abort { Err(E::Abort) } else { Ok(()) }
                });
                states.append(&mut inner_states);
                match done {
                    Ok(()) => states.push((outer, sim.events())),
                    Err(E::Abort) => {}
                    Err(E::Tx(error)) => refused(&error),
                }
                "nested"
            }
            10 => {
                heap.checkpoint().unwrap();
                states.last_mut().unwrap().1 = sim.events();
                "checkpoint"
            }
            _ => {
                if next.slots[slot] == 0 && !stopping {
                    let id = self.id();
                    let done = heap.view(|view| {
                        let block = view.alloc_unfilled_into::<u64>(
                            Link::vouched(slots + 8 * slot as u64),
                            words_of(id) as u64,
                        )?;
                        Ok::<u64, TxError>(block.offset())
                    });
                    match done {
                        Ok(block) => {
                            // Whatever is in it: it is freed again.
                            assert!(block != 0);
                            heap.view(|view| view.free_from::<u64>(Link::vouched(slots + 8 * slot as u64)))
                                .unwrap();
                            states.push((next, sim.events()));
                        }
                        Err(error) => refused(&error),
                    }
                    return "unfilled";
                }
                "nothing"
            }
        }
    }
}

fn run(seed: u64, kills: bool) {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for _ in 0..5 {
        rng.next();
    }
    let lanes = 1 + rng.below(3) as u32;
    let entries = [16, 30, 44, 80][rng.below(4) as usize];
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let threshold = [64, 65, 200][rng.below(3) as usize];
    let options = HeapOptions::new()
        .pool(pool)
        .seed(7)
        .lanes(lanes)
        .lane_entries(entries)
        .chunk_bytes(4096)
        .in_place_from_bytes(threshold);
    let len = [120, 160, 252][rng.below(3) as usize] * 1024;
    let sim = Arc::new(Sim::new(len));
    let mut heap = Heap::format(Arc::clone(&sim), &options).unwrap();
    heap.transaction(|tx| {
        let slots = tx.alloc_zeroed::<u64>(SLOTS as u64)?;
        tx.set_root("slots", slots)?;
        let words = tx.alloc_zeroed::<u64>(WORDS as u64)?;
        tx.set_root("words", words)?;
        let big = tx.alloc_zeroed::<u64>(BIG as u64)?;
        tx.set_root("big", big)
    })
    .map_err(|error: TxError| error)
    .unwrap();
    let mut world = World { rng, serial: 0 };
    let mut states: States = vec![(look(&heap), 0)];
    for _round in 0..12 {
        let steps = 1 + world.rng.below(25);
        for _ in 0..steps {
            let what = world.step(&heap, &mut states, false);
            if traced() {
                let found = look(&heap);
                println!(
                    "{what}: events {} states {:?} big {:?}",
                    heap.pool().pmem().events(),
                    states.iter().map(|state| (state.1, state.0.big[12])).collect::<Vec<_>>(),
                    found.big[12]
                );
            }
            // What follows is compared with the last one alone, and what may be lost with it.
            while states.len() > 1 && states.iter().skip(1).any(|state| state.1 != u64::MAX) {
                states.remove(0);
            }
        }
        let found = look(&heap);
        assert_eq!(found, states.last().unwrap().0, "seed {seed}, without a crash");
        // The operation that is stopped in.
        let sim = Arc::clone(heap.pool().pmem());
        let begun = sim.events();
        let most = if world.rng.one_in(3) { 12 } else { 60 };
        let stop = begun + world.rng.below(most);
        sim.stop_at(stop);
        let mut what = "";
        while sim.events() <= stop {
            for state in &mut states {
                if state.1 != u64::MAX && state.1 <= begun {
                    state.1 = 0;
                }
            }
            what = world.step(&heap, &mut states, true);
            if traced() {
                println!(
                    "stop {stop} {what}: events {} states {:?}",
                    sim.events(),
                    states.iter().map(|state| (state.1, state.0.big[12])).collect::<Vec<_>>()
                );
            }
        }
        let stopped = sim.stopped().unwrap();
        drop(heap);
        if traced() {
            println!("stopped in {what} at {stop}");
        }
        let mut kill = kills && world.rng.one_in(2) && what != "word" && what != "nested";
        let mut state = if kill { stopped } else { crash(&stopped, &mut world.rng) };
        // Recoveries that are stopped themselves.
        while world.rng.one_in(3) {
            let again = Arc::new(Sim::of(state));
            again.stop_at(world.rng.below(60));
            let opened = Heap::attach(Arc::clone(&again), &options);
            let stopped = again.stopped();
            let opened = opened.unwrap();
            state = stopped.unwrap_or_else(|| again.state());
            drop(opened);
            kill = kills && world.rng.one_in(2);
            if !kill {
                state = crash(&state, &mut world.rng);
            }
        }
        let _ = kill;
        heap = Heap::attach(Arc::new(Sim::of(state)), &options).unwrap();
        let found = look(&heap);
        let acked = states.iter().rposition(|state| state.1 != u64::MAX && state.1 <= stop).unwrap_or(0);
        let allowed = &states[acked..];
        assert!(
            allowed.iter().any(|state| state.0 == found),
            "seed {seed}, {what}: found {found:?}\nallowed {allowed:#?}"
        );
        states = vec![(found, 0)];
    }
}

/// One word or line of the chunks is overwritten while a heap is closed. Nothing that is live is handed out, before a repair or after it,
/// and what is live is listed, unless its own header was hit.
fn stray(seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for _ in 0..5 {
        rng.next();
    }
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let options = HeapOptions::new()
        .pool(pool)
        .seed(7)
        .lanes(1)
        .lane_entries(60)
        .chunk_bytes(4096)
        .in_place_from_bytes(4096);
    let sim = Arc::new(Sim::new(52 << 10));
    let heap = Heap::format(Arc::clone(&sim), &options).unwrap();
    heap.transaction(|tx| {
        for (name, count) in [("slots", SLOTS), ("words", WORDS), ("big", BIG)] {
            let block = tx.alloc_zeroed::<u64>(count as u64)?;
            tx.set_root(name, block)?;
        }
        Ok(())
    })
    .map_err(|error: TxError| error)
    .unwrap();
    let mut world = World { rng, serial: 0 };
    let mut states: States = vec![(look(&heap), 0)];
    for _ in 0..60 {
        world.step(&heap, &mut states, false);
    }
    let layout = *heap.layout();
    let mut live: Vec<(u64, u64)> = vec![];
    let mut has_huge = false;
    heap.check_with(|block| {
        if block.state == pm_alloc::format::BlockState::Allocated {
            live.push((block.payload, u64::from(block.lines) * LINE));
            has_huge |= u64::from(block.lines) * LINE >= layout.chunk_bytes;
        }
    });
    drop(heap);
    if has_huge {
        return;
    }
    let at = layout.chunks_start + 8 * world.rng.below((sim.len_bytes() - layout.chunks_start) / 8);
    // Headers are the last words of lines.
    let at = if world.rng.one_in(4) { at } else { at / LINE * LINE + 56 };
    let len = if world.rng.one_in(3) { 64.min(sim.len_bytes() - at) } else { 8 };
    let value =
        [0, world.rng.next(), sim.load_u64(at) ^ 1 << world.rng.below(32)][world.rng.below(3) as usize];
    for word in 0..len / 8 {
        sim.store_u64(at + 8 * word, value);
    }
    let hit = |payload: u64| at < payload && payload - 8 < at + len;
    for round in 0..2 {
        let mut heap = Heap::attach(Arc::clone(&sim), &options).unwrap();
        let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
        for (payload, _) in &live {
            assert!(
                hit(*payload) || listed.contains(payload),
                "seed {seed}, round {round}: {payload} is not listed; {at}+{len}"
            );
        }
        let mut new = vec![];
        let given_up = heap.transaction(|tx| {
            loop {
                let words = [1, 7, 8, 20, 60][world.rng.below(5) as usize];
                let words = if tx
                    .alloc_unfilled::<u64>(words)
                    .map(|block| new.push((block.offset(), 8 * words)))
                    .is_ok()
                {
                    continue;
                } else {
                    1
                };
                let block = tx.alloc_unfilled::<u64>(words)?;
                new.push((block.offset(), 8 * words));
            }
            #[expect(unreachable_code, reason = "for the type")]
            Ok::<(), TxError>(())
        });
        assert!(given_up.is_err());
        for (start, len) in &new {
            let over = live.iter().find(|live| *start < live.0 + live.1 - 8 && live.0 < start + len);
            assert!(
                over.is_none(),
                "seed {seed}, round {round}: {start}+{len} handed out over {over:?}; hit {at}+{len}"
            );
        }
        for damage in heap.check().damages {
            heap.repair(&damage).unwrap();
        }
        let damages = heap.check().damages;
        assert!(damages.is_empty(), "seed {seed}, round {round}: {damages:?} after a repair; hit {at}+{len}");
    }
}

/// After a failed fence nothing more is stored, and what is left is a whole heap.
fn failing(seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for _ in 0..5 {
        rng.next();
    }
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let lanes = 1 + rng.below(3) as u32;
    let options = HeapOptions::new()
        .pool(pool)
        .seed(7)
        .lanes(lanes)
        .lane_entries(30)
        .chunk_bytes(4096)
        .in_place_from_bytes(64);
    let sim = Arc::new(Sim::new(120 << 10));
    let heap = Heap::format(Arc::clone(&sim), &options).unwrap();
    heap.transaction(|tx| {
        for (name, count) in [("slots", SLOTS), ("words", WORDS), ("big", BIG)] {
            let block = tx.alloc_zeroed::<u64>(count as u64)?;
            tx.set_root(name, block)?;
        }
        Ok(())
    })
    .map_err(|error: TxError| error)
    .unwrap();
    let mut world = World { rng, serial: 0 };
    let mut states: States = vec![(look(&heap), 0)];
    for _ in 0..1 + world.rng.below(60) {
        world.step(&heap, &mut states, true);
    }
    sim.fail_at(sim.events() + world.rng.below(60));
    let mut stores = None;
    for _ in 0..40 {
        let step = std::panic::AssertUnwindSafe(|| world.step(&heap, &mut states, true));
        // A refused call is an error that a step does not expect.
        let done = std::panic::catch_unwind(step);
        assert!(done.is_ok() || sim.has_failed(), "seed {seed}");
        if sim.has_failed() {
            assert!(
                stores.is_none_or(|stores| stores == sim.stores()),
                "seed {seed}: something was stored: {done:?}"
            );
            stores = Some(sim.stores());
        }
    }
    drop(heap);
    assert!(stores.is_none_or(|stores| stores == sim.stores()), "seed {seed}: something was stored");
    let left = crash(&sim.state(), &mut world.rng);
    let heap = Heap::attach(Arc::new(Sim::of(left)), &options).unwrap();
    look(&heap);
}

#[test]
fn failed_fence_ends_all_stores_and_leaves_a_whole_heap() {
    let (from, count) = (env("REVIEW_FROM", 0), env("REVIEW_COUNT", 60));
    (from..from + count).for_each(failing);
}

#[test]
fn nothing_live_is_handed_out_after_a_stray_write() {
    let (from, count) = (env("REVIEW_FROM", 0), env("REVIEW_COUNT", 60));
    (from..from + count).for_each(stray);
}

#[test]
fn random_programs_survive_power_failures() {
    let (from, count) = (env("REVIEW_FROM", 0), env("REVIEW_COUNT", 60));
    (from..from + count).for_each(|seed| {
        println!("seed {seed}");
        run(seed, false);
    });
}

#[test]
fn random_programs_survive_kills_and_power_failures() {
    let (from, count) = (env("REVIEW_FROM", 0), env("REVIEW_COUNT", 60));
    (from..from + count).for_each(|seed| {
        println!("seed {seed}");
        run(seed + 1_000_000, true);
    });
}

fn traced() -> bool {
    std::env::var_os("REVIEW_TRACE").is_some()
}

fn env(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |text| text.parse().unwrap())
}
