//! Crashes at every point of every kind of transaction, and inside recovery. After each crash the heap is as before or after the transaction,
//! and no block is leaked, overlaps another or is corrupted.

use super::prelude::*;
use pm_alloc::{Tx, View};
use pm_core::{Persist, field};
use pm_crashsim::Coverage;
use pm_testkit::{AnyPmem, Rng, any};
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const REGION_BYTES: u64 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Node<'p> {
    next: Link<'p, Node<'p>>,
    value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Pair {
    left: u64,
    /// Puts `right` into another line than `left`.
    apart: [u64; 8],
    right: u64,
}

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(20).chunk_bytes(4096).in_place_from_bytes(64)
}

fn attach(pmem: &Arc<SimPmem>) -> SimHeap {
    Heap::attach(any(Arc::clone(pmem)), &options()).unwrap()
}

/// A heap with a list of two nodes, 1 and 2, a pair of zeroes, and two slots for links.
fn prepared() -> &'static Image {
    static PREPARED: OnceLock<Image> = OnceLock::new();
    PREPARED.get_or_init(prepare)
}

fn prepare() -> Image {
    let sim = Arc::new(SimPmem::new(REGION_BYTES));
    let heap = Heap::format(any(Arc::clone(&sim)), &options()).unwrap();
    heap.transact(|tx| {
        let second = tx.alloc(&Node { next: Link::NULL, value: 2 })?;
        let first = tx.alloc(&Node { next: second, value: 1 })?;
        let head = tx.alloc(&first)?;
        tx.set_root("head", head)?;
        let pair = tx.alloc(&Pair { left: 0, apart: [0; 8], right: 0 })?;
        tx.set_root("pair", pair)
    })
    .unwrap();
    heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<Link<[u64; 24]>>(2)?;
        tx.set_root("slots", slots)
    })
    .unwrap();
    sim.to_image()
}

/// The contents of a heap of these tests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct State {
    list: Vec<u64>,
    pair: (u64, u64),
    names: Vec<String>,
    /// Whether each slot links to a block.
    linked: [bool; 2],
}

/// The contents of a heap. Asserts that no block is leaked, linked twice or corrupted.
fn state(heap: &SimHeap) -> State {
    assert_clean(heap);
    let mut reachable = BTreeSet::new();
    let state = heap.view(|view| {
        let mut state = State::default();
        if let Some(head) = view.root::<Link<Node>>("head").unwrap() {
            reachable.insert(head.offset());
            let mut at = view.read(head).unwrap();
            while !at.is_null() {
                assert!(reachable.insert(at.offset()), "the list has no cycle");
                let node = view.read(at).unwrap();
                state.list.push(node.value);
                at = node.next;
            }
        }
        if let Some(pair) = view.root::<Pair>("pair").unwrap() {
            reachable.insert(pair.offset());
            let Pair { left, right, .. } = view.read(pair).unwrap();
            state.pair = (left, right);
        }
        if let Some(long) = view.root::<[u64; 24]>("long").unwrap() {
            reachable.insert(long.offset());
            assert_eq!(view.read(long).unwrap(), [5; 24]);
            state.names.push("long".to_owned());
        }
        let slots = view.root::<Link<[u64; 24]>>("slots").unwrap().unwrap();
        reachable.insert(slots.offset());
        for (number, linked) in (0..).zip(&mut state.linked) {
            let block = view.read(slots.element(number)).unwrap();
            *linked = !block.is_null() && reachable.insert(block.offset());
            if *linked && number == 0 {
                assert_eq!(view.read(block).unwrap(), [6; 24], "a linked block is filled");
            }
        }
        for name in ["other", "third"] {
            if let Some(link) = view.root::<u64>(name).unwrap() {
                reachable.insert(link.offset());
                state.names.push(name.to_owned());
            }
        }
        state
    });
    assert_eq!(
        heap.blocks().into_iter().collect::<BTreeSet<_>>(),
        reachable,
        "the allocated blocks are the reachable ones"
    );
    state
}

fn push(tx: &mut Tx<'_, AnyPmem<'static>>, value: u64) -> Result<(), TxError> {
    let head = tx.root::<Link<Node>>("head")?.unwrap();
    let next = tx.read(head)?;
    let node = tx.alloc(&Node { next, value })?;
    tx.write(head, &node)
}

