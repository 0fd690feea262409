//! The bytes of a heap: changing the format requires changing this file or those in `golden`.

use pm_alloc::format::{COPY_START, Lsn, STATE_COPY_DISTANCE, STATE_START, announce, seal};
use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{Pmem, PoolOptions, Region, Uuid};
use pm_testkit::any;

fn hex(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

fn load(region: &Region, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.load(offset, &mut bytes);
    bytes
}

#[test]
fn closed_heap_with_one_block_has_golden_bytes() {
    let region = Region::anonymous(1 << 16).unwrap();
    let pool = PoolOptions::new().uuid(Uuid::from_bytes(*b"0123456789abcdef")).created_s(1_000_000_000);
    let options = HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(16).chunk_bytes(4096);
    let heap = Heap::format(any(&region), &options).unwrap();
    let layout = *heap.layout();
    let block = heap.transaction(|tx| tx.alloc(&[1_u64, 2]).map(pm_core::Link::offset));
    let block = block.map_err(|error: TxError| error).unwrap();
    heap.close().unwrap();

    assert_eq!(hex(&load(&region, 24, 8)), "0100000000000000", "the roots are logged");

    let start = layout.heap_start;
    let header = load(&region, start, 4096);
    assert_eq!(hex(&header[..96]), include_str!("golden/heap_header.hex").trim_end());
    assert!(header[96..4092].iter().all(|&byte| byte == 0), "reserved bytes are zero");
    assert_eq!(hex(&header[4092..]), include_str!("golden/heap_header_crc.hex").trim_end());
    assert_eq!(load(&region, start + COPY_START, 4096), header, "the copy equals the header");

    let words = |at: u64| [hex(&load(&region, at, 8)), hex(&load(&region, at + 64, 16))].join("\n");
    assert_eq!(words(start + STATE_START), include_str!("golden/state.hex").trim_end());
    assert_eq!(
        words(start + STATE_START + STATE_COPY_DISTANCE),
        include_str!("golden/state_copy.hex").trim_end()
    );

    let lines = |at: u64, count: usize| hex(&load(&region, at, 64 * count));
    // The first line of the lane's header, and the first entry of the transaction. The second line of the header is after the ring.
    assert_eq!(lines(layout.entry_offset(0, 0) - 64, 2), include_str!("golden/lane.hex").trim_end());
    // A line that no entry was written to.
    assert_eq!(lines(layout.entry_offset(0, 15), 1), include_str!("golden/lane_erased.hex").trim_end());

    assert_eq!(block, layout.chunks_start + 64, "the first block");
    // The header and the contents, and the header of the free block after it.
    assert_eq!(
        hex(&load(&region, block - 8, 72)),
        include_str!("golden/chunk.hex").trim_end(),
        "the first block"
    );
    let end = layout.chunks_start + layout.chunk_bytes - 8;
    assert_eq!(hex(&load(&region, end, 8)), include_str!("golden/chunk_end.hex").trim_end());
}

#[test]
fn announced_lsn_is_sealed_without_contents_and_has_the_highest_bit() {
    let lsn = Lsn::new(0x0003_0000_0102);
    assert_eq!(seal(lsn, 7, 24_640, &[]), 0x0003_0000_0102_d64a);
    assert_eq!(announce(lsn, 7, 24_640), 0x8003_0000_0102_d64a);
}
