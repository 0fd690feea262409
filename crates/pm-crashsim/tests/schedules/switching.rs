//! Schedules: each interleaving is tried, threads are distinguished, and a repeated history is recognised.

use crate::common::*;
use loom::model::Builder;
use shuttle::scheduler::RandomScheduler;

/// The thread, and the number of its acknowledgement.
type Ack = (u64, u64);

const LEN_BYTES: u64 = 64;

/// The orders in which loom lets `threads` threads acknowledge, `times` times each.
fn orders(threads: u64, times: u64) -> BTreeSet<Vec<Ack>> {
    let seen = Seen::new();
    let operation = move |run: &Arc<Run<Ack>>| {
        let spawn = |thread| {
            let run = Arc::clone(run);
            loom::thread::spawn(move || (0..times).for_each(|number| run.ack((thread, number))))
        };
        let spawned: Vec<_> = (1..threads).map(spawn).collect();
        (0..times).for_each(|number| run.ack((0, number)));
        spawned.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    };
    let check = |crash: &Crash<'_, Ack>| seen.add(crash.acked().to_vec());
    let builder = Builder::new();
    let explored =
        pm_crashsim::under_loom::explore(&Explorer::default(), &builder, LEN_BYTES, operation, check);
    let seen = seen.take();
    assert_eq!(explored.unwrap().images, seen.len() as u64, "each prefix of an order, once");
    seen.into_iter().filter(|order| order.len() as u64 == threads * times).collect()
}

#[test]
fn every_interleaving_is_tried() {
    assert_eq!(orders(2, 3).len(), 20, "6! / (3! 3!)");
    assert_eq!(orders(3, 2).len(), 90, "6! / (2! 2! 2!)");
}

/// Loom is asked once for each access: more points to switch at make more schedules, and show nothing more.
#[test]
fn each_access_is_one_switch_point() {
    type Access = fn(&Run<()>);
    let store: Access = |run| run.pmem().store_u64(0, 1);
    let accesses: [(&str, Access); 7] = [
        ("store_u64", store),
        ("store", |run| run.pmem().store(0, &[1; 8])),
        ("store_u128", |run| run.pmem().store_u128(0, 1)),
        ("load_u64", |run| assert_eq!(run.pmem().load_u64(0), 0)),
        ("load_words", |run| run.pmem().load_words(0, &mut [0])),
        ("flush", |run| run.pmem().flush(0, 8)), // teeth: it is counted, and nothing depends on it
        ("exchange", |run| assert_eq!(run.pmem().compare_exchange_u64(0, 1, 1), Err(0))),
    ];
    let schedules = |access: Access| {
        let operation = move |run: &Arc<Run<()>>| {
            let other = Arc::clone(run);
            let thread = loom::thread::spawn(move || (0..3).for_each(|_| access(&other)));
            (0..3).for_each(|_| access(run));
            thread.join().expect("no thread panics");
        };
        let explorer = Explorer::default().crashes(1);
        let builder = Builder::new();
        pm_crashsim::under_loom::explore(&explorer, &builder, LEN_BYTES, operation, |_| ()).unwrap().schedules
    };
    let of_stores = schedules(store);
    assert_eq!(of_stores, 50, "the orders of six stores, and of where a thread begins and ends");
    for (name, access) in accesses {
        assert_eq!(schedules(access), of_stores, "{name}");
    }
}

#[test]
fn threads_switch_between_loaded_words() {
    let seen = Arc::new(Seen::new());
    let loaded = Arc::clone(&seen);
    let operation = move |run: &Arc<Run<()>>| {
        let other = Arc::clone(run);
        let thread = loom::thread::spawn(move || [0, 8].map(|word| other.pmem().store_u64(word, 1)));
        let mut words = [0; 2];
        run.pmem().load_words(0, &mut words);
        loaded.add(words);
        thread.join().expect("no thread panics");
    };
    let explorer = Explorer::default().crashes(1);
    pm_crashsim::under_loom::explore(&explorer, &Builder::new(), LEN_BYTES, operation, |_| ()).unwrap();
    assert_eq!(seen.take().into_iter().collect::<Vec<_>>(), [[0, 0], [0, 1], [1, 0], [1, 1]]);
}

/// The other thread's fence must not commit this one's flush: under a scheduler, all run on one thread of the system.
#[test]
fn fence_commits_its_own_thread_only() {
    let flush = |run: &Run<()>| {
        run.pmem().store_u64(0, 1);
        run.pmem().flush(0, 8); // teeth: the fence is of another thread
    };
    let fence = |run: &Run<()>| {
        run.pmem().fence()?; // teeth: the flush is of another thread
        run.ack(());
        DONE
    };
    let lost = Seen::new();
    let check = |crash: &Crash<'_, ()>| {
        if crash.acked() == [()] && crash.pmem().load_u64(0) == 0 {
            lost.add(crash.crashes());
        }
    };
    let with_loom = move |run: &Arc<Run<()>>| {
        let other = Arc::clone(run);
        let thread = loom::thread::spawn(move || fence(&other));
        flush(run);
        thread.join().expect("no thread panics")
    };
    let explorer = Explorer::default();
    pm_crashsim::under_loom::explore(&explorer, &Builder::new(), LEN_BYTES, with_loom, check).unwrap();
    assert_eq!(lost.take().len(), 1);

    let with_shuttle = move |run: &Arc<Run<()>>| {
        let (here, there) = (Arc::clone(run), Arc::clone(run));
        let first = shuttle::thread::spawn(move || flush(&here));
        first.join().expect("no thread panics");
        shuttle::thread::spawn(move || fence(&there)).join().expect("no thread panics")
    };
    let scheduler = RandomScheduler::new_from_seed(0, 1);
    let config = shuttle::Config::new();
    pm_crashsim::under_shuttle::explore(&explorer, scheduler, config, LEN_BYTES, with_shuttle, check)
        .unwrap();
    assert_eq!(lost.take().len(), 1);
}