fn pop(tx: &mut Tx<'_, AnyPmem<'static>>) -> Result<(), TxError> {
    let head = tx.root::<Link<Node>>("head")?.unwrap();
    let first = tx.read(head)?;
    if first.is_null() {
        return Ok(());
    }
    let next = tx.read(first)?.next;
    tx.write(head, &next)?;
    tx.free(first)
}

fn set_pair(tx: &mut Tx<'_, AnyPmem<'static>>, value: u64) -> Result<(), TxError> {
    let pair = tx.root::<Pair>("pair")?.unwrap();
    tx.write(pair.field(field!(Pair, left)), &value)?;
    tx.write(pair.field(field!(Pair, right)), &value)
}

/// Links a null slot to a new block, or frees the block of a slot. New blocks are initialized in slot 0, and uninitialized in slot 1.
fn toggle<'p>(view: &View<'p, AnyPmem<'static>>, number: u64) -> Result<(), TxError> {
    let slots = view.root::<Link<'p, [u64; 24]>>("slots")?.unwrap();
    let slot = slots.element(number);
    if !view.read(slot)?.is_null() {
        return view.unlink_and_free(slot);
    }
    match number {
        0 => view.alloc_and_link(slot, &[6; 24]),
        _ => view.alloc_uninit_and_link(slot, 1),
    }?;
    Ok(())
}

/// A step of a program, which is atomic.
#[derive(Clone, Copy)]
enum Step {
    /// A transaction.
    Tx(fn(&mut Tx<'_, AnyPmem<'static>>) -> Result<(), TxError>),
    /// A call of a view.
    Call(fn(&View<'_, AnyPmem<'static>>) -> Result<(), TxError>),
}

impl Step {
    fn run(self, heap: &SimHeap) -> Result<(), TxError> {
        match self {
            Self::Tx(transaction) => heap.transaction(transaction),
            Self::Call(call) => heap.view(call),
        }
    }
}

use Step::{Call, Tx as InTx};

/// Explores the steps under each model: every crash, with every crash of its recovery; and every kill, with every crash of the next process.
fn explore(steps: &[Step]) {
    for model in MODELS {
        explore_all(exhaustive(model).crashes(2), steps);
        explore_all(killed(model), steps);
    }
}

const MODELS: [Model; 3] = [Model::Eadr, Model::Px86Line, Model::Page];

fn exhaustive(model: Model) -> Explorer {
    Explorer::new(model).choices_per_point(1 << 16).nested_choices_per_point(1 << 11)
}

/// Every kill, and one crash. Crashes of recovery are not included: without a kill they are explored already.
fn killed(model: Model) -> Explorer {
    exhaustive(model).crashes(1).kills(1)
}

fn explore_all(explorer: Explorer, steps: &[Step]) {
    let coverage = explore_with(explorer, steps);
    assert!(coverage.is_exhaustive(), "{coverage}");
}

/// Runs the steps in order. After any crash the state is that after some number of steps, and no acknowledged step is lost.
fn explore_with(explorer: Explorer, steps: &[Step]) -> Coverage {
    let image = prepared();
    let expected: Vec<State> = {
        let heap = attach(&Arc::new(SimPmem::from_image(image, Model::Px86Line)));
        let mut states = vec![state(&heap)];
        for step in steps {
            step.run(&heap).unwrap();
            states.push(state(&heap));
        }
        states
    };
    let operation = |run: &Run<usize>| {
        let heap = attach(run.pmem());
        for (done, step) in steps.iter().enumerate() {
            step.run(&heap).unwrap();
            run.ack(done + 1);
        }
    };
    let check = |crash: &Crash<usize>| {
        let acked = crash.acked().last().copied().unwrap_or(0);
        let heap = attach(crash.pmem());
        let mut found = state(&heap);
        // The crashed process was a recovery, or the second process, and had pushed 99 already.
        let has_pushed = found.list.first() == Some(&99);
        if has_pushed {
            found.list.remove(0);
        }
        let allowed = &expected[acked..(acked + 2).min(expected.len())];
        if !allowed.contains(&found) {
            return Err(format!("found {found:?}, allowed {allowed:?}"));
        }
        if has_pushed {
            return Ok(());
        }
        heap.transaction(|tx| push(tx, 99)).map_err(|error: TxError| error.to_string())
    };
    explorer.lints(lints()).check(image, operation, check)
}

