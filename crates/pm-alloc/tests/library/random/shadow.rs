//! A shadow model of a heap with several owners, each with its own slots for blocks, words and roots, and the operations of random programs.

use super::prelude::*;
use crate::sim::programs::{Failure, States, alloc_and_link, new_block};
use core::array::from_fn;
use core::ops::Range;
use pm_alloc::Durability;

const SLOTS: usize = 10;
const WORDS: usize = 24;
const BIG: usize = 60;
const ROOTS: u64 = 4;

/// Later than any event. The event of a state that a crash may always lose.
pub(super) const NEVER: u64 = u64::MAX;

/// Lengths of blocks in words.
pub(super) const LENS: &[u64] = &[1, 3, 7, 8, 12, 13, 14, 15, 23, 40, 40, 71, 100, 300, 600, 1100];

/// The data of one owner. A block is represented by the number in its first word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shadow {
    slots: [u64; SLOTS],
    words: [u64; WORDS],
    big: [u64; BIG],
    roots: [u64; ROOTS as usize],
}

/// The data that a transaction may change. Concurrent transactions of an owner change different data.
struct Part {
    slots: Range<usize>,
    words: Range<usize>,
    has_roots_and_big: bool,
}

const ALL: Part = Part { slots: 0..SLOTS, words: 0..WORDS, has_roots_and_big: true };
const OUTER: Part = Part { slots: 0..5, words: 0..16, has_roots_and_big: false };
const INNER: Part = Part { slots: 5..SLOTS, words: 16..WORDS, has_roots_and_big: false };

fn words_of(id: u64) -> usize {
    (id & 0xffff) as usize
}

/// Whether the contents of the block, except its number, are stored without the log and never flushed.
fn is_scratch(id: u64) -> bool {
    id >> 55 & 1 == 1
}

fn root_name(owner: usize, number: u64) -> String {
    format!("root {owner}.{number}")
}

/// The offset of a root, or 0.
fn root(heap: &SimHeap, name: &str) -> u64 {
    heap.view(|view| view.root::<u64>(name).unwrap().map_or(0, Link::offset))
}

/// A heap with the initial data of each owner.
pub(super) fn formatted(region_bytes: u64, options: &HeapOptions, owners: usize) -> SimHeap {
    let heap = Heap::format(any(Arc::new(SampledPmem::new(region_bytes))), options).unwrap();
    heap.transact(|tx| {
        (0..owners).try_for_each(|owner| {
            let block = tx.alloc_zeroed::<u64>((SLOTS + WORDS + BIG) as u64)?;
            tx.set_root(&format!("owner {owner}"), block)
        })
    })
    .unwrap();
    heap
}

/// Reads the data of each owner. Asserts that no block is corrupted, leaked or lost, and that blocks have their contents.
pub(super) fn read_states(heap: &SimHeap, owners: usize) -> Vec<Shadow> {
    assert_clean(heap);
    let mut reachable = BTreeSet::new();
    let pmem = heap.pool().pmem();
    let mut read_owner = |owner: usize| {
        let at = root(heap, &format!("owner {owner}"));
        reachable.insert(at);
        let mut block = |offset: u64| {
            if offset == 0 {
                return 0;
            }
            assert!(reachable.insert(offset), "one link to {offset}");
            let id = pmem.load_u64(offset);
            assert!(words_of(id) > 0 && id >> 56 == owner as u64, "no contents at {offset}: {id:x}");
            let found: Vec<u64> = (0..words_of(id) as u64).map(|n| pmem.load_u64(offset + 8 * n)).collect();
            assert!(is_scratch(id) || found == content(id, words_of(id)), "the contents at {offset}");
            id
        };
        let word = |n: usize| pmem.load_u64(at + 8 * n as u64);
        Shadow {
            slots: from_fn(|n| block(word(n))),
            words: from_fn(|n| word(SLOTS + n)),
            big: from_fn(|n| word(SLOTS + WORDS + n)),
            roots: from_fn(|n| block(root(heap, &root_name(owner, n as u64)))),
        }
    };
    let shadows = (0..owners).map(&mut read_owner).collect();
    let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
    assert_eq!(listed, reachable, "no block is leaked or lost");
    shadows
}

