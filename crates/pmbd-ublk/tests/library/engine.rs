//! The engine against a vector, its costs in lines and fences, and the requests that it refuses.

use pm_core::{Counting, Counts, Region};
use pmbd::{BlockError, BlockOp, Engine, Geometry, GeometryError, SectorSize, WriteCache};
use proptest::prelude::*;

const CAPACITY: u64 = 1 << 18;
const START: u64 = 8192;

fn engine(sector: SectorSize) -> Engine<Counting<Region>> {
    let region = Region::anonymous(START + CAPACITY + 8192).expect("memory for a small region");
    let geometry = Geometry::new(START, CAPACITY, sector).expect("a possible geometry");
    Engine::new(Counting::new(region), geometry).expect("the device lies in its region")
}

fn cost(engine: &Engine<Counting<Region>>, offset: u64, op: BlockOp<'_>) -> Counts {
    let (result, counts) = engine.pmem().count(|| engine.execute(offset, op));
    assert_eq!(result, Ok(()));
    counts
}

#[test]
fn write_of_4_kib_costs_64_lines_and_1_fence() {
    let engine = engine(SectorSize::B512);
    for fua in [false, true] {
        let counts = cost(&engine, 4096, BlockOp::Write { data: &[1; 4096], fua });
        assert_eq!(counts, Counts { lines: 64, fences: 1 });
    }
}

#[test]
fn requests_have_fixed_costs() {
    let engine = engine(SectorSize::B512);
    let mut out = [0; 4096];
    assert_eq!(cost(&engine, 0, BlockOp::Read { out: &mut out }), Counts { lines: 0, fences: 0 });
    assert_eq!(
        cost(&engine, 512, BlockOp::Write { data: &[1; 512], fua: false }),
        Counts { lines: 8, fences: 1 }
    );
    let zeroes = BlockOp::WriteZeroes { len_bytes: 65_536, fua: false };
    assert_eq!(cost(&engine, 0, zeroes), Counts { lines: 1024, fences: 1 });
    assert_eq!(cost(&engine, 0, BlockOp::Discard { len_bytes: 8192 }), Counts { lines: 128, fences: 1 });
    assert_eq!(cost(&engine, 0, BlockOp::Flush), Counts { lines: 0, fences: 1 });
}

#[test]
fn unaligned_and_out_of_range_requests_are_refused() {
    let engine = engine(SectorSize::B4096);
    let write =
        |offset, len: usize| engine.execute(offset, BlockOp::Write { data: &vec![9; len], fua: false });
    for (offset, len) in [(CAPACITY, 4096), (CAPACITY - 4096, 8192), (u64::MAX - 4095, 4096), (u64::MAX, 1)] {
        assert!(matches!(write(offset, len), Err(BlockError::OutOfRange { .. })), "{len} at {offset}");
    }
    for (offset, len) in [(512, 4096), (4096, 512), (1, 1), (0, 4095)] {
        assert!(matches!(write(offset, len), Err(BlockError::Unaligned { .. })), "{len} at {offset}");
    }
    let discard = engine.execute(0, BlockOp::Discard { len_bytes: CAPACITY + 4096 });
    assert!(matches!(discard, Err(BlockError::OutOfRange { .. })));
    assert_eq!(write(CAPACITY, 0), Ok(()), "an empty range at the end is inside");
    let mut all = vec![1; usize::try_from(CAPACITY).expect("small")];
    assert_eq!(engine.execute(0, BlockOp::Read { out: &mut all }), Ok(()));
    assert!(all.iter().all(|&byte| byte == 0), "no refused request changed anything");
}

#[test]
fn read_only_device_refuses_changes() {
    let engine = engine(SectorSize::B512).read_only();
    assert_eq!(engine.execute(0, BlockOp::Write { data: &[1; 512], fua: false }), Err(BlockError::ReadOnly));
    assert_eq!(engine.execute(0, BlockOp::Discard { len_bytes: 512 }), Err(BlockError::ReadOnly));
    assert_eq!(
        engine.execute(0, BlockOp::WriteZeroes { len_bytes: 512, fua: true }),
        Err(BlockError::ReadOnly)
    );
    assert_eq!(engine.execute(0, BlockOp::Flush), Ok(()));
    assert_eq!(engine.execute(0, BlockOp::Read { out: &mut [0; 512] }), Ok(()));
}

