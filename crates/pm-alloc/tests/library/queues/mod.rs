//! A workload of transactions whose outcome can be checked after any crash: a queue of numbered nodes for each thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{Heap, TxError};
use pm_core::{Link, Persist, field};
use std::collections::BTreeSet;

/// The number of threads, each with a queue.
pub(crate) const THREADS: u64 = 2;
/// The maximum length of a queue. When a node is appended to a queue of this length, the oldest node is freed.
const MAX_NODES: u64 = 200;
/// A queue of nodes with consecutive numbers.
#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Queue<'p> {
    oldest: Link<'p, Node<'p>>,
    newest: Link<'p, Node<'p>>,
    first_number: u64,
    next_number: u64,
    /// Eight words that each transaction of the thread overwrites.
    tally: Link<'p, u64>,
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Node<'p> {
    next: Link<'p, Node<'p>>,
    number: u64,
    /// Equal words. The node's number determines their value and their count.
    contents: Link<'p, u64>,
    words: u64,
}

/// The value of each word in the contents of a node.
const fn mark(thread: u64, number: u64) -> u64 {
    (thread << 56 | number).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

const fn word_count(number: u64) -> u64 {
    1 + number * 37 % 400
}

fn root(thread: u64) -> String {
    format!("queue {thread}")
}

/// Appends a node to the thread's queue, and frees the oldest node if the queue is too long. Returns the number of the new node.
pub(crate) fn step(heap: &Heap, thread: u64) -> Result<u64, TxError> {
    heap.transaction(|tx| {
        let link = match tx.root::<Queue>(&root(thread))? {
            Some(link) => link,
            None => {
                let tally = tx.alloc_zeroed(8)?;
                let empty =
                    Queue { oldest: Link::NULL, newest: Link::NULL, first_number: 0, next_number: 0, tally };
                let link = tx.alloc(&empty)?;
                tx.set_root(&root(thread), link)?;
                link
            }
        };
        let mut queue = tx.read(link)?;
        let (number, words) = (queue.next_number, word_count(queue.next_number));
        let contents = tx.alloc_slice(&vec![mark(thread, number); usize::try_from(words).unwrap()])?;
        let node = tx.alloc(&Node { next: Link::NULL, number, contents, words })?;
        match queue.newest.is_null() {
            true => queue.oldest = node,
            false => tx.write(queue.newest.field(field!(Node, next)), &node)?,
        }
        queue.newest = node;
        queue.next_number += 1;
        if queue.next_number - queue.first_number > MAX_NODES {
            let oldest = tx.read(queue.oldest)?;
            tx.free(oldest.contents)?;
            tx.free(queue.oldest)?;
            queue.oldest = oldest.next;
            queue.first_number += 1;
        }
        tx.write(link, &queue)?;
        for word in 0..8 {
            tx.write(queue.tally.element(word), &number)?;
        }
        Ok(number)
    })
}

/// Asserts that all queues are consistent, and returns the number of nodes that were ever appended to each.
pub(crate) fn check(heap: &Heap) -> Vec<u64> {
    let mut reachable = BTreeSet::new();
    let appended = (0..THREADS).map(|thread| {
        heap.view(|view| {
            let Some(link) = view.root::<Queue>(&root(thread)).unwrap() else { return 0 };
            let queue = view.read(link).unwrap();
            reachable.extend([link.offset(), queue.tally.offset()]);
            let mut at = queue.oldest;
            for number in queue.first_number..queue.next_number {
                let node = view.read(at).unwrap();
                assert_eq!((node.number, node.words), (number, word_count(number)), "queue {thread}");
                for word in [0, node.words / 2, node.words - 1] {
                    assert_eq!(view.read(node.contents.element(word)).unwrap(), mark(thread, number));
                }
                reachable.extend([at.offset(), node.contents.offset()]);
                assert_eq!(node.next.is_null(), at == queue.newest);
                at = node.next;
            }
            for word in 0..8 {
                assert_eq!(view.read(queue.tally.element(word)).unwrap() + 1, queue.next_number);
            }
            queue.next_number
        })
    });
    let appended = appended.collect();
    let report = heap.check();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(heap.blocks().into_iter().collect::<BTreeSet<_>>(), reachable, "no block is leaked or lost");
    appended
}
