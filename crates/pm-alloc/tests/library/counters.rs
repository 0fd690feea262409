//! A heap over cache-line counters works unchanged, and its transactions' groups are durable when they end.

use pm_alloc::{Heap, HeapOptions};
use pm_core::counters::{CounterOptions, LineCounters};
use pm_core::{Persist, Region};
use pm_testkit::any;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
struct Value {
    words: [u64; 40],
}

#[test]
fn heap_works_over_counters() {
    for lines_max in [255, 1] {
        let region = Region::anonymous(1 << 20).unwrap();
        let counters = Arc::new(LineCounters::new(region, &CounterOptions::new().lines_max(lines_max)));
        let heap = Heap::format(any(&counters), &HeapOptions::new()).unwrap();
        counters.sgroup().unwrap();
        for number in 0..100 {
            let value = Value { words: [number; 40] };
            heap.transaction(|tx| {
                let link = tx.alloc(&value)?;
                tx.set_root("value", link)
            })
            .unwrap();
            let group = counters.sgroup().unwrap();
            counters.write_back().unwrap();
            assert_eq!(counters.scheck(group), 0);
            heap.view(|view| {
                let link = view.root::<Value>("value").unwrap().unwrap();
                assert_eq!(view.read(link).unwrap(), value);
            });
        }
        assert!(heap.check().is_clean());
    }
}
