//! memcached-pm: a cache whose items are in persistent memory and are found again after a restart.

use crate::harness::*;

/// Heads of the hash chains. An item is key, value and next; on the line after it, its CAS and when it was stored.
const HEADS: [u64; 2] = [0, 8];
const ITEMS: u64 = 256;
const META: u64 = 64;
const RESTARTED_AT: u64 = 1_000;

#[derive(Clone, Debug, PartialEq)]
struct Found {
    key: u64,
    value: u64,
    cas: u64,
    time: u64,
}

/// What `gets` answers for every item after a restart.
fn items(pmem: &SimPmem) -> Vec<Found> {
    let mut found = Vec::new();
    for head in HEADS {
        let mut item = pmem.load_u64(head);
        while item != 0 {
            let [key, value, next] = load_words(pmem, item);
            let [cas, time] = load_words(pmem, item + META);
            assert!(cas != 0 && (1..RESTARTED_AT).contains(&time), "item {key}: cas {cas}, time {time}");
            found.push(Found { key, value, cas, time });
            item = next;
        }
    }
    found.sort_by_key(|item| item.key);
    found
}

/// `do_item_link`, of the item with number `cas`.
fn set(pmem: &SimPmem, form: Form, cas: u64, key: u64, value: u64) -> Done {
    let item = ITEMS + 128 * cas;
    let head = HEADS[usize::from(key % 2 == 1)];
    let lsn = || {
        pmem.store(item + META, &bytes_of(&[cas, 500 + cas]));
        pmem.flush(item + META, 16);
    };
    pmem.store(item, &bytes_of(&[key, value, pmem.load_u64(head)]));
    pmem.flush(item, 24);
    if form == Form::Fixed {
        lsn();
    }
    pmem.fence()?;
    pmem.put(head, item)?; //~ B25 kept
    if form == Form::Bug {
        lsn();
        // teeth: the planted bug's own
        pmem.fence()?;
    }
    Ok(())
}

/// B25, reported by Agamotto: an item is linked into its hash chain before its CAS and its time are set. After a crash
/// it is found with neither: it never expires, and a check-and-set that should fail succeeds.
pub(crate) fn item_linked_before_its_fields(form: Form) -> Case {
    let seven = Found { key: 7, value: 70, cas: 1, time: 501 };
    let nine = Found { key: 9, value: 90, cas: 2, time: 502 };
    Case::steps(
        image(|_| ()),
        [(1, 7), (2, 9)],
        move |pmem, (cas, key)| set(pmem, form, cas, key, 10 * key),
        [vec![], vec![seven.clone()], vec![seven, nine]],
        |pmem| Ok(items(pmem)),
    )
}
