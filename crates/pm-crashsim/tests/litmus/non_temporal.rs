//! Stores around the cache.

use crate::harness::{ALL, IN_ORDER, X, XY, XY_SAME, XY_SAME_Z, Y, Y_SAME, Z_OTHER, allows, fence, nt};
use pm_core::Pmem;

#[test]
fn nt_alone() {
    allows(XY, ALL, ALL, |p| {
        nt(p, X, 1);
        p.store_u64(Y, 1);
    });
}

#[test]
fn nt_sf() {
    allows(XY, IN_ORDER, IN_ORDER, |p| {
        nt(p, X, 1);
        fence(p);
        p.store_u64(Y, 1);
    });
}

#[test]
fn nt_line() {
    allows(XY_SAME, ALL, ALL, |p| {
        nt(p, X, 1);
        nt(p, Y_SAME, 1);
    });
}

#[test]
fn nt_mixed() {
    // The fence makes y durable before z, and says nothing of x: z implies y.
    allows(XY_SAME_Z, "000 010 011 100 110 111", "000 010 100 110 111", |p| {
        p.store_u64(X, 1);
        nt(p, Y_SAME, 1);
        fence(p);
        p.store_u64(Z_OTHER, 1);
    });
}

#[test]
fn nt_over_a_cached_store() {
    // Once the later store is durable, the older one cannot come back.
    allows(XY, "00 10 20 21", "00 10 20 21", |p| {
        p.store_u64(X, 1);
        nt(p, X, 2);
        fence(p);
        p.store_u64(Y, 1);
    });
}

/// The end that is no whole word goes through the cache, and is flushed; but that promises nothing for what else the line holds.
#[test]
fn a_ragged_end_does_not_take_its_line_along() {
    allows(XY_SAME_Z, "000 010 011 100 110 111", "000 010 100 110 111", |p| {
        p.store_u64(X, 1);
        p.store_nt(Y_SAME, &[1, 0, 0]);
        fence(p);
        p.store_u64(Z_OTHER, 1);
    });
}
