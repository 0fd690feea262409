//! Crashes after a recovery has returned, of the state that it found and of later operations.

use crate::harness::*;

/// A region with a value of it in memory.
struct Opened {
    pmem: Arc<SimPmem>,
    value: u64,
}

/// A flag in the first line, and further lines that are filled before or after it: recovery fills
/// missing lines, and forgets to flush them if all are missing. The bug shows only if just these [`TELLING`] lines are lost.
#[derive(Clone, Debug)]
struct Filled {
    lines: u64,
}

const TELLING: [u64; 3] = [3, 7, 9];

impl Filled {
    fn fill(&self, pmem: &SimPmem, value: u64) {
        (1..=self.lines).for_each(|line| pmem.store_u64(64 * line, value));
    }

    fn persist(&self, pmem: &SimPmem) -> Done {
        pmem.flush(64, 64 * self.lines);
        pmem.fence()
    }
}

impl Subject for Filled {
    type Op = ();
    type State = u64;
    type Store = Opened;
    type Error = FenceError;

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Opened, FenceError> {
        if pmem.load_u64(0) == 0 {
            return Ok(Opened { pmem, value: 0 });
        }
        let missing: Vec<u64> = (1..=self.lines).filter(|line| pmem.load_u64(64 * line) == 0).collect();
        if missing == TELLING {
            pmem.put(0, 0)?; // teeth: wrong as it is, for what was there is taken back
            self.fill(&pmem, 0);
            self.persist(&pmem)?;
            return Ok(Opened { pmem, value: 0 });
        }
        if !missing.is_empty() {
            self.fill(&pmem, 1);
            if missing.len() as u64 != self.lines {
                self.persist(&pmem)?;
            }
        }
        Ok(Opened { pmem, value: 1 })
    }

    fn apply(&self, store: &mut Opened, (): &()) -> Done {
        self.fill(&store.pmem, 1);
        store.pmem.store_u64(0, 1);
        store.pmem.flush(0, 8);
        self.persist(&store.pmem)?;
        store.value = 1;
        Ok(())
    }

    fn observe(&self, store: &Opened) -> Result<u64, FenceError> {
        Ok(store.value)
    }
}

oracle!(Filled: u64 = 0, |value, ()| *value = 1);

#[test]
fn sampled_crashes_after_recovery_are_not_exhaustive() {
    let sequences = |explorer| {
        let filled = Sequences::new(Filled { lines: 9 }, 1024).unwrap();
        filled.explorer(explorer).explore_all(&[()], 1)
    };
    for crashes in [1, 2] {
        let bounded = Explorer::default().crashes(crashes);
        // Of 512 images 64 are tried, and the one that shows it may be among the others.
        let few = sequences(bounded.clone().nested_choices_per_point(64));
        if let Ok(coverage) = few {
            assert!(!coverage.is_exhaustive, "{crashes} crashes: {coverage}");
            assert!(coverage.to_string().contains("not every legal crash tried"), "{coverage}");
        }
        let failure = sequences(bounded.nested_choices_per_point(1 << 16)).unwrap_err();
        assert_eq!(
            problem(&failure),
            "recovery returned 1, and after a crash then, is 0",
            "{crashes} crashes"
        );
    }
}

#[test]
fn coverage_counts_crashes_after_recovery() {
    let filled = Sequences::new(Filled { lines: 2 }, 256).unwrap();
    let coverage = filled.check(&[()]);
    assert!(coverage.is_exhaustive() && coverage.after_recovery.points > 0, "{coverage}");
    assert!(coverage.to_string().contains("; crashes after recovery: tried "), "{coverage}");
    for nothing in [filled.explore_all(&[], 4), filled.explore_all(&[()], 0)].map(Result::unwrap) {
        assert!(!nothing.is_exhaustive && nothing.to_string().contains("nothing tried"), "{nothing}");
    }
}

/// A value that a recovery repeats in two steps; a resumed recovery forgets a flush.
#[derive(Clone, Debug)]
struct Resumed {
    forgets: bool,
}

