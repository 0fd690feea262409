//! The entries whose keys have a prefix.

use pm_btree::{EncodeError, Key, Prefix, ReadError, Store, StoreOptions, Table};
use pm_core::Region;
use pm_testkit::{AnyPmem, any};

fn table<K: Key>(keys: &[K::View<'_>]) -> Table<K, (), AnyPmem<'static>> {
    let options = StoreOptions::new().node_slots(4);
    let store = Store::format(any(Region::anonymous(4 << 20).unwrap()), &options).unwrap();
    let table = store.table::<K, ()>("t").unwrap();
    keys.iter().for_each(|key| assert!(table.insert(*key, ()).unwrap(), "{key:?}"));
    table
}

/// The keys with a prefix, encoded, from both ends.
fn found<K: Key>(table: &Table<K, (), AnyPmem<'static>>, prefix: impl Prefix<K> + Copy) -> Vec<Vec<u8>> {
    let bytes = |entry: Result<pm_btree::KeyValue<K, ()>, ReadError>| entry.unwrap().0.bytes().to_vec();
    let forwards: Vec<_> = table.prefix(prefix).map(bytes).collect();
    let mut backwards: Vec<_> = table.prefix(prefix).rev().map(bytes).collect();
    backwards.reverse();
    assert_eq!(forwards, backwards);
    forwards
}

/// All byte strings of up to three bytes from a few, with all prefixes of up to four: compared with a search through all keys.
#[test]
fn byte_keys_with_prefix() {
    let strings = |len: usize| {
        let mut all = vec![Vec::new()];
        let mut last = all.clone();
        for _ in 0..len {
            last = last
                .iter()
                .flat_map(|start| [0, b'a', b'b', 0xfe, 0xff].map(|byte| [&start[..], &[byte]].concat()))
                .collect();
            all.extend(last.clone());
        }
        all
    };
    let mut keys = strings(3);
    // Beyond the first eight bytes, which are compared as a word.
    keys.extend(strings(2).into_iter().map(|end| [b"abcdefgh".as_slice(), &end].concat()));
    keys.sort();
    let table = table::<&[u8]>(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let prefixes = strings(4).into_iter();
    for prefix in prefixes.chain(["abcdefg", "abcdefgh", "abcdefgha", "abcdefghij"].map(|text| text.into())) {
        let expected: Vec<_> = keys.iter().filter(|key| key.starts_with(&prefix)).cloned().collect();
        assert_eq!(found(&table, prefix.as_slice()), expected, "{prefix:?}");
    }
    assert_eq!(found(&table, b"abcdefgha").len(), 6, "an array is a prefix, too");
}

#[test]
fn text_with_prefix() {
    let table = table::<&str>(&["", "a", "ab", "abc", "abd", "ac", "é", "éa", "\u{10ffff}", "\u{10ffff}x"]);
    let texts = |prefix: &str| -> Vec<String> {
        found(&table, prefix).into_iter().map(|key| String::from_utf8(key).unwrap()).collect()
    };
    assert_eq!(texts("ab"), ["ab", "abc", "abd"]);
    assert_eq!(texts("é"), ["é", "éa"]);
    assert_eq!(texts("\u{10ffff}"), ["\u{10ffff}", "\u{10ffff}x"]);
    assert_eq!(texts("").len(), 10, "the empty prefix is that of all keys");
    assert!(texts("abcd").is_empty());
}

/// Keys that are words, with prefixes that are shorter, as long and longer.
#[test]
fn short_arrays_with_prefix() {
    let keys = [*b"aaaa", *b"aab\0", *b"aabz", *b"ab\0\0", *b"b\0\0\0", [0xff; 4], [0xff, 0xff, 0, 0]];
    let table = table::<[u8; 4]>(&keys);
    let mut keys = keys;
    keys.sort_unstable();
    for key in keys {
        for len in 0..=4 {
            let prefix = &key[..len];
            let expected: Vec<_> =
                keys.iter().filter(|key| key.starts_with(prefix)).map(|key| key.to_vec()).collect();
            assert_eq!(found(&table, prefix), expected);
        }
        for longer in [[&key[..], &[0]].concat(), [&key[..], &[0; 9]].concat()] {
            assert!(found(&table, longer.as_slice()).is_empty(), "no key is as long as {longer:?}");
        }
    }
}

#[test]
fn tuples_with_their_first_elements() {
    let table = table::<(&str, u8, &str)>(&[
        ("a", 1, ""),
        ("a", 1, "x"),
        ("a", 1, "xy"),
        ("a", 255, "x"),
        ("ab", 1, "x"),
        ("b", 0, "x"),
        ("", 255, "z"),
    ]);
    let count = |found: Vec<Vec<u8>>| found.len();
    assert_eq!(count(found(&table, ("a",))), 4, "not those of \"ab\"");
    assert_eq!(count(found(&table, ("a", 1))), 3);
    assert_eq!(count(found(&table, ("a", 1, "x"))), 2);
    assert_eq!(count(found(&table, ("a", 255))), 1);
    assert_eq!(count(found(&table, ("",))), 1);
    assert_eq!(count(found(&table, ("c",))), 0);
}

/// The last value of a fixed width is followed by the next value of the element before it, or by nothing.
#[test]
fn greatest_element_has_an_end() {
    let words = table::<(u8, u8)>(&[(0, 255), (1, 0), (254, 255), (255, 0), (255, 255)]);
    assert_eq!(found(&words, (255,)), [[255, 0], [255, 255]]);
    assert_eq!(found(&words, (254,)), [[254, 255]]);
    let numbers = table::<(u64, u64, i32)>(&[(1, u64::MAX, i32::MIN), (1, u64::MAX, 7), (2, 0, 0)]);
    assert_eq!(found(&numbers, (1, u64::MAX)).len(), 2);
    assert_eq!(found(&numbers, (1,)).len(), 2);
    let nested = table::<((u8, &str), u8)>(&[((1, "a"), 1), ((1, "a"), 255), ((1, "ab"), 0)]);
    assert_eq!(found(&nested, ((1, "a"),)).len(), 2);
}

#[test]
fn prefix_without_an_encoding_is_an_error() {
    let table = table::<(&str, u8)>(&[("a", 1)]);
    let mut entries = table.prefix(("a\0",));
    assert!(matches!(entries.next(), Some(Err(ReadError::Encode(EncodeError::Nul { position: 1 })))));
    assert!(entries.next().is_none() && entries.next_back().is_none());
}

/// Changes that wait in a group are found.
#[test]
fn waiting_changes_are_found() {
    let store =
        Store::format(Region::anonymous(1 << 20).unwrap(), &StoreOptions::new().group_commits(8)).unwrap();
    let table = store.table::<&str, u64>("t").unwrap();
    table.insert_grouped("ab", 1).unwrap();
    table.insert_grouped("b", 2).unwrap();
    assert_eq!(table.prefix("a").count(), 1);
}
