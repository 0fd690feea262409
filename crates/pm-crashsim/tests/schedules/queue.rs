//! A bounded persistent queue for several threads: a head, and slots that are used once.
//!
//! A thread that finds a slot taken makes it durable before it continues with the next, so that no slot is durable before earlier ones.
//! Recovery only reads.

use crate::common::*;

const HEAD: u64 = 0;
const CAPACITY: u64 = 6;
pub(crate) const LEN_BYTES: u64 = 64 + CAPACITY * 64;

fn slot(index: u64) -> u64 {
    64 + index * 64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// What another thread stored is not made durable.
    DoesNotHelp,
    /// It is flushed, but not fenced.
    HelpsWithoutFence,
    /// A value is taken before it is durable.
    TakesEarly,
}

/// An operation that had returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Completed {
    Enqueued(u64),
    Dequeued(u64),
}

/// The operations of one thread: it enqueues these values, or dequeues this number of times.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Enqueue(&'static [u64]),
    Dequeue(usize),
}

impl Part {
    pub(crate) fn run(self, run: &Run<Completed>, flaw: Flaw) -> Done {
        match self {
            Self::Enqueue(values) => values.iter().try_for_each(|&value| {
                enqueue(run.pmem(), value, flaw)?;
                run.ack(Completed::Enqueued(value));
                Ok(())
            }),
            Self::Dequeue(times) => (0..times).try_for_each(|_| {
                if let Some(value) = dequeue(run.pmem(), flaw)? {
                    run.ack(Completed::Dequeued(value));
                }
                Ok(())
            }),
        }
    }
}

/// Adds a value, which is not 0, at the end.
fn enqueue(pmem: &SimPmem, value: u64, flaw: Flaw) -> Done {
    for index in 0..CAPACITY {
        if pmem.compare_exchange_u64(slot(index), 0, value).is_ok() {
            return pmem.persist(slot(index), 8);
        }
        help(pmem, index, flaw)?;
    }
    panic!("more values than slots")
}

/// Takes the value in front, if there is one.
fn dequeue(pmem: &SimPmem, flaw: Flaw) -> Result<Option<u64>, FenceError> {
    loop {
        let head = pmem.load_u64(HEAD);
        let value = if head < CAPACITY { pmem.load_u64(slot(head)) } else { 0 };
        if value == 0 {
            return Ok(None);
        }
        if flaw != Flaw::TakesEarly {
            help(pmem, head, flaw)?;
        }
        let is_mine = pmem.compare_exchange_u64(HEAD, head, head + 1).is_ok();
        // Also a head that another thread stored: no later value may be taken durably before it.
        pmem.persist(HEAD, 8)?;
        if is_mine {
            return Ok(Some(value));
        }
    }
}

fn help(pmem: &SimPmem, index: u64, flaw: Flaw) -> Done {
    if flaw == Flaw::DoesNotHelp {
        return Ok(());
    }
    pmem.flush(slot(index), 8);
    if flaw == Flaw::HelpsWithoutFence { Ok(()) } else { pmem.fence() }
}

/// Whether what a crash left is a queue in which everything is that had returned, in the threads' orders. `orders`:
/// of values that one thread enqueues, in order.
pub(crate) fn check(crash: &Crash<'_, Completed>, orders: &[&[u64]]) -> Result<(), String> {
    let pmem = crash.pmem();
    let slots: Vec<u64> = (0..CAPACITY).map(|index| pmem.load_u64(slot(index))).collect();
    let values: Vec<u64> = slots.iter().copied().take_while(|&value| value != 0).collect();
    let head = pmem.load_u64(HEAD);
    let complaint = |problem: &str| {
        Err(format!("{problem}: head {head}, slots {slots:?}, after {:?} had returned", crash.acked()))
    };
    if slots[values.len()..].iter().any(|&value| value != 0) {
        return complaint("a value is behind an empty slot");
    }
    if head > values.len() as u64 {
        return complaint("the head is past the last value");
    }
    let place = |value: u64| values.iter().position(|&other| other == value);
    for &done in crash.acked() {
        match done {
            Completed::Enqueued(value) if place(value).is_none() => return complaint("a value is lost"),
            Completed::Dequeued(value) if place(value).is_none_or(|at| at as u64 >= head) => {
                return complaint("a value comes twice");
            }
            Completed::Enqueued(_) | Completed::Dequeued(_) => {}
        }
    }
    for order in orders {
        let places: Vec<Option<usize>> = order.iter().map(|&value| place(value)).collect();
        let found = places.iter().map_while(|at| *at).count();
        if places[found..].iter().any(Option::is_some) || !places[..found].is_sorted() {
            return complaint("a thread's values are out of order");
        }
    }
    Ok(())
}
