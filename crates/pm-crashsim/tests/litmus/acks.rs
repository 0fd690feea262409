//! What an operation that has returned may still lose.

use crate::harness::*;

#[test]
fn late_fence() {
    let program: Program = |p| {
        let p = p.store(X, 1).clwb(X).store(Y, 1).fence(); // teeth(fence): the mfence after it has the same effect
        p.mfence()
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
        let at_ack = |program: Program| outcomes_at_ack(&Explorer::new(model), &[X], program);
        // teeth: nothing waits for it, and that is what is shown
        let unfenced = at_ack(|p| p.store(X, 1).clflush(X));
        let fenced = at_ack(|p| p.store(X, 1).clflush(X).mfence());
        assert_eq!((unfenced.as_str(), fenced.as_str()), ("0 1", "1"), "{model}");
    }
}

#[test]
fn sf_ack() {
    let program = |p: Cpu| p.store(X, 1).clwb(X).fence();
    for model in LOSSY {
        let at_ack = |strict| outcomes_at_ack(&Explorer::new(model).strict_ack(strict), &[X], program);
        assert_eq!(at_ack(false), "1", "{model}");
        assert_eq!(at_ack(true), "0 1", "{model}");
    }
    // Strict or not, the fence orders: only the acknowledgement overtakes it.
    let strict = Explorer::default().strict_ack(true);
    assert_eq!(outcomes(&strict, XY, |p| program(p).store(Y, 1)), IN_ORDER);
    // msync waits.
    let page = Explorer::new(Model::Page).strict_ack(true);
    assert_eq!(outcomes_at_ack(&page, &[X], program), "1");
}

/// A store may still be in the store buffer together with a later store that is ordered after it, whatever was acknowledged.
#[test]
fn acknowledgement_does_not_drain_the_store_buffer() {
    for (words, y) in [(XY_SAME, Y_SAME), (XY, Y)] {
        let ordered_flush = |p: Cpu| p.store(X, 1).clflush(X).store(y, 1);
        let ordering_fence = |p: Cpu| p.store(X, 1).clwb(X).fence().store(y, 1);
        // In order inside the line and, by the flush, between lines.
        for model in LOSSY {
            let explorer = Explorer::new(model);
            let strict = Explorer::new(model).strict_ack(true);
            assert_eq!(outcomes_at_ack(&explorer, words, ordered_flush), IN_ORDER, "{model}");
            assert_eq!(outcomes_at_ack(&strict, words, ordering_fence), IN_ORDER, "{model}");
            assert_eq!(outcomes_at_ack(&explorer, words, ordering_fence), "10 11", "{model}");
            let drained = |p| ordered_flush(p).mfence();
            assert_eq!(outcomes_at_ack(&strict, words, drained), "10 11", "{model}");
        }
    }
}

/// With caches kept, a locked instruction is durable when it is done, and all that came before it.
#[test]
fn exchange_with_kept_caches_is_durable_at_its_acknowledgement() {
    let program = |p: Cpu| p.store(X, 1).exchange(Z, [0, 1], Ok(0)).store(Y, 1);
    assert_eq!(outcomes_at_ack(&Explorer::new(Model::Eadr), XYZ, program), "101 111");
    assert_eq!(outcomes(&Explorer::new(Model::Eadr), XYZ, program), "000 100 101 111");
}

/// Half a word stored around the cache does not reach the medium before what was stored to the word through the cache.
#[test]
fn non_temporal_half_is_in_order_with_older_store_to_its_word() {
    let program = |p: Cpu| p.store(X, 0x1_0000_0001).nt_bytes(X, &[2, 0, 0, 0]).nt(Y, 1);
    for model in [Model::Eadr, Model::Px86Line, Model::Px86Loc] {
        let seen = outcomes(&Explorer::new(model), &[X], program);
        assert_eq!(seen, format!("0 {} {}", 0x1_0000_0001_u64, 0x1_0000_0002_u64), "{model}");
    }
}