/// The steps of random programs, with their names.
const STEPS: [(&str, Step); 11] = [
    ("push", InTx(|tx| push(tx, 3))),
    (
        "push with a long block",
        InTx(|tx| {
            let block = tx.alloc(&[5_u64; 24])?;
            if let Some(old) = tx.root::<[u64; 24]>("long")? {
                tx.free(old)?;
            }
            tx.set_root("long", block)
        }),
    ),
    ("pop", InTx(pop)),
    (
        "two words",
        InTx(|tx| {
            let pair = tx.root::<Pair>("pair")?;
            let left = pair.map(|pair| tx.read(pair)).transpose()?.map_or(0, |pair| pair.left);
            if pair.is_some() { set_pair(tx, left + 1) } else { Ok(()) }
        }),
    ),
    (
        "in place",
        InTx(|tx| {
            let Some(pair) = tx.root::<Pair>("pair")? else { return Ok(()) };
            let Pair { left, .. } = tx.read(pair)?;
            tx.write(pair, &Pair { left: left + 10, apart: [left; 8], right: left + 10 })
        }),
    ),
    (
        "in place and two words",
        InTx(|tx| {
            let Some(pair) = tx.root::<Pair>("pair")? else { return Ok(()) };
            tx.write(pair, &Pair { left: 20, apart: [20; 8], right: 20 })?;
            set_pair(tx, 21)
        }),
    ),
    (
        "a root",
        InTx(|tx| {
            let other = tx.alloc_zeroed::<u64>(1)?;
            if let Some(old) = tx.root::<u64>("other")? {
                tx.free(old)?;
            }
            tx.set_root("other", other)
        }),
    ),
    (
        "no root",
        InTx(|tx| {
            if let Some(pair) = tx.root::<Pair>("pair")? {
                tx.free(pair)?;
            }
            tx.remove_root("pair")
        }),
    ),
    (
        "aligned",
        InTx(|tx| {
            let block = tx.alloc_aligned::<u64>(3, 256)?;
            let old = tx.root::<u64>("third")?;
            tx.set_root("third", block)?;
            old.map_or(Ok(()), |old| tx.free(old))
        }),
    ),
    ("a slot and its block, filled", Call(|view| toggle(view, 0))),
    ("a slot and its block", Call(|view| toggle(view, 1))),
];

/// Explores every pair of steps with this first step: every choice of a crash; every crash of recovery under the model with the fewest choices; and
/// every kill under [`Model::Px86Line`], each with a sample, of thousands, of the crashes of the next process. `PM_TEST_DEPTH=deep` adds a model and
/// takes a larger sample. With `PM_CRASH_EXHAUSTIVE=1` all of these are explored under all models, without sampling, which takes some minutes.
fn explore_pairs(first: usize) {
    let is_all = std::env::var_os("PM_CRASH_EXHAUSTIVE").is_some();
    let (models, choices_after_kill) = if crate::is_deep() { (&MODELS[..], 12) } else { (&MODELS[..2], 4) };
    for (name, second) in STEPS {
        println!("{}, then {name}", STEPS[first].0);
        let steps = [STEPS[first].1, second];
        if is_all {
            explore(&steps);
            continue;
        }
        for (model, crashes) in models.iter().zip([2, 1, 1]) {
            explore_all(exhaustive(*model).crashes(crashes), &steps);
        }
        explore_with(killed(Model::Px86Line).choices_per_point(choices_after_kill), &steps);
    }
}

/// A test for each first step, so that they run in parallel.
macro_rules! pairs {
    ($($name:ident $first:literal)*) => {$(
        #[test]
        fn $name() {
            explore_pairs($first);
        }
    )*};
}
pairs! {
    push_then_any_step_is_atomic 0  long_push_then_any_step_is_atomic 1  pop_then_any_step_is_atomic 2
    words_then_any_step_is_atomic 3  in_place_then_any_step_is_atomic 4  both_writes_then_any_step_is_atomic 5
    root_then_any_step_is_atomic 6  no_root_then_any_step_is_atomic 7  aligned_then_any_step_is_atomic 8
    filled_slot_then_any_step_is_atomic 9  slot_then_any_step_is_atomic 10
}

