//! Reads any bytes as the requests of a Redis client, whole and in parts. Both find the same requests, and take memory for no more than the bytes that came.
//!
//! The input is a byte with the number of the lengths, the lengths of the parts, which repeat, and the bytes of the client.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pm_redis_server::fuzzing::{Parsed, Parser};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a byte of a client may take: a string of no bytes takes six of a request, and the three words of a vector, twice while a list of them grows.
const FACTOR: usize = 24;

/// What may be taken at once: an error reply, the first growth of a buffer.
const CONSTANT_BYTES: usize = 4096;

/// Counts the memory in use, and the most of it.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Passes all requests of some parts to `found`, up to the end of the connection.
fn parse<'b>(parts: impl Iterator<Item = &'b [u8]>, mut found: impl FnMut(Parsed)) {
    let mut parser = Parser::default();
    for part in parts {
        parser.push(part);
        while let Some(parsed) = parser.parse_next() {
            let is_end = parsed.is_end();
            found(parsed);
            if is_end {
                return;
            }
        }
    }
}

/// The bytes in parts of these lengths, again and again. A length of zero counts as one.
fn parts<'b>(mut bytes: &'b [u8], lengths: &[u8]) -> impl Iterator<Item = &'b [u8]> {
    let mut lengths = lengths.iter().cycle();
    std::iter::from_fn(move || {
        let length = lengths.next().map_or(usize::MAX, |length| usize::from(*length).max(1));
        let part;
        (part, bytes) = bytes.split_at(length.min(bytes.len()));
        (!part.is_empty()).then_some(part)
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((count, rest)) = input.split_first() else { return };
    let (lengths, bytes) = rest.split_at(usize::from(count % 16).min(rest.len()));

    let before = USED.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    parse(parts(bytes, lengths), drop);
    let taken = MOST.load(Ordering::Relaxed).saturating_sub(before);
    assert!(taken <= FACTOR * bytes.len() + CONSTANT_BYTES, "{taken} bytes for {}", bytes.len());

    let (mut whole, mut split) = (Vec::new(), Vec::new());
    parse(std::iter::once(bytes), |parsed| whole.push(parsed));
    parse(parts(bytes, lengths), |parsed| split.push(parsed));
    assert_eq!(whole, split);
});
