//! Compares a write set, and the entries that it is packed into, with a map of bytes.

use crate::format::LogEntry;
use crate::format::{Lsn, seal};
use crate::log::Writes;
use crate::log::entry::Entry;
use crate::log::writes::Packer;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SPAN: u64 = 400;

fn writes() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
    let word = (0..SPAN / 8, any::<[u8; 8]>()).prop_map(|(word, bytes)| (8 * word, bytes.to_vec()));
    let range = (0..SPAN, prop::collection::vec(any::<u8>(), 0..120));
    prop::collection::vec(prop_oneof![word, range], 0..12)
}

/// This entry, decoded as recovery decodes it, and the bytes that it stores.
fn stored(entry: &LogEntry, number: u64) -> (Entry, BTreeMap<u64, u8>) {
    let mut entry = *entry;
    let [a, b, c, d, e, f] = entry.data;
    entry.lsn = seal(Lsn::new(5), 7, 64 * number, &[entry.target, a, b, c, d, e, f]);
    let entry = Entry::of(&entry, 7, 64 * number).expect("it was sealed for this offset");
    let mut bytes = BTreeMap::new();
    entry.targets().for_each(|(offset, stored)| bytes.extend((offset..).zip(stored.iter().copied())));
    (entry, bytes)
}

proptest! {
    #[test]
    fn last_write_of_each_byte_counts(staged in writes(), from in 0..SPAN, len in 0..200_usize) {
        let (mut writes, mut bytes) = (Writes::default(), BTreeMap::new());
        for (offset, written) in &staged {
            match <[u8; 8]>::try_from(&written[..]) {
                Ok(word) if offset.is_multiple_of(8) => writes.word(*offset, u64::from_le_bytes(word)),
                _ => writes.bytes(*offset, written),
            }
            bytes.extend((*offset..).zip(written.iter().copied()));
        }
        if len % 3 == 0 {
            writes.remove(from, len as u64);
            (from..from + len as u64).for_each(|offset| {
                bytes.remove(&offset);
            });
        }
        prop_assert_eq!(writes.is_empty(), bytes.is_empty());

        let mut listed = BTreeMap::new();
        let mut end = 0;
        for (offset, written) in writes.iter() {
            prop_assert!(offset >= end && !written.is_empty(), "in order, disjoint, none empty");
            end = offset + written.len() as u64;
            listed.extend((offset..).zip(written.iter().copied()));
        }
        prop_assert_eq!(&listed, &bytes);

        let mut loaded = vec![0xEE; len];
        writes.overlay(from, &mut loaded);
        for (offset, byte) in (from..).zip(loaded) {
            prop_assert_eq!(byte, *bytes.get(&offset).unwrap_or(&0xEE));
        }

        let mut packer = Packer::default();
        packer.pack(7, &writes);
        let mut packed = BTreeMap::new();
        let count = packer.entries.len() as u64;
        for (number, entry) in (0..).zip(&packer.entries) {
            let (entry, bytes) = stored(entry, number);
            prop_assert_eq!(entry.group_len, (number + 1 == count).then_some(count));
            for (offset, byte) in bytes {
                prop_assert_eq!(packed.insert(offset, byte), None, "stored twice");
            }
        }
        prop_assert_eq!(&packed, &bytes);
        prop_assert!(count <= naive_count(&bytes));
    }
}

/// The number of entries if each run is split into pieces of 48 bytes, and several pieces need one more entry as the commit entry.
fn naive_count(bytes: &BTreeMap<u64, u8>) -> u64 {
    let (mut count, mut run) = (0, u64::MAX..u64::MAX);
    for &offset in bytes.keys() {
        if offset != run.end || run.end - run.start == 48 {
            count += 1;
            run = offset..offset;
        }
        run.end += 1;
    }
    if count == 1 { 1 } else { count + 1 }
}
