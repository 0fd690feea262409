// A link that leaves its view: the block may be freed and reallocated before the link is followed.
#![allow(unused)]
use pm_alloc::Heap;

fn misuse(heap: &Heap) {
    let mut escaped = None;
    heap.view(|view| escaped = view.root::<u64>("count").unwrap());
}

fn main() {}