#[test]
fn invalid_geometries_are_refused() {
    assert_eq!(Geometry::new(0, 0, SectorSize::B512), Err(GeometryError::ZeroCapacity));
    let odd = Geometry::new(0, 5000, SectorSize::B512);
    assert_eq!(odd, Err(GeometryError::CapacityNotMultiple { capacity_bytes: 5000, sector_bytes: 512 }));
    assert_eq!(SectorSize::from_bytes(1024), Err(GeometryError::SectorSize(1024)));
    let region = Region::anonymous(8192).expect("memory for a small region");
    for (start, capacity) in [(0, 12_288), (8192, 512), (u64::MAX - 511, 512)] {
        let geometry = Geometry::new(start, capacity, SectorSize::B512).expect("sound by itself");
        assert!(matches!(Engine::new(&region, geometry), Err(GeometryError::OutsideRegion { .. })));
    }
}

#[test]
fn ordinary_file_reports_write_cache() {
    // Not in /tmp, which may be memory and so not in the page domain.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let options = pm_core::RegionOptions::new();
    let region = options.create(dir.path().join("disk"), CAPACITY);
    let region = Counting::new(region.expect("a small file"));
    let geometry = Geometry::new(0, CAPACITY, SectorSize::B512).expect("a possible geometry");
    let engine = Engine::new(region, geometry).expect("the device lies in its region");
    assert_eq!(engine.write_cache(), WriteCache::WriteBack);
    assert_eq!(cost(&engine, 0, BlockOp::Write { data: &[1; 4096], fua: false }).fences, 0);
    assert_eq!(cost(&engine, 0, BlockOp::Write { data: &[1; 4096], fua: true }).fences, 1);
    assert_eq!(cost(&engine, 0, BlockOp::Flush).fences, 1);
}

#[derive(Clone, Debug)]
enum Request {
    Read { sector: u64, count: u64 },
    Write { sector: u64, count: u64, byte: u8, fua: bool },
    Zero { sector: u64, count: u64, discard: bool },
    Flush,
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let sectors = CAPACITY / 512;
    let range = move || (0..sectors).prop_flat_map(move |s| (Just(s), 0..=(sectors - s).min(64)));
    let request = prop_oneof![
        range().prop_map(|(sector, count)| Request::Read { sector, count }),
        (range(), any::<u8>(), any::<bool>()).prop_map(|((sector, count), byte, fua)| Request::Write {
            sector,
            count,
            byte,
            fua
        }),
        (range(), any::<bool>()).prop_map(|((sector, count), discard)| Request::Zero {
            sector,
            count,
            discard
        }),
        Just(Request::Flush),
    ];
    prop::collection::vec(request, 1..40)
}

proptest! {
    #[test]
    fn request_sequences_match_vector(requests in requests()) {
        let engine = engine(SectorSize::B512);
        let mut oracle = vec![0_u8; usize::try_from(CAPACITY).expect("small")];
        let bytes = |sector: u64, count: u64| {
            let start = usize::try_from(sector * 512).expect("small");
            start..start + usize::try_from(count * 512).expect("small")
        };
        for request in requests {
            match request {
                Request::Read { sector, count } => {
                    let range = bytes(sector, count);
                    let mut out = vec![0xCC; range.len()];
                    prop_assert_eq!(engine.execute(sector * 512, BlockOp::Read { out: &mut out }), Ok(()));
                    prop_assert_eq!(&out, &oracle[range]);
                }
                Request::Write { sector, count, byte, fua } => {
                    let range = bytes(sector, count);
                    let data: Vec<u8> = (0..=u8::MAX).cycle().map(|i| i ^ byte).take(range.len()).collect();
                    prop_assert_eq!(engine.execute(sector * 512, BlockOp::Write { data: &data, fua }), Ok(()));
                    oracle[range].copy_from_slice(&data);
                }
                Request::Zero { sector, count, discard } => {
                    let len_bytes = count * 512;
                    let op = if discard { BlockOp::Discard { len_bytes } }
                        else { BlockOp::WriteZeroes { len_bytes, fua: false } };
                    prop_assert_eq!(engine.execute(sector * 512, op), Ok(()));
                    oracle[bytes(sector, count)].fill(0);
                }
                Request::Flush => prop_assert_eq!(engine.execute(0, BlockOp::Flush), Ok(())),
            }
        }
        let mut all = vec![0; oracle.len()];
        prop_assert_eq!(engine.execute(0, BlockOp::Read { out: &mut all }), Ok(()));
        prop_assert!(all == oracle);
    }
}
