// A write without a transaction, which a crash could tear: a view has only writes that are atomic.
#![allow(unused)]
use pm_alloc::Heap;

fn misuse(heap: &Heap) {
    heap.view(|view| {
        let four = view.root::<[u64; 4]>("four").unwrap().unwrap();
        view.write(four, &[1, 2, 3, 4]).unwrap();
    });
}

fn main() {}