/// One owner, and the operations on its data.
pub(super) struct Actor {
    pub(super) owner: usize,
    pub(super) rng: Rng,
    pub(super) states: States<Shadow>,
    /// Whether an operation may fail for reasons other than a lack of room.
    pub(super) may_fail: bool,
    /// Whether an operation failed.
    pub(super) has_failed_call: bool,
    is_alone: bool,
    /// The offset of the block of slots and words.
    at: u64,
    serial: u64,
    lens: &'static [u64],
    /// The range of events of each call that stored words without a transaction.
    word_calls: Vec<Range<u64>>,
}

impl Actor {
    /// An actor for each owner of a heap.
    pub(super) fn all(heap: &SimHeap, owners: usize, lens: &'static [u64], rng: &mut Rng) -> Vec<Self> {
        let actor = |(owner, shadow)| Self {
            owner,
            rng: Rng::of(rng.next()),
            states: vec![(shadow, 0)],
            may_fail: false,
            has_failed_call: false,
            is_alone: owners == 1,
            at: root(heap, &format!("owner {owner}")),
            serial: 0,
            lens,
            word_calls: vec![],
        };
        read_states(heap, owners).into_iter().enumerate().map(actor).collect()
    }

    /// Continues with the state that a crash has left.
    pub(super) fn restart(&mut self, found: Shadow) {
        self.states = vec![(found, 0)];
        self.word_calls.clear();
        (self.may_fail, self.has_failed_call) = (false, false);
    }

    pub(super) fn last(&self) -> Shadow {
        self.states.last().unwrap().0.clone()
    }

    /// Whether a word was being stored at this event. If the process was killed then, the word may be visible and not durable.
    pub(super) fn is_storing_word(&self, event: u64) -> bool {
        self.word_calls.iter().any(|call| call.contains(&event))
    }

    /// Executes one operation, and adds the states that it leads to. If `may_stop` is false, it may have other states in between.
    pub(super) fn step(&mut self, heap: &SimHeap, may_stop: bool) {
        let slot = self.rng.below(SLOTS as u64) as usize;
        match self.rng.below(13) {
            0 | 1 => self.publish_or_free(heap, slot),
            2 | 3 => self.store_words(heap),
            4 => self.transaction(heap, true),
            5 if self.rng.one_in(2) => self.checkpoint(heap),
            6 if is_scratch(self.last().slots[slot]) => self.scribble(heap, slot),
            7 | 8 if self.is_alone && !self.may_fail => self.nested(heap),
            9 if !may_stop => self.alloc_uninit_and_free(heap, slot),
            _ => self.transaction(heap, false),
        }
    }

    fn slot_at(&self, slot: usize) -> u64 {
        self.at + 8 * slot as u64
    }

    fn word_at(&self, word: usize) -> u64 {
        self.slot_at(SLOTS + word)
    }

    fn id(&mut self) -> u64 {
        self.serial += 1;
        let len = self.lens[self.rng.below(self.lens.len() as u64) as usize];
        let is_scratch = !self.is_alone && self.rng.one_in(2);
        (self.owner as u64) << 56 | u64::from(is_scratch) << 55 | self.serial << 16 | len
    }