/// Sequences of three to eight steps, killed and crashed at every point, with two choices at each. One sequence in eight is not killed, but its
/// recoveries are crashed. `PM_CRASH_SEQUENCES` is the number of sequences, 80 by default; a release is checked with 20,000.
#[test]
fn random_sequences_are_atomic() {
    let count: u64 = std::env::var("PM_CRASH_SEQUENCES").map_or(80, |count| count.parse().unwrap());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let recoveries = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let recoveries = &recoveries;
            scope.spawn(move || {
                for seed in (0..count).filter(|seed| seed % threads == thread) {
                    let mut random = Rng::of(seed);
                    let steps: Vec<Step> =
                        (0..3 + random.index(6)).map(|_| STEPS[random.index(STEPS.len())].1).collect();
                    let (crashes, kills) = if seed.is_multiple_of(8) { (2, 0) } else { (1, 1) };
                    let explorer = Explorer::new(Model::Px86Line).seed(seed).crashes(crashes).kills(kills);
                    let explorer = explorer.choices_per_point(2).nested_choices_per_point(1);
                    recoveries.fetch_add(explore_with(explorer, &steps).recoveries(), Ordering::Relaxed);
                }
            });
        }
    });
    println!("{count} sequences, {} recoveries", recoveries.into_inner());
}

/// A test for each program.
macro_rules! atomic {
    ($($name:ident => $($steps:expr),*;)*) => {$(
        #[test]
        fn $name() {
            $(explore(&$steps);)*
        }
    )*};
}
atomic! {
    allocation_and_link_are_atomic => [InTx(|tx| push(tx, 3))];
    unlinking_and_freeing_are_atomic => [InTx(pop)];
    two_words_in_two_lines_are_atomic => [InTx(|tx| set_pair(tx, 5))];
    push_and_pop_in_one_transaction_are_atomic => [InTx(|tx| {
        pop(tx)?;
        push(tx, 3)?;
        set_pair(tx, 6)
    })];
    block_allocated_and_freed_in_one_transaction_is_free => [InTx(|tx| {
        let block = tx.alloc(&1_u64)?;
        let other = tx.alloc(&[2_u64; 20])?;
        tx.free(block)?;
        tx.free(other)?;
        set_pair(tx, 7)
    })];
    setting_root_and_allocating_its_block_are_atomic => [InTx(|tx| {
        let other = tx.alloc(&1_u64)?;
        tx.set_root("other", other)
    })];
    removing_root_and_freeing_its_block_are_atomic => [InTx(|tx| {
        let pair = tx.root::<Pair>("pair")?.unwrap();
        tx.remove_root("pair")?;
        tx.free(pair)
    })];
    two_transactions_on_the_same_words_are_atomic => [InTx(|tx| set_pair(tx, 1)), InTx(|tx| set_pair(tx, 2))];
    freeing_and_then_allocating_are_atomic => [InTx(pop), InTx(|tx| push(tx, 4))];
    linking_and_freeing_calls_of_view_are_atomic =>
        [Call(|view| toggle(view, 0)), Call(|view| toggle(view, 0))],
        [Call(|view| toggle(view, 1)), Call(|view| toggle(view, 1))];
}

/// Two blocks are allocated and freed in the same order, and then one is allocated again.
#[test]
fn allocation_after_two_freed_blocks_is_atomic() {
    let steps = [
        Call(|view| toggle(view, 0)),
        Call(|view| toggle(view, 1)),
        Call(|view| toggle(view, 0)),
        Call(|view| toggle(view, 1)),
        Call(|view| toggle(view, 1)),
    ];
    let heap = attach(&Arc::new(SimPmem::from_image(prepared(), Model::Px86Line)));
    steps.iter().for_each(|step| step.run(&heap).unwrap());
    assert!(state(&heap).linked[1]);
    for model in MODELS {
        explore_all(exhaustive(model).crashes(1), &steps);
        explore_all(killed(model), &steps);
    }
}

#[test]
fn rolled_back_transaction_changes_nothing() {
    let image = prepared();
    let heap = attach(&Arc::new(SimPmem::from_image(image, Model::Px86Line)));
    let before = state(&heap);
    let result: Result<(), TxError> = heap.transaction(|tx| {
        push(tx, 3)?;
        pop(tx)?;
        pop(tx)?;
        set_pair(tx, 9)?;
        Err(TxError::RolledBack("no".into()))
    });
    assert!(matches!(result, Err(TxError::RolledBack(_))));
    assert_eq!(state(&heap), before);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        heap.transaction(|tx| -> Result<(), TxError> {
            pop(tx)?;
            panic!("in the middle")
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(state(&heap), before);
    heap.transaction(pop).unwrap();
    assert_eq!(state(&heap).list, [2]);
}
