// A link that leaves its view: the block may be freed, and its place be another's, before somebody follows it.
#![allow(unused)]
use pm_alloc::Heap;

fn misuse(heap: &Heap) {
    let mut escaped = None;
    heap.view(|view| escaped = view.root::<u64>("count").unwrap());
}

fn main() {}
