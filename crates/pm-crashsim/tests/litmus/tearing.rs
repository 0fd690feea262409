//! Where a store tears, and what orders inside a line, a word and a sector.

use crate::harness::*;

/// The first and the second of these words after each crash.
fn two_words(model: Model, [first, second]: [u64; 2], program: Program) -> BTreeSet<(u64, u64)> {
    let look = |crash: &Crash<'_, ()>| Some((crash.pmem().load_u64(first), crash.pmem().load_u64(second)));
    seen(&Explorer::new(model), |run| drop(program(Cpu::of(run))), look)
}

#[test]
fn tear16() {
    // Words of equal bytes: a mixture inside eight bytes would be neither 0 nor this.
    let word = 0x1111_1111_1111_1111;
    for model in Model::ALL {
        let found = two_words(model, [56, 64], |p| p.store_bytes(56, &[0x11; 16]));
        assert_eq!(found, BTreeSet::from([(0, 0), (word, 0), (0, word), (word, word)]), "{model}");
    }
}

/// By name: the outcomes allowed where both words of a pair survive or none, under `Px86Loc`, and under `Chunk8`.
const PAIRS: [(&str, &str, &str, &str, Program); 4] = [
    ("wide16", "00 11", "00 11", ALL, |p| p.store_pair(1, 1)),
    ("wide16_again", "00 11 22", "00 11 22", "00 01 02 10 11 12 20 21 22", |p| {
        p.store_pair(1, 1).store_pair(2, 2)
    }),
    // The stores to its words before it are ordered with it, and it with the store after it.
    (
        "wide16_between_words",
        "00 10 11 22 23",
        "00 01 10 11 22 23",
        "00 01 02 03 10 11 12 13 20 21 22 23",
        |p| p.store(X, 1).store(Y_SAME, 1).store_pair(2, 2).store(Y_SAME, 3),
    ),
    (
        "wide16_after_several_stores_of_one_word",
        "00 10 20 21 33",
        "00 01 10 11 20 21 33",
        "00 01 03 10 11 13 20 21 23 30 31 33",
        |p| p.store(X, 1).store(X, 2).store(Y_SAME, 1).store_pair(3, 3),
    ),
];

#[test]
fn pairs_survive_in_one_piece() {
    for (name, in_order, px86_loc, chunk8, program) in PAIRS {
        for model in Model::ALL {
            let allowed = match model {
                Model::Px86Loc => px86_loc,
                Model::Chunk8 => chunk8,
                _ => in_order,
            };
            assert_eq!(outcomes(&Explorer::new(model), XY_SAME, program), allowed, "{name}: {model}");
        }
    }
}

#[test]
fn wide16_after_a_store_in_pieces() {
    // Any piece of the first store may be there without the others, and the pair only after all of them.
    let program: Program = |p| p.store_bytes(X, &[1, 1, 1, 1, 1, 1]).store_pair(7, 7);
    for (model, tears) in [(Model::Px86Line, false), (Model::Px86Loc, false), (Model::Chunk8, true)] {
        let pieces = [0, 0x0101_0101, 0x0101_0000_0000, 0x0101_0101_0101];
        let mut expected: BTreeSet<(u64, u64)> = pieces.map(|word| (word, 0)).into();
        expected.insert((7, 7));
        if tears {
            expected.extend(pieces.map(|word| (word, 7)));
            expected.insert((7, 0));
        }
        assert_eq!(two_words(model, [X, Y_SAME], program), expected, "{model}");
    }
}

#[test]
fn wide16_then_a_fence() {
    let programs: [(&str, &str, Program); 2] = [
        ("flushed", "000 110 111", |p| p.store_pair(1, 1).clwb(Y_SAME).fence().store(Z_OTHER, 1)),
        // What replaced one word for good leaves the other word of the pair pending, alone.
        ("overwritten around the cache", "000 020 021 110 120 121", |p| {
            p.store_pair(1, 1).nt(Y_SAME, 2).fence().store(Z_OTHER, 1)
        }),
    ];
    for (name, allowed, program) in programs {
        for model in [Model::Px86Line, Model::Px86Loc] {
            assert_eq!(outcomes(&Explorer::new(model), XY_SAME_Z, program), allowed, "{name}: {model}");
        }
    }
}

