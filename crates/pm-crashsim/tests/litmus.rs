//! The litmus tests of `docs/persistence-model.md`, each explored, and compared with what the model allows.
//!
//! An outcome is written as the digits of `x`, `y` (and `z`), all 0 at first. A name in lower case stands for what
//! the program did to one of these words.

use pm_core::Pmem;
use pm_crashsim::{Crash, Explorer, Image, Model, Run, SimPmem};
use std::cell::RefCell;
use std::collections::BTreeSet;

const X: u64 = 0;
/// On a line (and, for the page domain, a sector) of its own.
const Y: u64 = 4096;
const Z: u64 = 8192;
/// On the line of `X`.
const Y_SAME: u64 = 8;
const Z_OTHER: u64 = 4096;

type Words = &'static [u64];
const XY: Words = &[X, Y];
const XYZ: Words = &[X, Y, Z];
const XY_SAME: Words = &[X, Y_SAME];
const XY_SAME_Z: Words = &[X, Y_SAME, Z_OTHER];

/// Every outcome of `program`, of crashes anywhere.
fn outcomes(explorer: &Explorer, words: Words, program: impl Fn(&SimPmem)) -> String {
    collect(explorer, words, |run: &Run<()>| program(run.pmem()), |_| true)
}

/// Every outcome of crashes after `program` returned.
fn outcomes_at_ack(explorer: &Explorer, words: Words, program: impl Fn(&SimPmem)) -> String {
    let operation = |run: &Run<()>| {
        program(run.pmem());
        run.ack(());
    };
    collect(explorer, words, operation, |crash| !crash.acked().is_empty())
}

fn collect(
    explorer: &Explorer,
    words: Words,
    operation: impl Fn(&Run<()>),
    counts: impl Fn(&Crash<'_, ()>) -> bool,
) -> String {
    let seen = RefCell::new(BTreeSet::new());
    let check = |crash: &Crash<'_, ()>| {
        if counts(crash) {
            let digits = words.iter().map(|&word| crash.pmem().load_u64(word).to_string());
            seen.borrow_mut().insert(digits.collect::<String>());
        }
    };
    let coverage = explorer.clone().crashes(1).check(&Image::zeroed(16384), operation, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    seen.into_inner().into_iter().collect::<Vec<_>>().join(" ")
}

const LOSSY: [Model; 3] = [Model::Px86Line, Model::Px86Loc, Model::Chunk8];

/// Asserts what is allowed with caches lost (under each of these models), and with caches kept.
#[track_caller]
fn allows(words: Words, lossy: &str, eadr: &str, program: impl Fn(&SimPmem)) {
    for model in LOSSY {
        assert_eq!(outcomes(&Explorer::new(model), words, &program), lossy, "{model}");
    }
    assert_eq!(outcomes(&Explorer::new(Model::Eadr), words, &program), eadr, "eadr");
}

fn fence(pmem: &SimPmem) {
    pmem.fence().expect("the simulated fence never fails");
}

fn clwb(pmem: &SimPmem, word: u64) {
    pmem.flush(word, 8);
}

fn nt(pmem: &SimPmem, word: u64, value: u64) {
    pmem.store_nt(word, &value.to_le_bytes());
}

const ALL: &str = "00 01 10 11";
const IN_ORDER: &str = "00 10 11";

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
        clwb(p, X);
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
        fence(p);
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
        clwb(p, X);
        p.store_u64(X, 1);
        fence(p);
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
fn late_fence() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        clwb(p, X);
        p.store_u64(Y, 1);
        fence(p);
        p.mfence();
    };
    allows(XY, ALL, IN_ORDER, program);
    for strict in [false, true] {
        for model in LOSSY {
            let explorer = Explorer::new(model).strict_ack(strict);
            assert_eq!(outcomes_at_ack(&explorer, XY, program), "10 11", "{model}");
        }
    }
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
        clwb(p, X);
        assert_eq!(p.compare_exchange_u64(Z, 5, 6), Err(0));
        p.store_u64(Y, 1);
    });
}

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

#[test]
fn fl_ack() {
    for model in LOSSY {
        let at_ack = |program: fn(&SimPmem)| outcomes_at_ack(&Explorer::new(model), &[X], program);
        let unfenced = at_ack(|p| {
            p.store_u64(X, 1);
            p.clflush(X, 8);
        });
        let fenced = at_ack(|p| {
            p.store_u64(X, 1);
            p.clflush(X, 8);
            p.mfence();
        });
        assert_eq!((unfenced.as_str(), fenced.as_str()), ("0 1", "1"), "{model}");
    }
}

#[test]
fn sf_ack() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        clwb(p, X);
        fence(p);
    };
    for model in LOSSY {
        let at_ack = |strict| outcomes_at_ack(&Explorer::new(model).strict_ack(strict), &[X], program);
        assert_eq!(at_ack(false), "1", "{model}");
        assert_eq!(at_ack(true), "0 1", "{model}");
    }
    // Strict or not, the fence orders: only the acknowledgement overtakes it.
    let strict = Explorer::default().strict_ack(true);
    let then_y = |p: &SimPmem| {
        program(p);
        p.store_u64(Y, 1);
    };
    assert_eq!(outcomes(&strict, XY, then_y), IN_ORDER);
    // msync waits.
    let page = Explorer::new(Model::Page).strict_ack(true);
    assert_eq!(outcomes_at_ack(&page, &[X], program), "1");
}

