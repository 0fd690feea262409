//! What an operation that has returned may still lose.

use crate::harness::*;

#[test]
fn late_fence() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        clwb(p, X);
        p.store_u64(Y, 1);
        fence(p); // teeth: the mfence after it has the same effect
        p.mfence();
    };
    allows("late_fence", XY, ALL, IN_ORDER, program);
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

/// A store may still be in the store buffer together with a later store that is ordered after it, whatever was acknowledged.
#[test]
fn acknowledgement_does_not_drain_the_store_buffer() {
    for (words, y) in [(XY_SAME, Y_SAME), (XY, Y)] {
        let ordered_flush = |p: &SimPmem| {
            p.store_u64(X, 1);
            p.clflush(X, 8);
            p.store_u64(y, 1);
        };
        let ordering_fence = |p: &SimPmem| {
            p.store_u64(X, 1);
            clwb(p, X);
            fence(p);
            p.store_u64(y, 1);
        };
        // In order inside the line and, by the flush, between lines.
        for model in LOSSY {
            let explorer = Explorer::new(model);
            let strict = Explorer::new(model).strict_ack(true);
            assert_eq!(outcomes_at_ack(&explorer, words, ordered_flush), IN_ORDER, "{model}");
            assert_eq!(outcomes_at_ack(&strict, words, ordering_fence), IN_ORDER, "{model}");
            assert_eq!(outcomes_at_ack(&explorer, words, ordering_fence), "10 11", "{model}");
            let drained = |p: &SimPmem| {
                ordered_flush(p);
                p.mfence();
            };
            assert_eq!(outcomes_at_ack(&strict, words, drained), "10 11", "{model}");
        }
    }
}

/// With caches kept, a locked instruction is durable when it is done, and all that came before it.
#[test]
fn exchange_with_kept_caches_is_durable_at_its_acknowledgement() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 1);
        assert_eq!(p.compare_exchange_u64(Z, 0, 1), Ok(0));
        p.store_u64(Y, 1);
    };
    assert_eq!(outcomes_at_ack(&Explorer::new(Model::Eadr), XYZ, program), "101 111");
    assert_eq!(outcomes(&Explorer::new(Model::Eadr), XYZ, program), "000 100 101 111");
}

/// Half a word stored around the cache does not reach the medium before what was stored to the word through the cache.
#[test]
fn non_temporal_half_is_in_order_with_older_store_to_its_word() {
    let program = |p: &SimPmem| {
        p.store_u64(X, 0x1_0000_0001);
        p.store_nt(X, &[2, 0, 0, 0]);
        nt(p, Y, 1);
    };
    for model in [Model::Eadr, Model::Px86Line, Model::Px86Loc] {
        let seen = outcomes(&Explorer::new(model), &[X], program);
        assert_eq!(seen, format!("0 {} {}", 0x1_0000_0001_u64, 0x1_0000_0002_u64), "{model}");
    }
}
