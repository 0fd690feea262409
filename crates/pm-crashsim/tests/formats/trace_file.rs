//! Trace files: the bytes themselves, that everything comes back, and what is refused.

use crate::common::*;
use pm_crashsim::{EventKind, IllegalCrash, SourceLocation, Survivor, TraceError};
use std::fmt::Write as _;

/// A file whose events and data do not depend on where this test's source stands.
fn small() -> TraceFile {
    let mut image = vec![0; 256];
    image[64..72].copy_from_slice(b"the past");
    let pmem = SimPmem::recording(&Image::from_bytes(image), Model::Px86Line);
    pmem.store(60, b"straddle");
    pmem.flush(60, 8);
    pmem.fence().unwrap();
    pmem.store_nt(128, &[0xab; 8]);
    pmem.compare_exchange_u64(192, 0, 1).unwrap();
    pmem.ack();
    pmem.to_trace_file().with_message("why")
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for row in bytes.chunks(16) {
        for byte in row {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

/// Every byte, as docs/format/trace.md describes them. The places in the source are put in by hand.
#[test]
fn golden_bytes_of_a_small_file() {
    let mut line = 0;
    let trace = small().trace().relocated(|_| {
        line += 1;
        SourceLocation::new("a.rs", line, 5)
    });
    let file = TraceFile::new(Model::Px86Line, small().start().clone(), trace);
    let file =
        file.with_message("why").crashed(2, vec![Survivor { event: 0, word: 8, first_byte: 0 }]).unwrap();
    let golden: Vec<u8> = [
        b"PMCTRACE".as_slice(),
        &[1, 0, 2, 2, 0, 0, 0, 0],
        &[0, 1, 0, 0, 0, 0, 0, 0],
        &[1],       // one crash
        &[1, 1, 1], // one span of lines: after a gap of one, of one
        b"the past",
        &[0; 56],
        &[6], // six events
        // A store, at a location that is new, in a file that is new.
        &[0x22, 0, 0, 4, b'a', b'.', b'r', b's', 1, 5, 120, 8],
        b"straddle",
        // A flush, 8 bytes back.
        &[0x25, 1, 0, 2, 5, 15, 8],
        &[0x27, 2, 0, 3, 5],
        &[0x23, 3, 0, 4, 5, 120, 8],
        &[0xab; 8],
        &[0x24, 4, 0, 5, 5, 112, 8, 1, 0, 0, 0, 0, 0, 0, 0],
        &[0x29, 5, 0, 6, 5],
        &[2, 1, 0, 16], // a crash after two events; one survivor, of event 0, word 8
        &[3],
        b"why",
    ]
    .concat();
    let bytes = file.to_bytes();
    let (body, crc) = bytes.split_at(bytes.len() - 4);
    assert_eq!(hex(body), hex(&golden));
    assert_eq!(crc, crc32c::crc32c(&golden).to_le_bytes());
}

/// One that stores a pair of words in one piece.
fn of_a_pair() -> TraceFile {
    let pmem = SimPmem::recording(&Image::zeroed(256), Model::Px86Line);
    pmem.store_u128(16, u128::from_le_bytes(*b"the pair of them"));
    let trace = pmem.to_trace_file().trace().relocated(|_| SourceLocation::new("a.rs", 1, 5));
    TraceFile::new(Model::Px86Line, Image::zeroed(256), trace)
}

/// Only such a file has version 2: what has none can still be read where version 1 alone is known.
#[test]
fn golden_bytes_of_a_pair_are_version_two() {
    let golden: Vec<u8> = [
        b"PMCTRACE".as_slice(),
        &[2, 0, 2, 2, 0, 0, 0, 0],
        &[0, 1, 0, 0, 0, 0, 0, 0],
        &[0, 0, 1], // no crashes, no lines, one event
        &[0x2a, 0, 0, 4, b'a', b'.', b'r', b's', 1, 5, 32, 16],
        b"the pair of them",
        &[0],
    ]
    .concat();
    let bytes = of_a_pair().to_bytes();
    assert_eq!(hex(&bytes[..bytes.len() - 4]), hex(&golden));
    let back = TraceFile::from_bytes(&bytes).unwrap();
    assert_eq!(back.to_bytes(), bytes);
    let EventKind::StoreU128 { offset: 16, data } = back.trace().events()[0].kind else { panic!("a pair") };
    assert_eq!(back.trace().data(data), b"the pair of them");

    let refused = |at: usize, byte: u8| invalid_at(refused(&golden, &|bytes| bytes[at] = byte));
    assert_eq!(refused(8, 1), 8, "version 1 has no such event");
    assert_eq!(refused(27, 0x22), 8, "a store of 16 bytes is in version 1");
    assert_eq!(refused(37, 16), 27, "at offset 8, which is not a multiple of 16");
    assert_eq!(refused(38, 8), 27, "half a pair");
}

#[test]
fn half_a_pair_survives_under_the_weakest_model_only() {
    let (low, high) = [2, 3].map(|word| Survivor { event: 0, word, first_byte: 0 }).into();
    for model in Model::ALL {
        let file = of_a_pair().under(model);
        assert!(file.crashed(1, vec![]).is_ok() && file.crashed(1, vec![low, high]).is_ok());
        for half in [low, high] {
            let crashed = file.crashed(1, vec![half]).map(|_| ());
            let expected = if model == Model::Chunk8 { Ok(()) } else { Err(IllegalCrash::Halved(half)) };
            assert_eq!(crashed, expected, "{model}");
        }
    }
}

#[test]
fn file_roundtrips() {
    let file = small();
    let back = TraceFile::from_bytes(&file.to_bytes()).unwrap();
    assert_eq!(back.to_bytes(), file.to_bytes());
    assert_eq!((back.model(), back.message()), (Model::Px86Line, "why"));
    assert_eq!(back.start().to_bytes(), file.start().to_bytes());
    let events = file.trace().events().iter().zip(back.trace().events());
    for (number, (event, back_event)) in events.enumerate() {
        assert_eq!(
            (event.kind.name(), event.kind.extent()),
            (back_event.kind.name(), back_event.kind.extent())
        );
        assert_eq!(event.thread, back_event.thread);
        assert_eq!(file.trace().location_of(number), back.trace().location_of(number));
    }
    let EventKind::Store { data, .. } = back.trace().events()[0].kind else { panic!("a store is first") };
    assert_eq!(back.trace().data(data), b"straddle");
}

/// Copies a value to its place, and forgets to flush the copy before it drops the original: wrong at the second crash.
fn forgetful_recovery(crash: &Crash<u64>) -> Result<(), String> {
    let pmem = crash.pmem();
    if pmem.load_u64(0) == 1 {
        pmem.store_u64(128, pmem.load_u64(64));
        pmem.put(0, 2).unwrap(); // teeth: it is stored too early in any case
        pmem.persist(128, 8).unwrap(); // teeth: too late: the planted bug
    }
    match (pmem.load_u64(0), pmem.load_u64(128)) {
        (0, _) | (2, 7) => Ok(()),
        (_, found) => Err(format!("{found} was found")),
    }
}

#[test]
fn failure_of_nested_crashes_roundtrips() {
    let operation = |run: &Run<u64>| {
        run.pmem().put(64, 7).unwrap();
        run.pmem().put(0, 1).unwrap(); // teeth: a crash may keep it without
    };
    let explorer = Explorer::new(Model::Chunk8).strict_ack(true);
    let failure = explorer.explore(&Image::zeroed(1 << 20), operation, forgetful_recovery).unwrap_err();
    let file = TraceFile::from_failure(&failure).unwrap();
    let bytes = file.to_bytes();
    assert!(bytes.len() < 400, "a region of zeros costs nothing, and this takes {}", bytes.len());
    let back = TraceFile::from_bytes(&bytes).unwrap();
    assert_eq!(back.to_bytes(), bytes);
    assert_eq!(back.message(), "0 was found");
    assert_eq!(back.crashes().len(), 2);

    // The first crash leaves what the recovery started from, and the second what failed.
    let [first, second] = back.crashes() else { panic!("two crashes") };
    assert_eq!(first.image().unwrap().to_bytes(), second.start().to_bytes());
    let left = SimPmem::from_image(&second.image().unwrap(), back.model());
    assert_eq!((left.load_u64(0), left.load_u64(64), left.load_u64(128)), (2, 7, 0));
    for (record, report) in back.crashes().iter().zip(&failure.crashes) {
        assert_eq!(record.image().unwrap().to_bytes(), report.record.image().unwrap().to_bytes());
        assert_eq!(record.events(), report.record.events());
    }
}

#[test]
fn trace_from_a_file_is_explored_like_the_run() {
    let check = |crash: &Crash<()>| match (crash.pmem().load_u64(192), crash.acked()) {
        (0 | 1, []) | (1, [()]) => Ok(()),
        (found, acked) => Err(format!("{found} after {} acknowledgements", acked.len())),
    };
    let file = TraceFile::from_bytes(&small().to_bytes()).unwrap();
    let failure = Explorer::of(&file).explore_trace(&file, check).unwrap_err();
    assert_eq!(failure.message, "0 after 1 acknowledgements", "the exchange was never flushed");
    let again = Explorer::of(&file).try_replay(failure.replay.as_ref().unwrap()).unwrap();
    assert_eq!(again.explore_trace(&file, check).unwrap_err().message, failure.message);
    assert!(Explorer::of(&file).try_replay("page:0:1.1").is_none(), "another model's");

    let coverage = Explorer::of(&file).explore_trace(&file, |_| ()).unwrap();
    let points = file.crash_points();
    assert_eq!(coverage.levels[0].points, points.len() as u64);
    assert_eq!(coverage.levels[0].legal, points.iter().map(|point| point.legal).sum::<u128>());
}

#[test]
fn other_files_are_distinguished_from_corrupted_ones() {
    let good = small().to_bytes();
    let read = |bytes: &[u8]| TraceFile::from_bytes(bytes).unwrap_err();
    assert!(matches!(read(b""), TraceError::NotATrace { found } if found.is_empty()));
    assert!(matches!(read(b"PMCTRAIN and more"), TraceError::NotATrace { .. }));
    assert!(matches!(read(&good[..20]), TraceError::Truncated { offset: 20, .. }));

    let mut newer = good.clone();
    newer[8] = 4;
    assert!(matches!(read(&newer), TraceError::UnsupportedVersion { found: 4, supported: 3 }));
    for at in 10..good.len() {
        let mut corrupted = good.clone();
        corrupted[at] ^= 0x10;
        assert!(matches!(read(&corrupted), TraceError::Checksum { .. }), "byte {at}");
        assert!(matches!(read(&good[..at]), TraceError::Truncated { .. } | TraceError::Checksum { .. }));
    }
    assert!(matches!(
        TraceFile::from_bytes_within(&good, 192).unwrap_err(),
        TraceError::TooLarge { found: 256, limit: 192 }
    ));
}

/// The error for a file's body with that change, and with the right checksum, so that the body is what is refused.
fn refused(body: &[u8], change: &dyn Fn(&mut Vec<u8>)) -> TraceError {
    let mut bytes = body.to_vec();
    change(&mut bytes);
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    TraceFile::from_bytes(&bytes).unwrap_err()
}

fn invalid_at(error: TraceError) -> u64 {
    match error {
        TraceError::Invalid { offset, .. } => offset,
        other => panic!("{other}"),
    }
}

#[test]
fn invalid_contents_are_refused() {
    let good = small().to_bytes();
    let body = &good[..good.len() - 4];
    let refused = |change: &dyn Fn(&mut Vec<u8>)| refused(body, change);
    assert_eq!(invalid_at(refused(&|bytes| bytes[10] = 9)), 10, "no such model");
    assert_eq!(invalid_at(refused(&|bytes| bytes[11] = 0x80)), 11, "no such flag");
    assert_eq!(invalid_at(refused(&|bytes| bytes[13] = 1)), 13, "reserved");
    assert_eq!(invalid_at(refused(&|bytes| bytes[16] = 1)), 16, "a ragged region");
    assert_eq!(invalid_at(refused(&|bytes| bytes[27] = 4)), 27, "a span outside of the region");
    assert_eq!(invalid_at(refused(&|bytes| bytes[28..36].fill(0))), 28, "a line of zeros");
    assert_eq!(invalid_at(refused(&|bytes| bytes[93] = 0x2f)), 93, "no such event");
    assert_eq!(invalid_at(refused(&|bytes| bytes.push(0))), body.len() as u64, "more than there is");
    let huge = refused(&|bytes| bytes[16..24].copy_from_slice(&(1_u64 << 62).to_le_bytes()));
    assert!(matches!(huge, TraceError::TooLarge { .. }));
    let endless = refused(&|bytes| {
        bytes.truncate(92);
        bytes.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x7f]);
    });
    assert!(matches!(endless, TraceError::Truncated { .. }), "2^35 events in no bytes");
}

#[test]
fn filtered_trace_has_the_chosen_events_and_their_data() {
    let file = small().filtered(|_, event| event.kind.is_store());
    let names: Vec<&str> = file.trace().events().iter().map(|event| event.kind.name()).collect();
    assert_eq!(names, ["store", "store_nt", "exchange"]);
    let EventKind::StoreNt { data, .. } = file.trace().events()[1].kind else { panic!("a store_nt") };
    assert_eq!(file.trace().data(data), [0xab; 8]);
    assert!(file.crashed(3, vec![Survivor { event: 0, word: 7, first_byte: 4 }]).is_ok());
}

#[test]
fn illegal_crashes_are_refused() {
    let pmem = SimPmem::recording(&Image::zeroed(128), Model::Px86Line);
    pmem.store_u64(0, 1);
    pmem.store_u64(8, 2);
    pmem.persist(0, 8).unwrap();
    pmem.store_u64(0, 3);
    pmem.store_u64(8, 4);
    let file = pmem.to_trace_file();
    let kept = |event: usize| Survivor { event, word: event as u64 % 2, first_byte: 0 };
    let (third, fourth) =
        (Survivor { event: 4, word: 0, first_byte: 0 }, Survivor { event: 5, word: 1, first_byte: 0 });
    assert!(file.crashed(2, vec![kept(0), kept(1)]).is_ok());
    assert_eq!(
        file.crashed(0, vec![kept(0)]).unwrap_err(),
        IllegalCrash::NotPending(kept(0)),
        "not stored yet"
    );
    assert_eq!(
        file.crashed(6, vec![kept(0)]).unwrap_err(),
        IllegalCrash::NotPending(kept(0)),
        "durable for sure"
    );
    assert!(file.crashed(6, vec![third]).is_ok());
    assert_eq!(file.crashed(6, vec![fourth]).unwrap_err(), IllegalCrash::OutOfOrder(fourth));
    assert!(file.clone().under(Model::Px86Loc).crashed(6, vec![fourth]).is_ok());
}

#[test]
fn surviving_piece_of_a_word_roundtrips() {
    let pmem = SimPmem::recording(&Image::zeroed(64), Model::Px86Line);
    pmem.store(0, b"seven B");
    pmem.store(12, b"four");
    let piece = |event: usize, word: u64, first_byte: u8| Survivor { event, word, first_byte };
    let file = pmem.to_trace_file();
    assert_eq!(file.pending(2), [piece(0, 0, 0), piece(0, 0, 4), piece(0, 0, 6), piece(1, 1, 4)]);
    let crashed = file.with_message("why").crashed(2, vec![piece(0, 0, 4), piece(0, 0, 0)]).unwrap();
    let read = TraceFile::from_bytes(&crashed.to_bytes()).unwrap();
    assert_eq!(read.to_bytes(), crashed.to_bytes());
    assert_eq!(read.crashes()[0].kept(), [piece(0, 0, 0), piece(0, 0, 4)]);
    assert_eq!(&read.crashes()[0].image().unwrap().to_bytes()[..8], b"seven \0\0");
    let file = pmem.to_trace_file();
    assert!(
        matches!(file.crashed(2, vec![piece(0, 0, 5)]), Err(IllegalCrash::NotPending(_))),
        "no piece begins there"
    );
}
