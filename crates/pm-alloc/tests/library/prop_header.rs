//! Heap headers with valid checksums and impossible values: opening returns a typed error or a heap that works, and never panics.
//! The checksums of block headers and of the chunk count detect every burst error of up to 16 bits.

use pm_alloc::format::{BlockHeader, BlockState, COPY_START, ChunkCount, HeapHeader, Lsn, seal, unseal};
use pm_alloc::{Heap, HeapError, HeapInspection, HeapOptions, TxError};
use pm_core::{Pmem, Pool, PoolError, Region, RegionOptions, bytes_of, from_bytes};
use pm_testkit::AnyPmem;
use proptest::prelude::*;

const REGION_BYTES: u64 = 1 << 17;

fn options() -> HeapOptions {
    HeapOptions::new().lanes(2).lane_entries(32).chunk_bytes(4096).seed(7)
}

/// A heap and its header.
fn heap() -> (Region, HeapHeader) {
    let region = Region::anonymous(REGION_BYTES).unwrap();
    let start = Heap::format(AnyPmem::from(&region), &options()).unwrap().layout().heap_start;
    let header = from_bytes(|bytes| region.load(start, bytes));
    (region, header)
}

/// Stores a header with a valid checksum, as the header, its copy, or both.
fn store(region: &Region, header: HeapHeader, start: u64, copies: [bool; 2]) {
    let header = header.sealed();
    for (at, _) in [start, start + COPY_START].into_iter().zip(copies).filter(|(_, is_stored)| *is_stored) {
        region.store(at, bytes_of(&header));
    }
}

/// Opens the heap and uses it. Returns the error if it cannot be opened.
fn use_heap(region: &Region) -> Result<(), HeapError> {
    let seen = Pool::attach_read_only(region).map(|pool| HeapInspection::of(&pool));
    let heap = Heap::attach(AnyPmem::from(region), &options());
    assert_eq!(heap.is_ok(), matches!(seen, Ok(Ok(_))), "inspecting and opening agree");
    let heap = heap?;
    heap.check();
    // There may be no room, or the lane may be too short: the heap was formatted for other lanes and chunks.
    let allocated: Result<(), TxError> = heap.transaction(|tx| tx.alloc(&1_u64).map(drop));
    assert!(matches!(allocated, Ok(()) | Err(TxError::Space(_) | TxError::Commit(_))), "{allocated:?}");
    Ok(())
}

/// Values around the valid ones, and any others.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32).prop_map(|bit| (1_u64 << bit).wrapping_sub(1)),
        0..=REGION_BYTES,
        (0..=REGION_BYTES / 64).prop_map(|lines| 64 * lines),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn heap_with_impossible_fields_works_or_is_refused(
        changes in prop::collection::vec((0..11_usize, value()), 1..4),
        copies in prop_oneof![Just([true, true]), Just([true, false]), Just([false, true])],
    ) {
        let (region, whole) = heap();
        let mut header = whole;
        for (field, value) in changes {
            #[expect(clippy::cast_possible_truncation, reason = "any value will do")]
            match field {
                0 => header.version = value as u32,
                1 => header.header_bytes = value as u32,
                2 => header.features_compat = value,
                3 => header.features_ro_compat = value,
                4 => header.features_incompat = value,
                5 => header.seed = value,
                6 => header.heap_start = value,
                7 => header.lane_count = value as u32,
                8 => header.lane_entries = value as u32,
                9 => header.chunks_start = value,
                _ => header.chunk_bytes = value,
            }
        }
        store(&region, header, whole.heap_start, copies);
        let opened = use_heap(&region);
        let is_either = matches!(
            opened,
            Ok(())
                | Err(HeapError::HeaderField { .. }
                    | HeapError::HeaderCorrupted { .. }
                    | HeapError::FutureVersion { .. }
                    | HeapError::OldVersion { .. }
                    | HeapError::UnknownFeatures { .. }
                    | HeapError::ChunkCountCorrupted { .. }
                    | HeapError::Recover(_))
        );
        prop_assert!(is_either, "{opened:?}");
    }
}

type Change = fn(&mut HeapHeader);

