//! What an operation that has returned may still lose.

use crate::harness::{ALL, IN_ORDER, LOSSY, X, XY, Y, allows, clwb, fence, outcomes, outcomes_at_ack};
use pm_core::Pmem;
use pm_crashsim::{Explorer, Model, SimPmem};

#[test]
fn late_fence() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        clwb(p, X);
        p.store_u64(Y, 1);
        fence(p); // teeth: the mfence behind it does all that it does
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
fn fl_ack() {
    for model in LOSSY {
        let at_ack = |program: fn(&SimPmem)| outcomes_at_ack(&Explorer::new(model), &[X], program);
        let unfenced = at_ack(|p| {
            p.store_u64(X, 1);
            p.clflush(X, 8); // teeth: nothing waits for it, and that is what is shown
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
