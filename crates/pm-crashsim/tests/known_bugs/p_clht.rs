//! P-CLHT: a hash table of buckets of a line each. The owner leads to the current table, the table to its buckets.

use crate::harness::*;

/// Which blocks of the heap are allocated, as bits.
const ALLOCATED: u64 = 0;
/// `clht_t`: a pointer to the table.
const OWNER: u64 = 64;
/// A block holds a table's header, of bucket count and where the buckets are, and on the lines after it the buckets.
const HEAP: u64 = 512;
const BLOCK_BYTES: u64 = 512;
const TABLE_BYTES: u64 = 16;

/// In a bucket: the lock, then pairs of key and value.
const LOCK: u64 = 0;
const PAIRS: u64 = 8;
const PAIR_COUNT: u64 = 3;

const fn block_at(block: u64) -> u64 {
    HEAP + block * BLOCK_BYTES
}

fn buckets(pmem: &SimPmem) -> impl Iterator<Item = u64> {
    let [count, first] = load_words(pmem, pmem.load_u64(OWNER));
    (0..count).map(move |number| first + 64 * number)
}

fn bucket_of(pmem: &SimPmem, key: u64) -> u64 {
    let [count, first] = load_words(pmem, pmem.load_u64(OWNER));
    assert_ne!(count, 0, "the table has buckets");
    first + 64 * (key % count)
}

fn pairs_of(bucket: u64) -> impl Iterator<Item = u64> {
    (0..PAIR_COUNT).map(move |index| bucket + PAIRS + 16 * index)
}

fn get(pmem: &SimPmem, key: u64) -> Option<u64> {
    let found = pairs_of(bucket_of(pmem, key)).find(|&pair| pmem.load_u64(pair) == key);
    found.map(|pair| pmem.load_u64(pair + 8))
}

const KEYS: [u64; 2] = [2, 3];

/// One bucket with two keys, in block 0.
fn one_bucket(pmem: &SimPmem) {
    pmem.store_u64(ALLOCATED, 1);
    pmem.store_u64(OWNER, block_at(0));
    pmem.store(block_at(0), &bytes_of(&[1, block_at(0) + 64]));
    for (pair, key) in pairs_of(block_at(0) + 64).zip(KEYS) {
        pmem.store(pair, &bytes_of(&[key, 10 * key]));
    }
}

/// Moves the pairs into a table of two buckets, in block 1, and frees block 0.
fn resize(pmem: &SimPmem, flush: impl FnOnce(&SimPmem, u64)) -> Done {
    let table = block_at(1);
    pmem.store_u64(ALLOCATED, pmem.load_u64(ALLOCATED) | 1 << 1); //~ B16 kept
    pmem.flush(ALLOCATED, 8);
    for (number, key) in (0..).zip(KEYS) {
        let value = get(pmem, key).expect("is there");
        pmem.store(table + 64 * (1 + number) + PAIRS, &bytes_of(&[key, value]));
    }
    pmem.flush(table + 64, 128);
    pmem.store(table, &bytes_of(&[2, table + 64])); //~ B14 lost: flush missing
    flush(pmem, table);
    pmem.fence()?;
    pmem.put(OWNER, table)?;
    pmem.put(ALLOCATED, pmem.load_u64(ALLOCATED) & !1)
}

/// Frees what is allocated and cannot be reached.
fn sweep(pmem: &SimPmem) {
    let (allocated, reachable) = (pmem.load_u64(ALLOCATED), reachable(pmem));
    if allocated != reachable {
        // Not flushed: until it is durable, the next recovery finds the same and does the same.
        pmem.store_u64(ALLOCATED, allocated & reachable);
    }
}

fn reachable(pmem: &SimPmem) -> u64 {
    1 << ((pmem.load_u64(OWNER) - HEAP) / BLOCK_BYTES)
}

