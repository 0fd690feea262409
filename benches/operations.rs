//! Single operations, measured by criterion, to detect regressions. `docs/benchmarks.md` explains them.

#[path = "crashsim/raw.rs"]
mod raw;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pm_alloc::{Heap, HeapOptions};
use pm_btree::{Store, StoreOptions};
use pm_core::{Link, Pmem as _, Region, RegionOptions};
use pm_crashsim::{Explorer, Image};
use pmbd::{BlockOp, Engine, Geometry, SectorSize};
use std::hint::black_box;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const REGION_BYTES: u64 = 64 << 20;
const LINE_BYTES: u64 = 64;
const REQUEST_BYTES: usize = 4096;

/// The number of blocks that are allocated before they are freed again.
const BLOCKS: u64 = 1024;

/// Stores, flushes and fences a cache line through the seam.
fn persist(criterion: &mut Criterion) {
    let (_directory, region) = region();
    let mut offset = 0;
    criterion.benchmark_group("seam").throughput(Throughput::Bytes(LINE_BYTES)).bench_function(
        "persist",
        |bencher| {
            bencher.iter(|| {
                offset = (offset + LINE_BYTES) % REGION_BYTES;
                region.store(offset, black_box(&[0x5A; 64]));
                region.flush(offset, LINE_BYTES);
                region.fence()
            });
        },
    );
}

/// A transaction of one short write; allocate and link a block; unlink and free it.
fn heap(criterion: &mut Criterion) {
    let (_directory, region) = region();
    let heap = Heap::format(region, &HeapOptions::new()).expect("there is room");
    let made = heap.transaction(|tx| {
        let (value, slots) = (tx.alloc_zeroed::<u64>(2)?, tx.alloc_zeroed::<Link<'_, u8>>(BLOCKS)?);
        tx.set_root("value", value)?;
        tx.set_root("slots", slots)
    });
    made.expect("there is room");
    let mut group = criterion.benchmark_group("heap");
    group.bench_function("transaction", |bencher| {
        bencher.iter(|| {
            heap.transaction(|tx| tx.write_slice(tx.root("value")?.expect("is set"), black_box(&[1_u64, 2])))
        });
    });
    heap.view(|view| {
        let slots = view.root::<Link<'_, u8>>("slots").expect("has this type").expect("is set");
        let alloc = |slot| {
            view.alloc_uninit_and_link(slots.element(slot), black_box(100)).expect("there is room");
        };
        let free = |slot| view.unlink_and_free(slots.element(slot)).expect("is allocated");
        group.bench_function("allocate and link", |bencher| {
            bencher.iter_custom(|count| in_rounds(count, alloc, |slots| (0..slots).for_each(free)));
        });
        (0..BLOCKS).for_each(alloc);
        group.bench_function("unlink and free", |bencher| {
            bencher.iter_custom(|count| in_rounds(count, free, |slots| (0..slots).for_each(alloc)));
        });
    });
}

/// The time of `operation` on `count` slots. After at most [`BLOCKS`] of them, `undo` follows, which is not timed.
fn in_rounds(count: u64, operation: impl Fn(u64), undo: impl Fn(u64)) -> Duration {
    let (mut left, mut time) = (count, Duration::ZERO);
    while left > 0 {
        let slots = left.min(BLOCKS);
        let begin = Instant::now();
        (0..slots).for_each(&operation);
        time += begin.elapsed();
        undo(slots);
        left -= slots;
    }
    time
}

/// Single operations of an ordered store with 100,000 entries: 8-byte keys, values of 100 bytes.
fn store(criterion: &mut Criterion) {
    const COUNT: u64 = 100_000;
    let (_directory, region) = region();
    let store = Store::format(region, &StoreOptions::new()).expect("there is room");
    let table = store.table::<u64, &[u8]>("table").expect("there is room");
    let key = |number: u64| (number % COUNT).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let put = |number| table.insert(key(number), black_box(&[7; 100])).expect("there is room");
    (0..COUNT).for_each(|number| assert!(put(number), "a new key"));
    let mut number = 0;
    let mut next = || {
        number += 7919;
        number
    };
    let mut group = criterion.benchmark_group("store");
    group.bench_function("update", |bencher| bencher.iter(|| put(next())));
    group.bench_function("get", |bencher| bencher.iter(|| table.get(key(next()))));
    group.bench_function("get lent", |bencher| {
        bencher.iter(|| table.get_with(key(next()), |value| value.first().copied()));
    });
    group.bench_function("scan of 100", |bencher| {
        bencher.iter(|| table.range(key(next())..).take(100).filter(Result::is_ok).count());
    });
    let remove = |number| assert!(table.remove(key(number)).expect("the store is sound"), "it was there");
    group.bench_function("insert", |bencher| {
        (0..BLOCKS).for_each(remove);
        bencher.iter_custom(|count| {
            in_rounds(count, |number| _ = put(number), |slots| (0..slots).for_each(remove))
        });
    });
    group.bench_function("remove", |bencher| {
        (0..BLOCKS).for_each(|number| _ = put(number));
        bencher.iter_custom(|count| {
            in_rounds(count, remove, |slots| (0..slots).for_each(|number| _ = put(number)))
        });
    });
    group.finish();
}

/// One crash image: made, recovered from and checked.
fn crash_image(criterion: &mut Criterion) {
    let (explorer, image) =
        (Explorer::default().crashes(1).choices_per_point(1 << 20).reduce(false), Image::zeroed(64 << 10));
    let mut group = criterion.benchmark_group("crashsim");
    group.sample_size(10).bench_function("image", |bencher| {
        bencher.iter_custom(|count| {
            let (mut images, begin) = (0, Instant::now());
            while images < count {
                images += raw::explore(&explorer, &image).expect("nothing is wrong").recoveries();
            }
            begin.elapsed().mul_f64(count as f64 / images as f64)
        });
    });
}

/// A request of 4 KiB to the block server's engine, as a transport makes it.
fn block_request(criterion: &mut Criterion) {
    let (_directory, region) = region();
    let geometry = Geometry::new(0, REGION_BYTES, SectorSize::B512).expect("whole sectors");
    let engine = Engine::new(region, geometry).expect("inside the region");
    let mut group = criterion.benchmark_group("block");
    group.throughput(Throughput::Bytes(REQUEST_BYTES as u64));
    let (data, mut out, mut offset) = ([0x5A; REQUEST_BYTES], [0; REQUEST_BYTES], 0);
    let mut next = || {
        offset = (offset + REQUEST_BYTES as u64) % REGION_BYTES;
        offset
    };
    group.bench_function("write", |bencher| {
        bencher.iter(|| engine.execute(next(), BlockOp::Write { data: black_box(&data), fua: false }));
    });
    group.bench_function("read", |bencher| {
        bencher.iter(|| engine.execute(next(), BlockOp::Read { out: black_box(&mut out) }));
    });
}

/// A file in memory, with all pages allocated.
fn region() -> (TempDir, Region) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let options = RegionOptions::new().populate(true);
    let region = options.create(directory.path().join("bench.pm"), REGION_BYTES).expect("there is room");
    (directory, region)
}

criterion_group!(operations, persist, heap, store, crash_image, block_request);
criterion_main!(operations);
