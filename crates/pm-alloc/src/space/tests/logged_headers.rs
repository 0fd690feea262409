//! Chains that are restored from the headers in the log.

use super::fixture::layout;
use crate::format::{BlockState, BlockState::Allocated, BlockState::Free};
use crate::layout::Layout;
use crate::space::LoggedHeaders;
use crate::space::headers::{chunk_lines, header_word, read};
use pm_core::{Pmem, Region};

/// The number of lines in the only chunk.
const END: u32 = 64;

type Block = (u32, BlockState, u32);

fn word(layout: &Layout, (line, state, lines): Block) -> (u64, u64) {
    header_word(layout, 0, state, line..line + lines)
}

/// The chain that is restored from the headers in place and the logged headers, which are in the order of their LSNs.
fn restored(in_place: &[Block], logged: &[Block]) -> Vec<Block> {
    let layout = layout(u64::from(END) * 64);
    assert_eq!(chunk_lines(&layout), END);
    let region = Region::anonymous(layout.chunk_offset(1)).unwrap();
    for &block in in_place.iter().chain([(END, BlockState::End, 0)].iter()) {
        let (offset, word) = word(&layout, block);
        region.store_u64(offset, word);
    }
    let mut headers = LoggedHeaders::new(&layout, 1);
    logged.iter().map(|&block| word(&layout, block)).for_each(|(offset, word)| headers.note(offset, word));
    headers.restore_chains(&region).unwrap();
    let (mut chain, mut line) = (vec![], 1);
    while line < END {
        let header = read(&region, &layout, 0, line).1.expect("a chain");
        chain.push((line, header.state, header.lines));
        line += header.lines;
    }
    assert_eq!(line, END);
    chain
}

/// The log entry that freed the logged block is missing, and other blocks lie in its place.
#[test]
fn logged_block_with_later_headers_inside_is_discarded() {
    let chain = [(1, Free, 9), (10, Allocated, 4), (14, Free, END - 14)];
    let stale = (5, Allocated, 40);
    let in_place = [chain.as_slice(), &[stale]].concat();
    assert_eq!(restored(&in_place, &[stale, chain[1], chain[2]]), chain);
    // Without the other headers, the free block is cut around the logged block, because the logged block may be allocated.
    let cut = [(1, Free, 4), stale, (45, Free, END - 45)];
    let in_place = [[(1, Free, END - 1)].as_slice(), &cut[1..]].concat();
    assert_eq!(restored(&in_place, &cut[1..]), cut);
}

/// The block at line 10 is older than the log. A missing entry coalesced it with the free block before it. Then a trim stored a header without the
/// log at line 7, inside that free block. The logged free block at line 5 leads to the old header at line 10.
#[test]
fn allocated_block_with_logged_block_inside_is_cut() {
    let w = [(12, Allocated, 8), (20, Free, 20)];
    let after = (40, Allocated, END - 40);
    let former = [(5, Free, 5), (10, Allocated, 30)];
    let in_place = [[(1, Free, 6), (7, Free, 5)].as_slice(), &w, &[after], &former].concat();
    let logged = [former[0], w[0], w[1]];
    let chain = [(1, Free, 4), former[0], (10, Allocated, 2), w[0], w[1], after];
    assert_eq!(restored(&in_place, &logged), chain);
}

/// The discarded transaction allocated a block over several free blocks, and its header is in place.
#[test]
fn allocated_block_over_former_free_blocks_is_kept() {
    let former = (5, Free, 20);
    let chain = [(1, Allocated, 19), (20, Free, 5), (25, Allocated, END - 25)];
    let in_place = [chain.as_slice(), &[former]].concat();
    assert_eq!(restored(&in_place, &[former]), chain);
}

/// The header of the discarded transaction is not in place. Another transaction allocated in the rest of the free block, or freed the block after it.
#[test]
fn free_block_ends_where_later_block_starts() {
    let whole = (1, Free, 30);
    let after = [(31, Allocated, 9), (40, Allocated, END - 40)];
    for rest in [[(11, Allocated, 5), (16, Free, 15)].as_slice(), &[(11, Free, 29)]] {
        let in_place = [[whole].as_slice(), &after, rest].concat();
        let found = restored(&in_place, rest);
        assert_eq!(found[..=rest.len()], [&[(1, Free, 10)], rest].concat());
    }
    // A shorter free block inside the longer one remains part of it.
    let in_place = [[whole].as_slice(), &after, &[(11, Free, 20)]].concat();
    assert_eq!(restored(&in_place, &[(11, Free, 20)])[0], whole);
}