#[test]
fn tear16() {
    // Words of different bytes: a mixture inside eight bytes would be neither 0 nor this.
    let bytes = [0x11; 16];
    for model in Model::ALL {
        let seen = RefCell::new(BTreeSet::new());
        Explorer::new(model)
            .explore(
                &Image::zeroed(4096),
                |run: &Run<()>| run.pmem().store(56, &bytes),
                |crash| {
                    let word = |offset| crash.pmem().load_u64(offset);
                    seen.borrow_mut().insert((word(56), word(64)));
                },
            )
            .unwrap();
        let word = 0x1111_1111_1111_1111;
        let expected = BTreeSet::from([(0, 0), (word, 0), (0, word), (word, word)]);
        assert_eq!(seen.into_inner(), expected, "{model}");
    }
}

#[test]
fn tear_inside_a_line_then_a_later_store() {
    // One store's words are unordered among themselves; under Px86Line all of them precede the next store.
    let program = |p: &SimPmem| {
        p.store(X, &[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        p.store_u64(16, 1);
    };
    let words: Words = &[0, 8, 16];
    assert_eq!(outcomes(&Explorer::new(Model::Px86Line), words, program), "000 010 100 110 111");
    for model in [Model::Px86Loc, Model::Chunk8] {
        assert_eq!(outcomes(&Explorer::new(model), words, program), "000 001 010 011 100 101 110 111");
    }
}

#[test]
fn parts_of_one_word() {
    // Two stores to different bytes of one word: in order per word, in any combination per chunk.
    let halves = |model| {
        let seen = RefCell::new(BTreeSet::new());
        let operation = |run: &Run<()>| {
            run.pmem().store(0, &[1]);
            run.pmem().store(4, &[1]);
        };
        let check = |crash: &Crash<'_, ()>| {
            let word = crash.pmem().load_u64(0);
            seen.borrow_mut().insert((word & 1, word >> 32));
        };
        Explorer::new(model).explore(&Image::zeroed(64), operation, check).unwrap();
        seen.into_inner()
    };
    let in_order = BTreeSet::from([(0, 0), (1, 0), (1, 1)]);
    assert_eq!(halves(Model::Px86Line), in_order);
    assert_eq!(halves(Model::Px86Loc), in_order);
    assert_eq!(halves(Model::Chunk8), &in_order | &BTreeSet::from([(0, 1)]));
}

/// Runs two programs on threads of their own, one after the other, in both orders. That is every interleaving
/// that matters here: one in which the second thread sees the first's store, and one in which it does not.
fn both_orders(first: fn(&SimPmem), second: fn(&SimPmem)) -> String {
    let mut seen = BTreeSet::new();
    for order in [[first, second], [second, first]] {
        let found = outcomes(&Explorer::default(), XY, |pmem| {
            for program in order {
                std::thread::scope(|scope| {
                    scope.spawn(|| program(pmem));
                });
            }
        });
        seen.extend(found.split(' ').map(str::to_owned));
    }
    seen.into_iter().collect::<Vec<_>>().join(" ")
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
            fence(p);
            p.store_u64(Y, 7);
        }
    });
    assert_eq!(found, "00 07 10 17");
}

#[test]
fn mp_nofence() {
    let found = both_orders(mp_writer, |p| {
        if p.load_u64(X) == 1 {
            clwb(p, X);
            p.store_u64(Y, 7);
        }
    });
    assert_eq!(found, "00 07 10 17");
}

#[test]
fn mp_blind() {
    let found = both_orders(mp_writer, |p| {
        clwb(p, X);
        fence(p);
        p.store_u64(Y, 7);
    });
    assert_eq!(found, "00 07 10 17");
}

#[test]
fn a_fence_commits_its_own_thread_only() {
    let flush_here: fn(&SimPmem) = |p| {
        p.store_u64(X, 1);
        clwb(p, X);
    };
    let fence_there: fn(&SimPmem) = |p| {
        fence(p);
        p.store_u64(Y, 7);
    };
    assert_eq!(both_orders(flush_here, fence_there), "00 07 10 17");
    let nt_here: fn(&SimPmem) = |p| nt(p, X, 1);
    assert_eq!(both_orders(nt_here, fence_there), "00 07 10 17");
}

#[test]
fn page_sectors() {
    // Nothing before the fence, whatever else orders; sectors in any order, bytes inside one in order.
    let page = Explorer::new(Model::Page);
    let exchange = |p: &SimPmem| {
        p.store_u64(X, 1);
        clwb(p, X);
        assert_eq!(p.compare_exchange_u64(Z, 0, 1), Ok(0));
        p.mfence();
        p.store_u64(Y, 1);
    };
    assert_eq!(outcomes(&page, XYZ, exchange), "000 001 010 011 100 101 110 111");
    let other_line_of_the_sector: Words = &[X, 64];
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        p.store_u64(64, 1);
    };
    assert_eq!(outcomes(&page, other_line_of_the_sector, program), IN_ORDER);
    let non_temporal = |p: &SimPmem| {
        nt(p, X, 1);
        fence(p);
        p.store_u64(Y, 1);
    };
    assert_eq!(outcomes(&page, XY, non_temporal), IN_ORDER);
}
