//! One thread: stores through the cache and around it, flushes, fences and locked instructions.

use crate::harness::*;

/// By name: the words looked at, the outcomes allowed with caches lost and with caches kept, and the program.
const PROGRAMS: [(&str, Words, &str, &str, Program); 16] = [
    ("ss", XY, ALL, IN_ORDER, |p| p.store(X, 1).store(Y, 1)),
    ("ww", XY, "00 01 10 11 20 21", "00 10 20 21", |p| p.store(X, 1).store(X, 2).store(Y, 1)),
    // teeth: without a fence it orders nothing
    ("fo", XY, ALL, IN_ORDER, |p| p.store(X, 1).clwb(X).store(Y, 1)),
    ("fo_sf", XY, IN_ORDER, IN_ORDER, |p| p.store(X, 1).clwb(X).fence().store(Y, 1)),
    // teeth: without a flush it orders nothing
    ("sf_only", XY, ALL, IN_ORDER, |p| p.store(X, 1).fence().store(Y, 1)),
    ("fl", XY, IN_ORDER, IN_ORDER, |p| p.store(X, 1).clflush(X).store(Y, 1)),
    // teeth: the flush comes before the store, too early for the fence
    ("early_flush", XY, ALL, IN_ORDER, |p| p.clwb(X).store(X, 1).fence().store(Y, 1)),
    ("reflush", XY, "00 10 11 20 21", "00 10 20 21", |p| {
        p.store(X, 1).clwb(X).store(X, 2).fence().store(Y, 1)
    }),
    // teeth: the failed exchange does not fence it
    ("fo_cas_fail", XY, ALL, IN_ORDER, |p| p.store(X, 1).clwb(X).exchange(Z, [5, 6], Err(0)).store(Y, 1)),
    ("half_object", XYZ, "000 010 100 101 110 111", "000 100 110 111", |p| {
        p.store(X, 1).store(Y, 1).clwb(X).fence().store(Z, 1)
    }),
    ("nt_alone", XY, ALL, ALL, |p| p.nt(X, 1).store(Y, 1)),
    ("nt_sf", XY, IN_ORDER, IN_ORDER, |p| p.nt(X, 1).fence().store(Y, 1)),
    ("nt_line", XY_SAME, ALL, ALL, |p| p.nt(X, 1).nt(Y_SAME, 1)),
    // The fence makes y durable before z, and promises nothing for x: z implies y.
    ("nt_mixed", XY_SAME_Z, "000 010 011 100 110 111", "000 010 100 110 111", |p| {
        p.store(X, 1).nt(Y_SAME, 1).fence().store(Z_OTHER, 1)
    }),
    // Once the later store is durable, the older one cannot come back.
    ("nt_over_a_cached_store", XY, "00 10 20 21", "00 10 20 21", |p| {
        p.store(X, 1).nt(X, 2).fence().store(Y, 1)
    }),
    // The end that is not a whole word goes through the cache and is flushed, which promises nothing for the rest of its line.
    ("nt_ragged_end", XY_SAME_Z, "000 010 011 100 110 111", "000 010 100 110 111", |p| {
        p.store(X, 1).nt_bytes(Y_SAME, &[1, 0, 0]).fence().store(Z_OTHER, 1)
    }),
];

#[test]
fn programs_have_exactly_the_allowed_outcomes() {
    for (name, words, lossy, eadr, program) in PROGRAMS {
        allows(name, words, lossy, eadr, program);
    }
}

/// Asserts the outcomes of models that order stores in a line, and of models that do not.
fn line_allows(words: Words, in_order: &str, any_order: &str, program: Program) {
    for model in Model::ALL {
        let is_in_order = !matches!(model, Model::Px86Loc | Model::Chunk8);
        let allowed = if is_in_order { in_order } else { any_order };
        assert_eq!(outcomes(&Explorer::new(model), words, program), allowed, "{model}");
    }
}

#[test]
fn ss_line() {
    line_allows(XY_SAME, IN_ORDER, ALL, |p| p.store(X, 1).store(Y_SAME, 1));
}

#[test]
fn line_cover() {
    line_allows(XY_SAME_Z, "000 100 110 111", "000 010 100 110 111", |p| {
        p.store(X, 1).store(Y_SAME, 1).clwb(X).fence().store(Z_OTHER, 1)
    });
}

#[test]
fn fo_rmw() {
    let program = |p: Cpu| p.store(X, 1).clwb(X).exchange(Z, [0, 1], Ok(0)).store(Y, 1);
    allows("fo_rmw", XYZ, "000 100 101 110 111", "000 100 101 111", program);
    // Without the implicit fence of x86, the exchange is one more store.
    let explorer = Explorer::default().exchange_fences(false);
    assert_eq!(outcomes(&explorer, XYZ, program), "000 001 010 011 100 101 110 111");
}
