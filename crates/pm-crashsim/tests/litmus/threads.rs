//! Two threads.

use crate::harness::{X, XY, Y, clwb, fence, nt, outcomes};
use pm_core::Pmem;
use pm_crashsim::{Explorer, SimPmem};
use std::collections::BTreeSet;

/// Runs two programs on threads of their own, one after the other.
fn in_order(first: fn(&SimPmem), second: fn(&SimPmem)) -> String {
    outcomes(&Explorer::default(), XY, |pmem| {
        for program in [first, second] {
            std::thread::scope(|scope| {
                scope.spawn(|| program(pmem));
            });
        }
    })
}

/// The same in both orders. That is every interleaving that matters here: one in which the second thread sees the
/// first's store, and one in which it does not.
fn both_orders(first: fn(&SimPmem), second: fn(&SimPmem)) -> String {
    let found = [in_order(first, second), in_order(second, first)];
    let outcomes: BTreeSet<&str> = found.iter().flat_map(|outcomes| outcomes.split(' ')).collect();
    outcomes.into_iter().collect::<Vec<_>>().join(" ")
}

fn mp_writer(pmem: &SimPmem) {
    pmem.store_u64(X, 1);
}

#[test]
fn mp_help() {
    let found = both_orders(mp_writer, |p| {
        if p.load_u64(X) == 1 {
            clwb(p, X);
            fence(p);
            p.store_u64(Y, 7);
        }
    });
    assert_eq!(found, "00 10 17");
}

#[test]
fn mp_nohelp() {
    let found = both_orders(mp_writer, |p| {
        if p.load_u64(X) == 1 {
            fence(p); // teeth: without a flush it orders nothing
            p.store_u64(Y, 7);
        }
    });
    assert_eq!(found, "00 07 10 17");
}

#[test]
fn mp_nofence() {
    let found = both_orders(mp_writer, |p| {
        if p.load_u64(X) == 1 {
            clwb(p, X); // teeth: without a fence it orders nothing
            p.store_u64(Y, 7);
        }
    });
    assert_eq!(found, "00 07 10 17");
}

#[test]
fn mp_blind() {
    let found = both_orders(mp_writer, |p| {
        clwb(p, X); // teeth: it flushes what it may not have seen
        fence(p); // teeth: what it waits for may have come too early
        p.store_u64(Y, 7);
    });
    assert_eq!(found, "00 07 10 17");
}

#[test]
fn a_fence_commits_its_own_thread_only() {
    let flush_here: fn(&SimPmem) = |p| {
        p.store_u64(X, 1);
        clwb(p, X); // teeth: the fence is of another thread
    };
    let fence_there: fn(&SimPmem) = |p| {
        fence(p); // teeth: the flush is of another thread
        p.store_u64(Y, 7);
    };
    assert_eq!(in_order(flush_here, fence_there), "00 07 10 17");
    let nt_here: fn(&SimPmem) = |p| nt(p, X, 1);
    assert_eq!(in_order(nt_here, fence_there), "00 07 10 17");
}
