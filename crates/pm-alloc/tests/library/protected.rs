//! Heaps on protected regions: every store of a heap is in a window, and the heap is the same without protection.

use pm_alloc::{Heap, HeapError, HeapOptions, TxError};
use pm_core::protection::{Method, Protected, Protection, ProtectionError};
use pm_core::{Link, Persist, Pmem, Region, RegionOptions, field};
use pm_crashsim::{CheckedWindows, Crash, Explorer, Model, Run, SimPmem, Windowed};
use pm_testkit::any;
use std::sync::Arc;

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Node<'p> {
    value: u64,
    next: Link<'p, Node<'p>>,
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct List<'p> {
    first: Link<'p, Node<'p>>,
    count: u64,
}

fn begin<P: Pmem>(heap: &Heap<P>) {
    heap.transaction(|tx| {
        let list = tx.alloc(&List { first: Link::NULL, count: 0 })?;
        tx.set_root("list", list)
    })
    .unwrap();
}

/// Adds a node.
fn push<P: Pmem>(heap: &Heap<P>) {
    heap.transaction(|tx| {
        let list = tx.root::<List>("list")?.expect("set at the beginning");
        let List { first, count } = tx.read(list)?;
        let node = tx.alloc(&Node { value: count, next: first })?;
        tx.write(list.field(field!(List, first)), &node)?;
        tx.write(list.field(field!(List, count)), &(count + 1))
    })
    .unwrap();
}

/// Frees the newest node.
fn pop<P: Pmem>(heap: &Heap<P>) {
    let popped: Result<(), TxError> = heap.transaction(|tx| {
        let list = tx.root::<List>("list")?.expect("set at the beginning");
        let List { first, count } = tx.read(list)?;
        let next = tx.read(first)?.next;
        tx.write(list.field(field!(List, first)), &next)?;
        tx.write(list.field(field!(List, count)), &(count - 1))?;
        tx.free(first)
    });
    popped.unwrap();
}

/// The values, newest first. Checks the count.
fn values<P: Pmem>(heap: &Heap<P>) -> Vec<u64> {
    heap.view(|view| {
        let list = view.root::<List>("list")?.expect("set at the beginning");
        let List { mut first, count } = view.read(list)?;
        let mut values = Vec::new();
        while !first.is_null() {
            let node = view.read(first)?;
            values.push(node.value);
            first = node.next;
        }
        assert_eq!(values.len() as u64, count);
        Ok::<_, TxError>(values)
    })
    .unwrap()
}

fn work<P: Pmem>(heap: &Heap<P>) {
    begin(heap);
    for step in 0..200 {
        if step % 5 == 4 { pop(heap) } else { push(heap) }
    }
    assert_eq!(values(heap).len(), 120);
}

#[test]
fn every_store_of_a_heap_is_in_a_window() {
    let pmem = CheckedWindows::new(Region::anonymous(4 << 20).unwrap());
    let heap = Heap::format(any(Protected::with_windows(pmem, Windowed)), &HeapOptions::new()).unwrap();
    work(&heap);
}

#[test]
fn heap_on_protected_region_is_an_ordinary_heap() {
    for method in Method::ALL {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("heap.pm");
        let region = RegionOptions::new().create(&path, 4 << 20).unwrap();
        let region = match Protected::new(region, &Protection::new(method)) {
            Err(ProtectionError::NoKey(_)) => continue,
            other => other.unwrap(),
        };
        let heap = Heap::format(any(region), &HeapOptions::new()).unwrap();
        work(&heap);
        let expected = values(&heap);
        drop(heap);
        assert_eq!(values(&Heap::open(&path, &HeapOptions::new()).unwrap()), expected, "{method}");
    }
}

type Simulated = Protected<CheckedWindows<Arc<SimPmem>>, Windowed>;

fn attach(pmem: &Arc<SimPmem>) -> Result<Heap<Simulated>, HeapError> {
    let pmem = CheckedWindows::new(Arc::clone(pmem));
    Heap::attach(Protected::with_windows(pmem, Windowed), &HeapOptions::new())
}

/// A crash anywhere, also in recovery, which runs in windows too.
#[test]
fn protected_heap_survives_kills_and_crashes() {
    let image = {
        let sim = Arc::new(SimPmem::new(1 << 20));
        let heap = Heap::format(any(Arc::clone(&sim)), &HeapOptions::new()).unwrap();
        begin(&heap);
        push(&heap);
        drop(heap);
        sim.to_image()
    };
    let operation = |run: &Run<usize>| {
        let heap = attach(run.pmem()).unwrap();
        push(&heap);
        run.ack(2);
        pop(&heap);
        run.ack(1);
    };
    let check = |crash: &Crash<usize>| {
        let heap = attach(crash.pmem()).map_err(|error| error.to_string())?;
        let acked = crash.acked().last().copied();
        match (acked, values(&heap).len()) {
            (None, 1 | 2) | (Some(2), 1 | 2) | (Some(1), 1) => Ok(()),
            (_, found) => Err(format!("{found} nodes after {acked:?}")),
        }
    };
    let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(16);
    let coverage = explorer.check(&image, operation, check);
    assert!(coverage.kills.tried > 10, "{coverage}");
}