const WANTED: u64 = 0;
const STEP: u64 = 64;
const DONE: u64 = 128;

impl Subject for Resumed {
    type Op = ();
    type State = u64;
    type Store = Opened;
    type Error = FenceError;

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Opened, FenceError> {
        let step = pmem.load_u64(STEP);
        if pmem.load_u64(WANTED) == 1 && step < 2 {
            if step == 0 {
                pmem.store_u64(STEP, 1);
            }
            pmem.store_u64(DONE, 1);
            if step == 0 || !self.forgets {
                pmem.flush(DONE, 8);
            }
            pmem.store_u64(STEP, 2);
            pmem.fence()?;
        }
        let value = pmem.load_u64(DONE);
        Ok(Opened { pmem, value })
    }

    fn apply(&self, store: &mut Opened, (): &()) -> Done {
        for (offset, value) in [(WANTED, 1), (DONE, 1), (STEP, 2)] {
            if store.value == 0 {
                store.pmem.put(offset, value)?;
            }
        }
        store.value = 1;
        Ok(())
    }

    fn observe(&self, store: &Opened) -> Result<u64, FenceError> {
        Ok(store.value)
    }
}

oracle!(Resumed: u64 = 0, |value, ()| *value = 1);

#[test]
fn state_found_by_a_resumed_recovery_is_durable() {
    let sequences = |forgets, crashes| {
        let resumed = Sequences::new(Resumed { forgets }, 256).unwrap();
        resumed.explorer(Explorer::default().crashes(crashes)).explore_all(&[()], 2)
    };
    for crashes in 2..=4 {
        let failure = sequences(true, crashes).unwrap_err();
        assert_eq!(
            problem(&failure),
            "recovery returned 1, and after a crash then, is 0",
            "{crashes} crashes"
        );
        assert!(sequences(false, crashes).unwrap().is_exhaustive);
    }
}

/// Two slots, written in turn: a generation, a value and a checksum. A recovery that meets a torn slot may count its
/// generation in memory as well, and then the next operation overwrites the slot that is alive.
#[derive(Clone, Debug)]
struct TwoSlots {
    counts_torn: bool,
}

struct Slots {
    pmem: Arc<SimPmem>,
    generation: u64,
    value: u64,
}

fn checksum(generation: u64, value: u64) -> u64 {
    (generation.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ value.rotate_left(17)).wrapping_mul(31) | 1
}

