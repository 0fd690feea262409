//! Logs of pmemcheck: the events of each record, and the crashes found in them.

use crate::common::*;
use pm_crashsim::import::{ImportError, Imported, PmemcheckOptions, RecordError, pmemcheck};

const PUBLISH: &str = include_str!("../fixtures/pmemcheck.log");
const APPEND: &str = include_str!("../fixtures/pmemcheck_stacktraces.log");
/// With messages in the middle of records, as the tool writes them, and a child's.
const MESSAGES: &str = include_str!("../fixtures/pmemcheck_messages.log");

fn import(log: &str, options: &PmemcheckOptions) -> Result<Imported, ImportError> {
    pmemcheck(log.as_bytes(), options)
}

/// Each event's kind, its offset and length if it has them, and its place.
fn events(imported: &Imported) -> Vec<String> {
    let trace = imported.file.trace();
    let described = |(number, event): (usize, &pm_crashsim::Event)| {
        let extent = event.kind.extent().map(|(offset, len)| format!(" {offset:#x}+{len}"));
        format!("{}{}, {}", event.kind.name(), extent.unwrap_or_default(), trace.location_of(number))
    };
    trace.events().iter().enumerate().map(described).collect()
}

/// The flag promises the value.
fn check(crash: &Crash<()>) -> Result<(), String> {
    let pmem = crash.pmem();
    match (pmem.load_u64(0), pmem.load_u64(64), crash.acked()) {
        (0, _, []) | (1, 7, _) => Ok(()),
        (flag, value, acked) => Err(format!("flag {flag}, value {value} after {} operations", acked.len())),
    }
}

#[test]
fn correct_publication_survives_every_crash() {
    let imported = import(PUBLISH, &PmemcheckOptions::new().ack_at("publish.END")).unwrap();
    assert_eq!(imported.file.start().len_bytes(), 4096);
    assert_eq!(
        imported.tally.to_string(),
        "2 stores, 2 flushes, 2 fences, 1 acknowledgements, 1 markers, 1 stores outside of the region"
    );
    let coverage = Explorer::of(&imported.file).explore_trace(&imported.file, check).unwrap();
    assert!(coverage.is_exhaustive());
    assert_eq!(coverage.levels[0].points, 3, "before each fence, and after the end of the operation");
}

#[test]
fn each_flush_of_the_log_is_needed() {
    for redundant in ["|FLUSH;0x4a40040;0x40", "|FLUSH;0x4a40000;0x40"] {
        let log = PUBLISH.replace(redundant, "");
        let imported = import(&log, &PmemcheckOptions::new().ack_at("publish.END")).unwrap();
        assert!(Explorer::of(&imported.file).explore_trace(&imported.file, check).is_err(), "{redundant}");
    }
}

#[test]
fn places_come_from_stack_traces_and_offsets_from_the_chosen_file() {
    let options = PmemcheckOptions::new().file("/dev/shm/log").ack_at("append.END").model(Model::Chunk8);
    let imported = import(APPEND, &options).unwrap();
    assert_eq!((imported.file.model(), imported.file.start().len_bytes()), (Model::Chunk8, 0x3000));
    assert_eq!(
        events(&imported),
        [
            "store 0x1038+8, append.c:41",
            "store 0x1040+8, append.c:42",
            "flush 0x1000+64, unknown place",
            "flush 0x1040+64, unknown place",
            "fence, unknown place",
            "store 0x1000+2, append.c:45",
            "flush 0x1000+64, unknown place",
            "fence, unknown place",
            "acknowledgement, append.END",
        ]
    );
    assert_eq!((imported.tally.stores_outside, imported.tally.markers), (1, 2));
}

#[test]
fn messages_do_not_change_the_trace() {
    let imported = import(MESSAGES, &PmemcheckOptions::new().ack_at("publish.END")).unwrap();
    assert_eq!(
        events(&imported),
        [
            "store 0x40+8, publish.c:10",
            "flush 0x40+64, unknown place",
            "fence, unknown place",
            "store 0x0+8, publish.c:13",
            "flush 0x0+64, unknown place",
            "fence, unknown place",
            "acknowledgement, publish.END",
        ]
    );
    assert!(Explorer::of(&imported.file).explore_trace(&imported.file, check).unwrap().is_exhaustive());
}

#[test]
fn log_of_two_programs_is_refused() {
    let log = MESSAGES.replace("==502== ERROR", "==502== START|FENCE\n==502== ERROR");
    assert!(matches!(import(&log, &PmemcheckOptions::new()), Err(ImportError::SeveralStarts { line: 12 })));
}

