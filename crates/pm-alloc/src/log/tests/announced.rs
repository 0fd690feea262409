//! A crash while an entry is written over an older one. Recovery recognizes the incomplete line, even if a checksum matches its contents by chance.

use super::support::{at, exhaustive, image, layout, load, recover, words};
use crate::format::{LogEntry, Lsn, announce, announced, seal, unseal};
use crate::log::LaneGuard;
use crate::log::entry::{self, Line};
use core::cell::RefCell;
use core::ops::Range;
use pm_core::{Pmem, Region};
use pm_crashsim::{Crash, Image, Model, Run, SimPmem};
use pm_testkit::{Hook, Hooked};

const SEED: u64 = 7;
const AT: u64 = 64 * 91;
const PLACES: [u64; 8] = [AT, AT + 8, AT + 16, AT + 24, AT + 32, AT + 40, AT + 48, AT + 56];
/// The stores that write an entry: the announced LSN, seven words, and the sealed LSN.
const STORES: usize = 9;

/// Records the words of the line at [`AT`] after each store.
struct Recorder<'r> {
    region: &'r Region,
    states: RefCell<Vec<[u64; 8]>>,
}

impl Hook<&Region> for Recorder<'_> {
    fn after_store(&self, _: Range<u64>) {
        self.states.borrow_mut().push(PLACES.map(|at| self.region.load_u64(at)));
    }
}

fn words_of(entry: &LogEntry) -> [u64; 8] {
    let [a, b, c, d, e, f] = entry.data;
    [entry.target, a, b, c, d, e, f, entry.lsn]
}

fn entry_of([target, a, b, c, d, e, f, lsn]: [u64; 8]) -> LogEntry {
    LogEntry { target, data: [a, b, c, d, e, f], lsn }
}

fn sealed(mut entry: LogEntry, lsn: Lsn) -> LogEntry {
    entry.lsn = seal(lsn, SEED, AT, &words_of(&entry)[..7]);
    entry
}

/// An entry whose kind, length and contents depend on `number`.
fn some_entry(number: u64) -> LogEntry {
    let mut bytes = [0; 48];
    for (index, word) in (1..).zip(bytes.chunks_mut(8)) {
        word.copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(index).to_le_bytes());
    }
    let len = usize::try_from(1 + number / 3 % 48).unwrap();
    let mut entry = match number % 3 {
        0 => entry::undo(number, &bytes[..len]),
        1 => entry::redo(number, &bytes[..len]),
        _ => entry::words(&[(8 * number, number), (64, !number)][..len % 3]),
    };
    if number.is_multiple_of(5) && !number.is_multiple_of(3) {
        entry::make_commit(&mut entry, 1);
    }
    entry
}

/// Checks the line after each store, for more combinations of an old and a new entry than there are checksums. For many of them the checksum of the
/// announced LSN matches the old or mixed contents.
#[test]
fn line_is_not_an_entry_before_its_last_store() {
    let mut fitting = [0; STORES];
    let region = Region::anonymous(8192).unwrap();
    let recorder = Recorder { region: &region, states: RefCell::default() };
    let recording = Hooked { region: &region, hook: recorder };
    for number in 0..1 << 18 {
        let (before, lsn) = (Lsn::new(number), Lsn::new(number + (number << 20) + 1));
        let new = some_entry(number + 1);
        let old = match number % 7 {
            // The line is erased, or a kill has interrupted the writing of an entry.
            0 => LogEntry::erased(SEED, AT),
            1 => LogEntry { lsn: announce(before, SEED, AT), ..some_entry(number) },
            _ => sealed(some_entry(number), before),
        };
        PLACES.into_iter().zip(words_of(&old)).for_each(|(at, word)| region.store_u64(at, word));
        recording.hook.states.borrow_mut().clear();
        entry::write(&recording, SEED, AT, lsn, &new);
        let states = recording.hook.states.borrow();
        assert_eq!(states.len(), STORES, "one state after each store");
        for (cut, state) in states.iter().enumerate().take(STORES - 1) {
            let fits = seal(lsn, SEED, AT, &state[..7]) & 0xffff == state[7] & 0xffff;
            fitting[cut] += u64::from(fits);
            let line = Line::of(&entry_of(*state), SEED, AT);
            assert_eq!(line, Line::Announced(lsn), "entry {number} after {} stores", cut + 1);
        }
        let Line::Complete(entry) = Line::of(&entry_of(states[STORES - 1]), SEED, AT) else {
            panic!("entry {number} is not complete after its last store")
        };
        assert_eq!(entry.lsn, lsn);
        assert_eq!(entry_of(states[STORES - 1]), sealed(new, lsn));
    }
    println!("the announced LSN's checksum fits the contents after 1 to 9 stores: {fitting:?}");
    assert!(fitting[..STORES - 1].iter().all(|&count| count > 0), "{fitting:?}");
}

/// Checks every checksum, for several LSNs, among them the lowest and the highest.
#[test]
fn no_word_is_both_sealed_and_announced() {
    for lsn in [0, 1, 1 << 32, (1 << 46) + 5, Lsn::MAX.bits()] {
        for word in (0..1 << 16).map(|checksum| lsn << 16 | checksum) {
            for contents in [&[][..], &[0; 7], &[word; 7]] {
                let is_sealed = |word| unseal(word, SEED, AT, contents).is_some();
                let is_announced = |word| announced(word, SEED, AT).is_some();
                assert!(!is_announced(word) && !is_sealed(word | 1 << 63), "{word:#x}");
            }
        }
    }
}

/// A closed log. The first line of its ring holds an entry that stores `value` to a word whose current value is 3.
fn log_with_former_entry(value: u64) -> Image {
    image(|pmem| {
        let layout = layout(4);
        crate::log::format(pmem, &layout);
        let (mut log, _) = recover(pmem, &layout);
        for value in [value, 3] {
            LaneGuard::acquire(&log).commit(pmem, &words(&[(at(0), value)])).unwrap();
        }
        log.close(pmem).unwrap();
    })
}

#[test]
fn crash_inside_entry_restores_no_former_entry() {
    let layout = layout(4);
    let line = layout.entry_offset(0, 0);
    let write_over = |pmem: &SimPmem| {
        let (log, _) = recover(pmem, &layout);
        LaneGuard::acquire(&log).commit(pmem, &words(&[(at(1), 9)])).unwrap();
    };
    let pmem = SimPmem::from_image(&log_with_former_entry(1), Model::Px86Line);
    let former = words_of(&entry::read(&pmem, line));
    assert_eq!(former[1..3], [at(0), 1]);
    write_over(&pmem);
    let lsn = Lsn::new(entry::read(&pmem, line).lsn >> 16);
    // Finds a value for which the checksum of the new entry's announced LSN matches the contents of the former entry.
    let checksum_of = |contents: &[u64]| seal(lsn, SEED, line, contents) & 0xffff;
    let contents = |value| [former[0], former[1], value, former[3], former[4], former[5], former[6]];
    let value = (4..).find(|&value| checksum_of(&contents(value)) == checksum_of(&[])).unwrap();
    let before = log_with_former_entry(value);
    let check = |crash: &Crash<()>| {
        assert_eq!(recover(crash.pmem(), &layout).1.corrupted_entries, 0, "a crash looks like corruption");
        let found = load(crash.pmem(), [at(0), at(1)]);
        crash.expect(found, [[3, 0], [3, 9]].into_iter().skip(crash.acked().len()))
    };
    let operation = |run: &Run<()>| {
        write_over(run.pmem());
        run.ack(());
    };
    exhaustive(|explorer| explorer.kills(1).check(&before, operation, check));
}