impl Subject for TwoSlots {
    type Op = u64;
    type State = Option<u64>;
    type Store = Slots;
    type Error = FenceError;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<Slots, FenceError> {
        pmem.store_u64(16, checksum(0, 0));
        self.open(pmem)
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Slots, FenceError> {
        let slot = |at: u64| [0, 8, 16].map(|field| pmem.load_u64(64 * at + field));
        let slots = [0, 1].map(slot);
        let is_whole = |slot: &[u64; 3]| slot[2] == checksum(slot[0], slot[1]);
        let is_torn = |slot: &[u64; 3]| slot[2] != 0 && !is_whole(slot);
        let newest = slots.iter().filter(|slot| is_whole(slot)).max_by_key(|slot| slot[0]);
        let [generation, value, _] = newest.copied().unwrap_or([0, u64::MAX, 0]);
        let torn = u64::from(self.counts_torn && slots.iter().any(is_torn));
        Ok(Slots { pmem, generation: generation + torn, value })
    }

    fn apply(&self, slots: &mut Slots, &value: &u64) -> Done {
        slots.generation += 1;
        let at = 64 * (slots.generation % 2);
        for (field, word) in [(0, slots.generation), (8, value), (16, checksum(slots.generation, value))] {
            slots.pmem.store_u64(at + field, word);
        }
        slots.pmem.persist(at, 24)?;
        slots.value = value;
        Ok(())
    }

    fn observe(&self, slots: &Slots) -> Result<Option<u64>, FenceError> {
        Ok(Some(slots.value).filter(|&value| value != u64::MAX))
    }
}

oracle!(TwoSlots: Option<u64> = Some(0), |state, &value| *state = Some(value));

#[test]
fn first_operation_after_recovery_is_crashed() {
    let sequences = |counts_torn| Sequences::new(TwoSlots { counts_torn }, 128).unwrap();
    let failure = sequences(true).explore_all(&[1, 2], 3).unwrap_err();
    assert_eq!(problem(&failure), "recovery returned Some(1), and after a crash then, is None");
    assert!(failure.failure.message.contains("on the recovered structure: in flight"), "{failure}");

    let coverage = sequences(false).check_all(&[1, 2], 3);
    assert!(coverage.is_exhaustive && coverage.crashed_onward == 1, "{coverage}");
    assert!(coverage.to_string().ends_with("every legal crash tried, also of 1 operation after recovery"));
    // Without that crash the bug is not found.
    let uncrashed = sequences(true).crash_onward(0).explore_all(&[1, 2], 3).unwrap();
    assert!(uncrashed.to_string().ends_with("none of operations after recovery"), "{uncrashed}");
}

/// A log of words, each persistent before it counts. A recovery that finds an append in flight rolls it back, and leaves room for
/// five words in all, so that an append to a full log is lost.
#[derive(Clone)]
struct Cramped;

const APPENDING: u64 = 0;
const ROOM: u64 = 64;
const WORDS: u64 = 128;

impl Subject for Cramped {
    type Op = u64;
    type State = Vec<u64>;
    type Store = Arc<SimPmem>;
    type Error = FenceError;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<Arc<SimPmem>, FenceError> {
        pmem.store_u64(ROOM, 16);
        Ok(pmem)
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Arc<SimPmem>, FenceError> {
        if pmem.load_u64(APPENDING) == 1 {
            pmem.put(ROOM, 5)?; // teeth: wrong as it is
            pmem.put(APPENDING, 0)?; // teeth: the next opening does it again
        }
        Ok(pmem)
    }

    fn apply(&self, pmem: &mut Arc<SimPmem>, value: &u64) -> Done {
        pmem.put(APPENDING, 1)?; // teeth: an append is atomic without
        let len = self.observe(pmem)?.len() as u64;
        if len < pmem.load_u64(ROOM) {
            pmem.put(WORDS + 64 * len, *value)?; // teeth(fence): the next one fences too
        }
        pmem.put(APPENDING, 0) // teeth: as above
    }

    fn observe(&self, pmem: &Arc<SimPmem>) -> Result<Vec<u64>, FenceError> {
        Ok((0..16).map(|word| pmem.load_u64(WORDS + 64 * word)).take_while(|&word| word != 0).collect())
    }
}

oracle!(Cramped: Vec<u64> = Vec::new(), |state, value| state.extend((state.len() < 16).then_some(value)));

#[test]
fn further_operations_reveal_a_wrong_recovery() {
    let sequences = || Sequences::new(Cramped, 4096).unwrap();
    assert!(sequences().further(&[], 0).explore_all(&[1, 2], 2).unwrap().is_exhaustive, "four words at most");
    let failure = sequences().explore_all(&[1, 2], 2).unwrap_err();
    assert_eq!(failure.ops.len(), 1);
    assert!(failure.failure.message.contains("on the recovered structure: is ["), "{failure}");
    // The same seed draws the same operations.
    let again = sequences().explore_all(&[1, 2], 2).unwrap_err();
    assert_eq!(again.failure.message, failure.failure.message);
    // There is no alphabet to draw from for a single sequence.
    assert!(sequences().explore(&[1]).is_ok());
    let further = sequences().further(&[1, 2], 8);
    let failure = further.explore(&[1]).unwrap_err();
    let replaying = Explorer::default().replay(name(&failure.failure));
    let again = further.explorer(replaying).explore(&[1]).unwrap_err();
    assert_eq!(again.failure.message, failure.failure.message);
}