#[test]
fn ambiguous_logs_need_options() {
    let plain = PmemcheckOptions::new();
    assert!(
        matches!(import(APPEND, &plain), Err(ImportError::SeveralFiles { second, .. }) if second.ends_with("other"))
    );
    assert!(matches!(import("==1== nothing\n", &plain), Err(ImportError::NoStart)));
    let unfinished = &PUBLISH[..PUBLISH.find("|STOP").unwrap()];
    assert!(matches!(import(unfinished, &plain), Err(ImportError::NoStop { line: 6 })));
    assert_eq!(import(unfinished, &plain.clone().unfinished(true)).unwrap().tally.stores, 2);
    assert!(matches!(import("START|STORE;0x40;0x1;0x8|STOP", &plain), Err(ImportError::NoRegion)));
    let given = plain.clone().region(0x40, 100);
    let imported = import("START|STORE;0x40;0x1;0x8|FLUSH;0x0;0x1000|STOP", &given).unwrap();
    assert_eq!(imported.file.start().len_bytes(), 128);
    assert_eq!(imported.file.trace().events()[1].kind.extent(), Some((0, 100)), "as much as is inside");
    let small = plain.start(Image::zeroed(64));
    assert!(matches!(import(PUBLISH, &small), Err(ImportError::TooLarge { found: 4096, limit: 64 })));
}

#[test]
fn cut_log_ends_with_its_last_whole_record() {
    let plain = PmemcheckOptions::new().region(0, 128);
    let cut = "START|STORE;0x0;0x1;0x8|FENCE|STORE;0x40;0x1;0x1";
    assert!(matches!(import(cut, &plain), Err(ImportError::NoStop { line: 1 })));
    assert_eq!(
        events(&import(cut, &plain.unfinished(true)).unwrap()).len(),
        2,
        "0x10 bytes, it may have been"
    );
}

#[test]
fn store_across_two_mappings_is_split() {
    let log = |second: &str| {
        format!("START|REGISTER_FILE;/f;0x1000;0x40;0x0|{second}|STORE;0x103c;0x807060504030201;0x8|STOP")
    };
    let extents = |log: &str| -> Vec<_> {
        let imported = import(log, &PmemcheckOptions::new()).unwrap();
        assert_eq!((imported.tally.stores, imported.tally.stores_outside), (1, 0));
        let bytes = imported.file.trace().events().iter().map(|event| match event.kind {
            pm_crashsim::EventKind::Store { offset, data } => {
                (offset, imported.file.trace().data(data).to_vec())
            }
            other => panic!("{other:?}"),
        });
        bytes.collect()
    };
    let apart = extents(&log("REGISTER_FILE;/f;0x1040;0x40;0x80"));
    assert_eq!(apart, [(0x3c, vec![1, 2, 3, 4]), (0x80, vec![5, 6, 7, 8])]);
    let together = extents(&log("REGISTER_FILE;/f;0x1040;0x40;0x40"));
    assert_eq!(together, [(0x3c, vec![1, 2, 3, 4, 5, 6, 7, 8])]);
}

#[test]
fn unaligned_mapping_is_refused() {
    let plain = PmemcheckOptions::new();
    let log = "START|REGISTER_FILE;/f;0x1010;0x40;0x0|STOP";
    assert!(matches!(import(log, &plain), Err(ImportError::Unaligned { address: 0x1010, offset: 0 })));
    assert!(import("START|REGISTER_FILE;/f;0x1010;0x40;0x50|STOP", &plain).is_ok());
    let unaligned = plain.region(0x48, 64);
    assert!(matches!(
        import("START|STOP", &unaligned),
        Err(ImportError::Unaligned { address: 0x48, offset: 0 })
    ));
}

#[test]
fn invalid_record_is_named() {
    let log = PUBLISH.replace("|STORE;0x4a40000;0x1;0x4", "|\nSTORY;0x4a40000");
    match import(&log, &PmemcheckOptions::new()).unwrap_err() {
        ImportError::Record { line: 7, record: 6, text, error: RecordError::Unknown } => {
            assert_eq!(text, "STORY;0x4a40000");
        }
        other => panic!("{other:?}"),
    }
    let imported = import(&log, &PmemcheckOptions::new().skip_unknown(true)).unwrap();
    assert_eq!((imported.tally.unknown, imported.tally.stores), (1, 1));
    let log = PUBLISH.replace("0x7;0x8", "0x7;0x0");
    let error = import(&log, &PmemcheckOptions::new().skip_unknown(true)).unwrap_err();
    assert!(matches!(error, ImportError::Record { error: RecordError::StoreSize { .. }, .. }), "{error:?}");
}
