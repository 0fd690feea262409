//! Corrupted trace files and logs: 20,000 of them, each an error or valid. `cargo xtask fuzz` tries more.

use crate::common::*;
use pm_crashsim::import::{PmemcheckOptions, pmemcheck};
use proptest::prelude::*;
use std::sync::LazyLock;

const REGION_BYTES: u64 = 16 << 10;

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Mutation {
    /// One bit.
    Flip(usize, u8),
    /// One byte.
    Set(usize, u8),
    Truncate(usize),
    Remove(usize, usize),
    Repeat(usize, usize),
    /// The end of another valid file.
    Splice(usize, usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Reduced to what there is when it is applied.
    let at = || 0_usize..1 << 12;
    prop_oneof![
        4 => (at(), 0_u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        4 => (at(), prop_oneof![any::<u8>(), Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff)])
            .prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => at().prop_map(Mutation::Truncate),
        2 => (at(), 1_usize..16).prop_map(|(at, len)| Mutation::Remove(at, len)),
        2 => (at(), 1_usize..16).prop_map(|(at, len)| Mutation::Repeat(at, len)),
        1 => (at(), any::<usize>(), at()).prop_map(|(at, other, from)| Mutation::Splice(at, other, from)),
    ]
}

fn mutate(seeds: &[Vec<u8>], chosen: usize, mutations: &[Mutation]) -> Vec<u8> {
    let mut bytes = seeds[chosen % seeds.len()].clone();
    for mutation in mutations {
        let len = bytes.len();
        if len == 0 {
            break;
        }
        match *mutation {
            Mutation::Flip(at, bit) => bytes[at % len] ^= 1 << bit,
            Mutation::Set(at, byte) => bytes[at % len] = byte,
            Mutation::Truncate(at) => bytes.truncate(at % len),
            Mutation::Remove(at, count) => drop(bytes.drain(at % len..(at % len + count).min(len))),
            Mutation::Repeat(at, count) => {
                let part = bytes[at % len..(at % len + count).min(len)].to_vec();
                bytes.splice(at % len..at % len, part);
            }
            Mutation::Splice(at, other, from) => {
                let other = &seeds[other % seeds.len()];
                bytes.truncate(at % len);
                bytes.extend_from_slice(&other[from % other.len()..]);
            }
        }
    }
    bytes
}

/// A run of everything that can be recorded, under each model, and a failure of nested crashes.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut files: Vec<Vec<u8>> = Model::ALL
        .into_iter()
        .map(|model| {
            let pmem = SimPmem::recording(&Image::zeroed(4096), model);
            pmem.store(60, b"straddle");
            // teeth: recorded for its trace, which nothing checks
            pmem.flush(60, 8);
            // teeth: recorded for its trace, which nothing checks
            pmem.fence().unwrap();
            pmem.store_nt(132, &[0xab; 24]);
            pmem.store_u128(160, 1 << 64 | 2);
            pmem.compare_exchange_u64(192, 0, 1).unwrap();
            // teeth: recorded for its trace, which nothing checks
            pmem.clflush(192, 8);
            // teeth: recorded for its trace, which nothing checks
            pmem.mfence();
            std::thread::scope(|threads| threads.spawn(|| pmem.store_u64(256, 1)).join().unwrap());
            pmem.ack();
            pmem.to_trace_file().to_bytes()
        })
        .collect();
    let operation = |run: &Run<()>| run.pmem().store_u64(0, 1);
    let check = |crash: &Crash<()>| {
        crash.pmem().store_u64(128, 5);
        if crash.crashes() == 2 { Err("nested") } else { Ok(()) }
    };
    let failure = Explorer::default().explore(&Image::zeroed(4096), operation, check).unwrap_err();
    files.push(TraceFile::from_failure(&failure).unwrap().to_bytes());
    files
});

static LOGS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    [
        include_str!("../fixtures/pmemcheck.log"),
        include_str!("../fixtures/pmemcheck_stacktraces.log"),
        include_str!("../fixtures/pmemcheck_messages.log"),
    ]
    .map(|log| log.as_bytes().to_vec())
    .into()
});

/// Nothing in a trace makes the simulator panic.
fn walk(file: &TraceFile) {
    for point in file.crash_points() {
        assert!(point.legal > 0 && point.events <= file.trace().events().len());
    }
    for crash in file.crashes() {
        if let Ok(image) = crash.image() {
            assert_eq!(image.len_bytes(), file.start().len_bytes());
        }
    }
    Explorer::of(file).crashes(1).choices_per_point(4).explore_trace(file, |_| ()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn corrupted_trace_file_is_refused_or_valid(
        chosen: usize,
        mutations in prop::collection::vec(mutation(), 1..6),
        checksum in prop::bool::weighted(0.9),
    ) {
        let mut bytes = mutate(&FILES, chosen, &mutations);
        // Else next to nothing would be read beyond it.
        if let Some(body) = bytes.len().checked_sub(4).filter(|_| checksum) {
            let crc = crc32c::crc32c(&bytes[..body]);
            bytes[body..].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(file) = TraceFile::from_bytes_within(&bytes, REGION_BYTES) {
            prop_assert_eq!(file.to_bytes(), bytes, "there is one way to write it");
            walk(&file);
        }
    }

    #[test]
    fn corrupted_log_is_refused_or_a_valid_trace(
        chosen: usize,
        mutations in prop::collection::vec(mutation(), 1..6),
        skip_unknown: bool,
        unfinished: bool,
        chosen_file: bool,
    ) {
        let log = mutate(&LOGS, chosen, &mutations);
        let mut options = PmemcheckOptions::new()
            .start(Image::zeroed(REGION_BYTES))
            .skip_unknown(skip_unknown)
            .unfinished(unfinished)
            .ack_at("append.END");
        if chosen_file {
            options = options.file("/dev/shm/log");
        }
        if let Ok(imported) = pmemcheck(log.as_slice(), &options) {
            let bytes = imported.file.to_bytes();
            let back = TraceFile::from_bytes(&bytes).unwrap();
            prop_assert_eq!(back.to_bytes(), bytes);
            walk(&back);
        }
    }
}
