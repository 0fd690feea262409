//! Random programs on a heap in a file, compared with a shadow model. The heap grows and is closed, and its process is killed between two operations.

use super::prelude::*;

/// The words of each block.
type Shadow = BTreeMap<u64, Vec<u64>>;

fn check(heap: &Heap, shadow: &Shadow, step: &str) {
    let report = heap.check();
    assert!(report.is_clean(), "{step}: {report:?}");
    assert_eq!(heap.blocks(), shadow.keys().copied().collect::<Vec<_>>(), "{step}");
    for (at, words) in shadow {
        let found: Vec<u64> =
            (0..words.len() as u64).map(|word| heap.pool().pmem().load_u64(at + 8 * word)).collect();
        assert!(found == *words, "{step}: the block at {at} is unchanged");
    }
}

fn random_block(shadow: &Shadow, rng: &mut Rng) -> Option<u64> {
    let nth = rng.below(shadow.len().max(1) as u64) as usize;
    shadow.keys().nth(nth).copied()
}

/// Overwrites parts of a block, in place or by the log.
fn overwrite(heap: &Heap, shadow: &mut Shadow, rng: &mut Rng) {
    let Some(at) = random_block(shadow, rng) else { return };
    let mut words = shadow[&at].clone();
    let done = heap.transaction(|tx| {
        for _ in 0..1 + rng.below(4) {
            let from = rng.below(words.len() as u64) as usize;
            let len = 1 + rng.below(40.min(words.len() - from) as u64) as usize;
            let values: Vec<u64> = (0..len).map(|_| rng.next()).collect();
            tx.write_slice(link_to(at + 8 * from as u64), &values)?;
            words[from..from + len].copy_from_slice(&values);
        }
        Ok(())
    });
    match done {
        Ok(()) => drop(shadow.insert(at, words)),
        Err(error) => assert!(is_refusal(&error), "{error:?}"),
    }
}

fn run(seed: u64) {
    let mut rng = Rng::of(seed);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut path = dir.path().join("new");
    let chunk_bytes = [4096, 8192, 1 << 15][rng.below(3) as usize];
    let options =
        HeapOptions::new().lanes(2).lane_entries(30).chunk_bytes(chunk_bytes).in_place_from_bytes(100);
    let mut bytes = 120 << 10;
    let mut heap = Heap::create(&path, bytes, &options).unwrap();
    let mut shadow = Shadow::new();
    for step in 0..120_u64 {
        match rng.below(16) {
            0..=7 => {
                let words = content(rng.next(), [1, 7, 12, 30, 100, 600, 1500, 5000][rng.below(8) as usize]);
                match heap.transaction(|tx| tx.alloc_slice(&words).map(Link::offset)) {
                    Ok(at) => drop(shadow.insert(at, words)),
                    Err(error) => assert!(is_refusal(&error), "{error:?}"),
                }
            }
            8..=11 => {
                if let Some(at) = random_block(&shadow, &mut rng) {
                    heap.transact(|tx| tx.free(link_to::<u64>(at))).unwrap();
                    shadow.remove(&at);
                }
            }
            12 => {
                bytes += 4096 * (1 + rng.below(12));
                heap.grow(bytes).unwrap();
            }
            13 => {
                drop(heap);
                heap = Heap::open(&path, &options).unwrap();
            }
            14 => {
                // The copy is the file that a killed process leaves.
                let next = dir.path().join(step.to_string());
                std::fs::copy(&path, &next).unwrap();
                drop(heap);
                std::fs::remove_file(&path).unwrap();
                path = next;
                heap = Heap::open(&path, &options).unwrap();
            }
            _ => overwrite(&heap, &mut shadow, &mut rng),
        }
        check(&heap, &shadow, &format!("step {step}, {bytes} bytes"));
    }
}

#[test]
fn heap_that_grows_survives_kills() {
    each_seed(60, run);
}
