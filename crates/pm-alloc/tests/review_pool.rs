//! Two heaps of one region.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{Link, PoolOptions, Region, Uuid};
use std::sync::Arc;

const LEN: u64 = 1 << 17;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(64).chunk_bytes(4096).in_place_from_bytes(64)
}

/// "Opened for writing once at a time": nothing sees to it, where the region is shared.
#[test]
fn two_heaps_of_one_region_do_not_hand_out_one_block() {
    let region = Arc::new(Region::anonymous(LEN).unwrap());
    let first = Heap::format(Arc::clone(&region), &options()).unwrap();
    let Ok(second) = Heap::attach(Arc::clone(&region), &options()) else { return };
    let mut live: Vec<(bool, u64)> = Vec::new();
    let mut random = 1_u64;
    for _ in 0..5000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = random >> 33;
        let is_first = number & 1 == 0;
        let heap = if is_first { &first } else { &second };
        let own: Vec<usize> = (0..live.len()).filter(|&at| live[at].0 == is_first).collect();
        if number & 2 == 0 || own.is_empty() {
            let block = heap.transaction(|tx| tx.alloc(&[1_u64; 6]).map(Link::offset));
            let Ok(block) = block.map_err(|error: TxError| error) else { continue };
            assert!(live.iter().all(|live| live.1 != block), "a live block was handed out: {block}");
            live.push((is_first, block));
        } else {
            let (_, block) = live.swap_remove(own[usize::try_from(number >> 2).unwrap() % own.len()]);
            heap.transaction(|tx| tx.free(Link::<[u64; 6]>::vouched(block)))
                .map_err(|error: TxError| error)
                .unwrap();
        }
    }
}
