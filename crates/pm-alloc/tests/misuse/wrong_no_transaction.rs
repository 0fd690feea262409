// A write without a transaction, which a crash would leave half done: a view has none but those that are atomic in themselves.
#![allow(unused)]
use pm_alloc::Heap;

fn misuse(heap: &Heap) {
    heap.view(|view| {
        let pair = view.root::<[u64; 4]>("four").unwrap().unwrap();
        view.write(pair, &[1, 2, 3, 4]).unwrap();
    });
}

fn main() {}