#[test]
fn tear_inside_a_line_then_a_later_store() {
    // One store's words are unordered among themselves; under Px86Line all of them precede the next store.
    let program: Program = |p| p.store_bytes(X, &TWO_ONES).store(16, 1);
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
        let operation = |run: &Run<()>| {
            run.pmem().store(0, &[1]);
            run.pmem().store(4, &[1]);
        };
        seen(&Explorer::new(model), operation, |crash| {
            let word = crash.pmem().load_u64(0);
            Some((word & 1, word >> 32))
        })
    };
    let in_order = BTreeSet::from([(0, 0), (1, 0), (1, 1)]);
    assert_eq!(halves(Model::Px86Line), in_order);
    assert_eq!(halves(Model::Px86Loc), in_order);
    assert_eq!(halves(Model::Chunk8), &in_order | &BTreeSet::from([(0, 1)]));
}

#[test]
fn page_sectors() {
    // Nothing before the fence, whatever else orders; sectors in any order, bytes inside one in order.
    let page = Explorer::new(Model::Page);
    // teeth: under this model, neither an exchange nor mfence fences a flush
    let exchange: Program = |p| p.store(X, 1).clwb(X).exchange(Z, [0, 1], Ok(0)).mfence().store(Y, 1);
    assert_eq!(outcomes(&page, XYZ, exchange), "000 001 010 011 100 101 110 111");
    let other_line_of_the_sector: Words = &[X, 64];
    let program: Program = |p| p.store(X, 1).store(64, 1);
    assert_eq!(outcomes(&page, other_line_of_the_sector, program), IN_ORDER);
    let non_temporal: Program = |p| p.nt(X, 1).fence().store(Y, 1);
    assert_eq!(outcomes(&page, XY, non_temporal), IN_ORDER);
}

/// The bytes 0x11 at `offset` that a crash can leave, as sets of byte numbers.
fn torn(model: Model, offset: u64, len: usize) -> BTreeSet<Vec<u64>> {
    let bytes = vec![0x11; len];
    let operation = |run: &Run<()>| run.pmem().store(offset, &bytes);
    seen(&Explorer::new(model), operation, |crash| {
        let mut left = [0; 64];
        crash.pmem().load(0, &mut left);
        Some((0..64).filter(|&at| left[usize::try_from(at).unwrap()] == 0x11).collect())
    })
}

#[test]
fn store_aligned_to_its_length_is_not_torn() {
    for model in Model::ALL {
        for (offset, len) in [(0, 1), (7, 1), (2, 2), (4, 4), (8, 8)] {
            let whole = (offset..offset + len).collect();
            let seen = torn(model, offset, usize::try_from(len).unwrap());
            assert_eq!(seen, BTreeSet::from([vec![], whole]), "{model}: {len} bytes at {offset}");
        }
    }
}

#[test]
fn other_stores_are_torn_into_aligned_pieces() {
    for model in Model::ALL {
        for (offset, len, pieces) in [
            (0, 7, &[0..4, 4..6, 6..7][..]),
            (1, 7, &[1..2, 2..4, 4..8]),
            (2, 5, &[2..4, 4..6, 6..7]),
            (1, 2, &[1..2, 2..3]),
            (6, 4, &[6..8, 8..10]),
            (4, 8, &[4..8, 8..12]),
        ] {
            let mut expected = BTreeSet::from([Vec::new()]);
            for piece in pieces {
                let with = |kept: &Vec<u64>| kept.iter().copied().chain(piece.clone()).collect();
                let more: Vec<Vec<u64>> = expected.iter().map(with).collect();
                expected.extend(more);
            }
            assert_eq!(torn(model, offset, len), expected, "{model}: {len} bytes at {offset}");
        }
    }
}
