//! Stores through the cache, flushes, fences and locked instructions.

use crate::harness::{
    ALL, IN_ORDER, X, XY, XY_SAME, XY_SAME_Z, XYZ, Y, Y_SAME, Z, Z_OTHER, allows, clwb, fence, outcomes,
};
use pm_core::Pmem;
use pm_crashsim::{Explorer, Model, SimPmem};

#[test]
fn ss() {
    allows(XY, ALL, IN_ORDER, |p| {
        p.store_u64(X, 1);
        p.store_u64(Y, 1);
    });
}

#[test]
fn ss_line() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        p.store_u64(Y_SAME, 1);
    };
    for (model, allowed) in [
        (Model::Eadr, IN_ORDER),
        (Model::Px86Line, IN_ORDER),
        (Model::Px86Loc, ALL),
        (Model::Chunk8, ALL),
        (Model::Page, IN_ORDER),
    ] {
        assert_eq!(outcomes(&Explorer::new(model), XY_SAME, program), allowed, "{model}");
    }
}

#[test]
fn ww() {
    allows(XY, "00 01 10 11 20 21", "00 10 20 21", |p| {
        p.store_u64(X, 1);
        p.store_u64(X, 2);
        p.store_u64(Y, 1);
    });
}

#[test]
fn fo() {
    allows(XY, ALL, IN_ORDER, |p| {
        p.store_u64(X, 1);
        clwb(p, X); // teeth: without a fence it orders nothing
        p.store_u64(Y, 1);
    });
}

#[test]
fn fo_sf() {
    allows(XY, IN_ORDER, IN_ORDER, |p| {
        p.store_u64(X, 1);
        clwb(p, X);
        fence(p);
        p.store_u64(Y, 1);
    });
}

#[test]
fn sf_only() {
    allows(XY, ALL, IN_ORDER, |p| {
        p.store_u64(X, 1);
        fence(p); // teeth: without a flush it orders nothing
        p.store_u64(Y, 1);
    });
}

#[test]
fn fl() {
    allows(XY, IN_ORDER, IN_ORDER, |p| {
        p.store_u64(X, 1);
        p.clflush(X, 8);
        p.store_u64(Y, 1);
    });
}

#[test]
fn early_flush() {
    allows(XY, ALL, IN_ORDER, |p| {
        clwb(p, X); // teeth: it comes before the store
        p.store_u64(X, 1);
        fence(p); // teeth: the flush came too early for it
        p.store_u64(Y, 1);
    });
}

#[test]
fn reflush() {
    allows(XY, "00 10 11 20 21", "00 10 20 21", |p| {
        p.store_u64(X, 1);
        clwb(p, X);
        p.store_u64(X, 2);
        fence(p);
        p.store_u64(Y, 1);
    });
}

#[test]
fn fo_rmw() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        clwb(p, X);
        assert_eq!(p.compare_exchange_u64(Z, 0, 1), Ok(0));
        p.store_u64(Y, 1);
    };
    allows(XYZ, "000 100 101 110 111", "000 100 101 111", program);
    // Without the fence that x86 gives for nothing, the exchange is one more store.
    let explorer = Explorer::default().exchange_fences(false);
    assert_eq!(outcomes(&explorer, XYZ, program), "000 001 010 011 100 101 110 111");
}

#[test]
fn fo_cas_fail() {
    allows(XY, ALL, IN_ORDER, |p| {
        p.store_u64(X, 1);
        clwb(p, X); // teeth: the failed exchange is no fence for it
        assert_eq!(p.compare_exchange_u64(Z, 5, 6), Err(0));
        p.store_u64(Y, 1);
    });
}

#[test]
fn half_object() {
    allows(XYZ, "000 010 100 101 110 111", "000 100 110 111", |p| {
        p.store_u64(X, 1);
        p.store_u64(Y, 1);
        clwb(p, X);
        fence(p);
        p.store_u64(Z, 1);
    });
}

#[test]
fn line_cover() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        p.store_u64(Y_SAME, 1);
        clwb(p, X);
        fence(p);
        p.store_u64(Z_OTHER, 1);
    };
    let in_order = "000 100 110 111";
    let any_order = "000 010 100 110 111";
    for (model, allowed) in [
        (Model::Eadr, in_order),
        (Model::Px86Line, in_order),
        (Model::Px86Loc, any_order),
        (Model::Chunk8, any_order),
        (Model::Page, in_order),
    ] {
        assert_eq!(outcomes(&Explorer::new(model), XY_SAME_Z, program), allowed, "{model}");
    }
}