fn check_resized(pmem: &SimPmem) {
    for key in KEYS {
        assert_eq!(get(pmem, key), Some(10 * key), "of key {key}");
    }
    assert_eq!(pmem.load_u64(ALLOCATED), reachable(pmem), "allocated is what is reachable");
}

fn resize_case(flush: impl Fn(&SimPmem, u64) + 'static, recover: impl Fn(&SimPmem) + Sync + 'static) -> Case {
    Case::new(
        image(one_bucket),
        move |run| {
            resize(run.pmem(), &flush)?;
            run.ack(());
            Ok(())
        },
        move |crash| {
            if !crash.acked().is_empty() {
                assert_eq!(crash.pmem().load_u64(ALLOCATED), 1 << 1, "a returned resize leaks nothing");
            }
            recover(crash.pmem());
            check_resized(crash.pmem());
            Ok(())
        },
    )
}

/// B14, reported by Witcher: a resize flushes as many bytes as a table's header has, but where the owner is. The owner
/// then leads to a header of zeros, and every key is lost.
pub(crate) fn flush_of_the_owner_not_the_table(form: Form) -> Case {
    let flush = move |pmem: &SimPmem, table| {
        let flushed = if form == Form::Bug { OWNER } else { table };
        pmem.flush(flushed, TABLE_BYTES);
    };
    resize_case(flush, sweep)
}

/// B16, reported by PMRace: a crash after the new table is allocated and before it is linked leaves a block that
/// nothing leads to and nothing frees. Corrected, recovery compares what is allocated with what is reachable.
pub(crate) fn table_allocated_and_never_linked(form: Form) -> Case {
    let recover = move |pmem: &SimPmem| {
        if form == Form::Fixed {
            sweep(pmem);
        }
    };
    resize_case(|pmem, table| pmem.flush(table, TABLE_BYTES), recover)
}

/// Puts a pair into its bucket, under the bucket's lock. `false` if the lock is held: a thread would wait.
fn put(pmem: &SimPmem, key: u64, value: u64) -> Result<bool, FenceError> {
    let bucket = bucket_of(pmem, key);
    let locked = pmem.compare_exchange_u64(bucket + LOCK, 0, 1); //~ B15 kept
    if locked.is_err() {
        return Ok(false);
    }
    let pair = pairs_of(bucket).find(|&pair| pmem.load_u64(pair) == 0).expect("the bucket has room");
    pmem.store_u64(pair + 8, value);
    pmem.store_u64(pair, key);
    pmem.persist(pair, 16)?;
    pmem.store_u64(bucket + LOCK, 0);
    Ok(true)
}

/// B15, reported by PMRace: the lock of a bucket is in the bucket, so that it is written back with it, held. No thread holds it after a crash, and
/// none releases it: a thread that acquires it waits forever. Corrected, recovery releases all.
///
/// The writer is a thread, joined in the operation.
pub(crate) fn bucket_lock_is_held_after_the_crash(form: Form) -> Case {
    let recover = move |pmem: &SimPmem| {
        for bucket in buckets(pmem).filter(|&bucket| form == Form::Fixed && pmem.load_u64(bucket + LOCK) != 0)
        {
            // Not flushed: until it is durable, the next recovery finds the lock held and does the same.
            pmem.store_u64(bucket + LOCK, 0);
        }
    };
    let write = |pmem: &SimPmem, value| {
        let writer = || std::thread::scope(|scope| scope.spawn(|| put(pmem, 4, value)).join());
        assert_eq!(writer().expect("the writer does not panic"), Ok(true));
        Ok(())
    };
    let case = Case::steps(image(one_bucket), [40], write, [None, Some(40)], move |pmem| {
        recover(pmem);
        let found = get(pmem, 4);
        if found.is_none() {
            assert_eq!(put(&copy(pmem), 4, 40), Ok(true), "no thread has locked the bucket");
        }
        Ok(found)
    });
    // A pair is valid once its key is stored, which is after its value and on the same line.
    case.relying_on_order_in_a_line()
}