#[test]
fn error_contains_name_of_impossible_field() {
    let (_, whole) = heap();
    let cases: [(&str, Change); 8] = [
        ("version", |header| header.version = 0),
        ("header_bytes", |header| header.header_bytes = 64),
        ("lane_count", |header| header.lane_count = 1025),
        ("lane_entries", |header| header.lane_entries = 3),
        ("chunk_bytes", |header| header.chunk_bytes = 64),
        ("chunks_start", |header| header.chunks_start += 4),
        ("chunks_start", |header| header.chunks_start = 1 << 40),
        ("chunks_start", |header| header.lane_entries = 1 << 16),
    ];
    for (expected, change) in cases {
        let (region, _) = heap();
        let mut header = whole;
        change(&mut header);
        header.pool_uuid = Pool::attach(&region).unwrap().uuid().into_bytes();
        store(&region, header, whole.heap_start, [true, true]);
        match use_heap(&region) {
            Err(HeapError::HeaderField { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
        // The heap opens if only the copy is valid.
        store(&region, HeapHeader { pool_uuid: header.pool_uuid, ..whole }, whole.heap_start, [false, true]);
        use_heap(&region).unwrap();
    }
}

/// The version is checked before the log, because the log of an older version looks corrupted to this one.
#[test]
fn older_version_is_refused() {
    let (region, whole) = heap();
    store(&region, HeapHeader { version: 1, ..whole }, whole.heap_start, [true, true]);
    let bytes = || {
        let mut bytes = vec![0; usize::try_from(REGION_BYTES - whole.heap_start).unwrap()];
        region.load(whole.heap_start, &mut bytes);
        bytes
    };
    let before = bytes();
    let refused = use_heap(&region);
    assert!(matches!(refused, Err(HeapError::OldVersion { found: 1, supported: 2 })), "{refused:?}");
    assert!(before == bytes(), "the heap has changed");
}

#[test]
fn read_only_open_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heap.pm");
    drop(Heap::create(&path, 1 << 20, &HeapOptions::new()).unwrap());
    let read_only = HeapOptions::new().region(RegionOptions::new().read_only());
    assert!(matches!(Heap::open(&path, &read_only), Err(HeapError::ReadOnly)));
    let other = Heap::open(dir.path().join("other.pm"), &read_only);
    assert!(matches!(other, Err(HeapError::Pool(PoolError::Region(_)))), "{other:?}");
}

/// All burst errors of up to 16 bits in `WORDS` words.
fn bursts<const WORDS: usize>() -> impl Iterator<Item = [u64; WORDS]> {
    let bits = 64 * WORDS;
    (0..bits).flat_map(move |at| {
        let longest = 16.min(bits - at);
        // The first bit is always flipped, so that each burst is generated once.
        (0..1_u32 << (longest - 1)).map(move |rest| {
            let pattern = u128::from(rest << 1 | 1);
            let mut words = [0; WORDS];
            let shifted = pattern << (at % 64);
            #[expect(clippy::cast_possible_truncation, reason = "one half and the other")]
            {
                words[at / 64] = shifted as u64;
                if at / 64 + 1 < WORDS {
                    words[at / 64 + 1] = (shifted >> 64) as u64;
                }
            }
            words
        })
    })
}

#[test]
fn block_header_detects_every_burst_of_16_bits() {
    for (state, lines) in [(BlockState::Free, 16_383), (BlockState::Allocated, 1), (BlockState::End, 0)] {
        let word = BlockHeader::new(state, lines).to_word(7, 0x1_2340);
        let missed =
            bursts::<1>().find(|[burst]| BlockHeader::from_word(word ^ burst, 7, 0x1_2340).is_some());
        assert_eq!(missed, None, "{state:?}");
    }
}

#[test]
fn chunk_count_detects_every_burst_of_16_bits() {
    let pair = ChunkCount::new(64, 7, 4160).to_pair();
    #[expect(clippy::cast_possible_truncation, reason = "one half and the other")]
    let words = [pair as u64, (pair >> 64) as u64];
    let missed = bursts::<2>().find(|[first, second]| {
        ChunkCount::from_words([words[0] ^ first, words[1] ^ second], 7, 4160).is_some()
    });
    assert_eq!(missed, None);
}

/// The test checks `PM_RANDOM_WORDS` words. One in 2^32 * 8 / 5 is a valid block header. A sealed word has a checksum of only 16 bits.
#[test]
fn random_words_are_not_headers() {
    let wanted: u64 = std::env::var("PM_RANDOM_WORDS").map_or(1 << 22, |count| count.parse().unwrap());
    let mut random = 1_u64;
    let (mut headers, mut sealed) = (0, 0);
    for number in 0..wanted {
        // SplitMix64.
        random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = random;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^= word >> 31;
        headers += u64::from(BlockHeader::from_word(word, 7, 64 * number).is_some());
        sealed += u64::from(unseal(word, 7, 64 * number, &[]).is_some());
    }
    let lsn = seal(Lsn::new(5 << 32 | 77), 7, 4096, &[]);
    let missed = bursts::<1>().filter(|[burst]| unseal(lsn ^ burst, 7, 4096, &[]).is_some()).count();
    println!(
        "of {wanted} random words: {headers} headers of blocks, {sealed} sealed words; of all bursts {missed} are missed in a sealed word"
    );
    assert!(headers <= 2 + wanted / (1 << 31), "{headers}");
    assert!(sealed <= 10 + wanted / (1 << 15), "{sealed}");
}
