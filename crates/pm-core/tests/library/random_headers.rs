//! Regions with random headers and root slots, valid and invalid. No call panics, and a pool that opens has the same state when it is opened again.

use crate::random::seeds;
use fastrand::Rng;
use pm_core::pool::format::{Header, MAGIC, RootSlot};
use pm_core::{HeaderState, Pmem, Pool, PoolOptions, Region, Uuid, bytes_of};

fn edge_case(rng: &mut Rng) -> u64 {
    match rng.u64(0..5) {
        0 => 0,
        1 => u64::MAX - rng.u64(0..3),
        2 => 1 << rng.u64(0..64),
        3 => (1 << 63) - 1 + rng.u64(0..3),
        _ => rng.u64(0..1 << 31) * 4096,
    }
}

fn header(rng: &mut Rng, end: u64, region_bytes: u64) -> Header {
    let pool_bytes = match rng.u64(0..5) {
        0 => edge_case(rng),
        1 => region_bytes,
        2 => 4096 * rng.u64(0..24),
        _ => end,
    };
    let data_start = if rng.u64(0..6) == 0 { edge_case(rng) } else { 8192 + 4096 * rng.u64(0..3) };
    let uuid = u8::try_from(rng.u64(0..2)).unwrap();
    let bits = |rng: &mut Rng| if rng.u64(0..12) == 0 { edge_case(rng) } else { 0 };
    let header = Header {
        magic: MAGIC,
        version: if rng.u64(0..15) == 0 { 3 } else { 2 },
        header_bytes: 4096,
        features_compat: bits(rng),
        features_ro_compat: rng.u64(0..2) * rng.u64(0..2),
        features_incompat: bits(rng),
        uuid: [uuid; 16],
        generation: if rng.u64(0..3) == 0 { edge_case(rng) } else { rng.u64(0..4) },
        pool_bytes,
        data_start,
        data_bytes: pool_bytes.wrapping_sub(4096).wrapping_sub(data_start),
        roots_start: 4096,
        root_count: 64,
        created_s: edge_case(rng),
        reserved: [0; 3980],
        crc: 0,
    };
    let mut header = header.sealed();
    if rng.u64(0..6) == 0 {
        header.crc ^= 1;
    }
    header
}

/// A region with valid and invalid headers on some pages, and with random root slots.
fn random_region(rng: &mut Rng) -> Region {
    let pages = 4 + rng.u64(0..12);
    let region_bytes = pages * 4096;
    let region = Region::anonymous(region_bytes).unwrap();
    for page in 0..pages {
        let chance = if page == 0 || page == pages - 1 { 2 } else { 4 };
        match rng.u64(0..chance) {
            0 => {
                let end = if page == 0 { region_bytes - 4096 * rng.u64(0..2) } else { (page + 1) * 4096 };
                region.store(page * 4096, bytes_of(&header(rng, end, region_bytes)));
            }
            1 if rng.u64(0..4) == 0 => {
                region.store(page * 4096, &[u8::try_from(rng.u64(0..256)).unwrap(); 100])
            }
            _ => {}
        }
    }
    for index in 0..64 {
        let mut slot = RootSlot::FREE;
        if rng.u64(0..2) == 0 {
            slot = RootSlot {
                crc: 0,
                state: u32::try_from(rng.u64(0..4)).unwrap(),
                generation: edge_case(rng),
                target_offset: edge_case(rng),
                target_bytes: 8,
                layout: <u64 as pm_core::Persist>::LAYOUT,
                name: [u8::try_from(rng.u64(0..256)).unwrap() * u8::try_from(rng.u64(0..2)).unwrap(); 24],
            };
            slot = if rng.u64(0..4) == 0 { slot } else { slot.sealed() };
        }
        region.store(4096 + 64 * index, bytes_of(&slot));
    }
    region
}

#[test]
fn no_region_contents_cause_a_panic() {
    let (mut opened, mut extended) = (0, 0);
    for seed in seeds(4_000) {
        let mut rng = Rng::with_seed(seed);
        let region = random_region(&mut rng);
        let region_bytes = region.len_bytes();
        if let Ok(reader) = Pool::attach_read_only(&region) {
            // None of these calls may panic.
            drop((reader.roots(), reader.find_root("a"), reader.corrupted_root_count()));
        }
        let read = Pool::attach_read_only(&region).map(|pool| (pool.uuid(), pool.pool_bytes(), pool.data()));
        match Pool::attach(&region) {
            Ok(mut pool) => {
                opened += 1;
                assert_eq!(read.unwrap(), (pool.uuid(), pool.pool_bytes(), pool.data()), "seed {seed}");
                let before = pool.roots();
                for root in &before {
                    pool.scope(|pm| pm.root::<u64>(root.name()).map(drop).is_ok());
                }
                let set_result = pool.scope(|pm| {
                    let place = pm.claim(pool.data().start).unwrap();
                    pm.set_root_in_flight("zz", pm.flush(pm.write(place, &seed))).map(drop)
                });
                if set_result.is_ok() {
                    assert_eq!(
                        pool.scope(|pm| pm.read(pm.root::<u64>("zz").unwrap().unwrap()).unwrap()),
                        seed,
                        "seed {seed}"
                    );
                    pool.remove_root("zz").unwrap();
                    let found = pool.find_root("zz");
                    assert!(!matches!(found, Ok(Some(_))), "seed {seed}: {found:?}");
                }
                let found = (pool.uuid(), pool.pool_bytes(), pool.roots());
                drop(pool);
                pool = Pool::attach(&region).unwrap();
                assert_eq!(found, (pool.uuid(), pool.pool_bytes(), pool.roots()), "seed {seed}");
                assert_eq!(pool.header_state(), HeaderState::Intact, "seed {seed}");
                pool.extend().unwrap();
                extended += 1;
                drop(pool);
                let pool = Pool::attach(&region).unwrap();
                assert_eq!((found.0, region_bytes), (pool.uuid(), pool.pool_bytes()), "seed {seed}");
                assert_eq!(pool.header_state(), HeaderState::Intact);
            }
            // Format may fail or create a pool, but must not panic.
            Err(_) => drop(Pool::format(&region, &PoolOptions::new().uuid(Uuid::from_bytes([7; 16])))),
        }
        let pool =
            Pool::format(&region, &PoolOptions::new().uuid(Uuid::from_bytes([8; 16])).overwrite()).unwrap();
        assert!(pool.roots().is_empty());
        drop(pool);
        // The first header is lost: the backup is found. Both are lost: no older pool is found.
        region.store(0, &[0xDE; 4096]);
        assert_eq!(Pool::attach_read_only(&region).unwrap().uuid(), Uuid::from_bytes([8; 16]), "seed {seed}");
        region.store(region_bytes - 4096, &[0xDE; 64]);
        assert!(Pool::attach_read_only(&region).is_err(), "seed {seed}: an older pool is back");
    }
    println!("{opened} opened, {extended} extended");
}