    fn new_block<'p>(&mut self, tx: &mut Tx<'p, AnyPmem<'static>>) -> Result<(u64, Link<'p, u64>), TxError> {
        let id = self.id();
        Ok((id, new_block(tx, &mut self.rng, &content(id, words_of(id)))?))
    }

    /// Makes some changes in a transaction, and in the shadow.
    fn change(
        &mut self,
        tx: &mut Tx<'_, AnyPmem<'static>>,
        shadow: &mut Shadow,
        part: &Part,
    ) -> Result<(), TxError> {
        for _ in 0..1 + self.rng.below(4) {
            let slot = part.slots.start + self.rng.below(part.slots.len() as u64) as usize;
            let link = link_to::<u64>(self.slot_at(slot));
            match self.rng.below(8) {
                0..=2 if shadow.slots[slot] == 0 => {
                    let (id, block) = self.new_block(tx)?;
                    tx.write(link, &block.offset())?;
                    shadow.slots[slot] = id;
                }
                0..=3 if shadow.slots[slot] != 0 => {
                    let block = link_to::<u64>(tx.read(link)?);
                    if self.rng.one_in(3) {
                        tx.write(block, &0xDEAD)?;
                    }
                    tx.free(block)?;
                    tx.write(link, &0)?;
                    shadow.slots[slot] = 0;
                }
                4 => {
                    let (_, block) = self.new_block(tx)?;
                    if self.rng.one_in(2) {
                        tx.write(block, &7)?;
                    }
                    tx.free(block)?;
                }
                5 if part.has_roots_and_big => self.change_root(tx, shadow)?,
                6 if part.has_roots_and_big => self.write_big(tx, shadow)?,
                _ => {
                    let from = part.words.start + self.rng.below(part.words.len() as u64) as usize;
                    let len = 1 + self.rng.below((part.words.end - from) as u64) as usize;
                    let values: Vec<u64> = (0..len).map(|_| self.rng.next()).collect();
                    tx.write_slice(link_to(self.word_at(from)), &values)?;
                    shadow.words[from..from + len].copy_from_slice(&values);
                }
            }
        }
        Ok(())
    }

    /// Removes, replaces or sets a root.
    fn change_root(&mut self, tx: &mut Tx<'_, AnyPmem<'static>>, shadow: &mut Shadow) -> Result<(), TxError> {
        let number = self.rng.below(ROOTS);
        let (name, id) = (root_name(self.owner, number), &mut shadow.roots[number as usize]);
        let is_set = *id != 0;
        if is_set {
            let old = tx.root::<u64>(&name)?.unwrap();
            tx.free(old)?;
            tx.remove_root(&name)?;
            *id = 0;
        }
        if !is_set || self.rng.one_in(2) {
            let (new, block) = self.new_block(tx)?;
            tx.set_root(&name, block)?;
            *id = new;
        }
        Ok(())
    }

    /// Writes to the big array. The write may be long enough to be made in place.
    fn write_big(&mut self, tx: &mut Tx<'_, AnyPmem<'static>>, shadow: &mut Shadow) -> Result<(), TxError> {
        let from = self.rng.below(BIG as u64 - 20) as usize;
        let len = 8 + self.rng.below((BIG - from - 8) as u64 + 1) as usize;
        let values: Vec<u64> = (0..len).map(|_| self.rng.next()).collect();
        tx.write_slice(link_to(self.word_at(WORDS + from)), &values)?;
        shadow.big[from..from + len].copy_from_slice(&values);
        Ok(())
    }

    /// Adds the state to which an operation led. After an error the operation may or may not have led to it.
    fn note(&mut self, heap: &SimHeap, next: Shadow, done: Result<(), Failure>, is_deferred: bool) {
        match done {
            Ok(()) => self
                .states
                .push((next, if is_deferred { NEVER } else { heap.pool().pmem().sampled().events() })),
            Err(Failure::RolledBack) => {}
            Err(Failure::Tx(error)) if is_refusal(&error) => {}
            Err(Failure::Tx(error)) => {
                assert!(self.may_fail, "{error:?}");
                self.has_failed_call = true;
                self.states.push((next, NEVER));
            }
        }
    }

    fn publish_or_free(&mut self, heap: &SimHeap, slot: usize) {
        let (mut next, place) = (self.last(), self.slot_at(slot));
        let done = if next.slots[slot] == 0 {
            next.slots[slot] = self.id();
            let words = content(next.slots[slot], words_of(next.slots[slot]));
            match alloc_and_link(heap, place, &words) {
                // Blocks of other lengths are allocated by transactions.
                Ok(false) => return,
                done => done.map(drop),
            }
        } else {
            next.slots[slot] = 0;
            heap.view(|view| view.unlink_and_free::<u64>(link_to(place)))
        };
        self.note(heap, next, done.map_err(Failure::Tx), false);
    }

    /// Stores a word or a pair without a transaction.
    fn store_words(&mut self, heap: &SimHeap) {
        let is_pair = self.rng.one_in(2);
        let (first, values) = (self.rng.below(WORDS as u64) as usize, [self.rng.next(), self.rng.next()]);
        let first = if is_pair { first & !1 } else { first };
        let (place, begun) = (self.word_at(first), heap.pool().pmem().sampled().events());
        let done = heap.view(|view| match is_pair {
            true => view.store_u64_pair(link_to(place), values),
            false => view.store_u64(link_to(place), values[0]),
        });
        let mut next = self.last();
        let count = 1 + usize::from(is_pair);
        next.words[first..first + count].copy_from_slice(&values[..count]);
        self.word_calls.push(begun..if done.is_ok() { heap.pool().pmem().sampled().events() } else { NEVER });
        self.note(heap, next, done.map_err(Failure::Tx), false);
    }

    fn checkpoint(&mut self, heap: &SimHeap) {
        let done = heap.checkpoint();
        assert!(done.is_ok() || self.may_fail, "{done:?}");
        self.has_failed_call |= done.is_err();
        if done.is_ok() {
            let last = self.states.last_mut().unwrap();
            last.1 = last.1.min(heap.pool().pmem().sampled().events());
        }
    }

    /// Overwrites the contents of a block without the log, and sometimes frees the block.
    fn scribble(&mut self, heap: &SimHeap, slot: usize) {
        let pmem = heap.pool().pmem();
        let block = pmem.load_u64(self.slot_at(slot));
        for n in 1..words_of(self.last().slots[slot]) as u64 {
            pmem.store_u64(block + 8 * n, 0x0101_0101_0101_0101 * (n & 7));
        }
        if self.rng.one_in(2) {
            self.publish_or_free(heap, slot);
        }
    }

    fn transaction(&mut self, heap: &SimHeap, is_long: bool) {
        let (is_rolled_back, is_deferred) = (self.rng.one_in(6), is_long && self.rng.one_in(2));
        let durability = if is_deferred { Durability::Deferred } else { Durability::Immediate };
        let last = self.last();
        let mut next = last.clone();
        let done = heap.transaction_with(durability, |tx| {
            let is_long_too = self.rng.one_in(3);
            if is_long || is_long_too && self.rng.one_in(2) {
                self.write_big(tx, &mut next)?;
            }
            if !is_long {
                self.change(tx, &mut next, &ALL)?;
            }
            if is_long_too {
                self.write_big(tx, &mut next)?;
            }
            if is_rolled_back { Err(Failure::RolledBack) } else { Ok(()) }
        });
        // A transaction without changes does not make an earlier deferred one durable.
        if done.is_err() || next != last {
            self.note(heap, next, done, is_deferred);
        }
    }

    /// Runs a transaction with a long write. Within it a word is stored in place, or another thread commits.
    fn nested(&mut self, heap: &SimHeap) {
        let is_rolled_back = self.rng.one_in(5);
        let is_thread = self.rng.one_in(2) && heap.layout().lane_count > 1;
        let base = self.last();
        let (mut outer, mut inner) = (base.clone(), base.clone());
        let done = heap.try_transaction(|tx| {
            self.write_big(tx, &mut outer)?;
            let begun = heap.pool().pmem().sampled().events();
            if is_thread {
                let other = || heap.transaction(|tx| self.change(tx, &mut inner, &INNER)).is_ok();
                if !std::thread::scope(|scope| scope.spawn(other).join().unwrap()) {
                    inner = base.clone();
                }
            } else {
                let (number, value) = (16 + self.rng.below(8) as usize, self.rng.next());
                heap.view(|view| view.store_u64(link_to(self.word_at(number)), value))?;
                inner.words[number] = value;
                self.word_calls.push(begun..heap.pool().pmem().sampled().events());
            }
            if inner != base {
                outer.slots[INNER.slots].copy_from_slice(&inner.slots[INNER.slots]);
                outer.words[INNER.words].copy_from_slice(&inner.words[INNER.words]);
                self.states.push((inner, heap.pool().pmem().sampled().events()));
            }
            self.change(tx, &mut outer, &OUTER)?;
            if is_rolled_back { Err(Failure::RolledBack) } else { Ok(()) }
        });
        self.note(heap, outer, done, false);
    }

    /// Allocates an uninitialized block, and frees it.
    fn alloc_uninit_and_free(&mut self, heap: &SimHeap, slot: usize) {
        let (next, place, count) = (self.last(), self.slot_at(slot), words_of(self.id()) as u64);
        if next.slots[slot] != 0 {
            return;
        }
        let done = heap.view(|view| {
            view.alloc_uninit_and_link::<u64>(link_to(place), count)?;
            view.unlink_and_free::<u64>(link_to(place)).map_err(|error| panic!("{error:?}"))
        });
        self.note(heap, next, done.map_err(Failure::Tx), false);
    }
}
