//! The bytes of a store: changing the format requires changing this file or those in `golden`.

use pm_alloc::{Heap, HeapOptions};
use pm_btree::format::{
    ANCHOR_LEVEL, EXTENT_CHUNK_MAGIC, ExtentChunk, ExtentRow, MAGIC, NODE_MAGIC, NodeHeader, ROOT, ROWS,
    StoreBlock, StoreHeader, VERSION, checked, unchecked,
};
use pm_btree::{Store, StoreOptions};
use pm_core::{Link, Persist, PoolOptions, Uuid, bytes_of};

fn hex(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

fn hex_of<T: Persist>(value: &T) -> String {
    hex(bytes_of(value))
}

fn header() -> StoreHeader {
    let header = StoreHeader {
        magic: MAGIC,
        version: VERSION,
        node_slots: 62,
        features_incompat: 0,
        extent_bytes: 0x000f_ff80,
        pool_uuid: *b"0123456789abcdef",
        reserved: [0; 12],
        crc: 0,
    };
    StoreHeader { crc: header.expected_crc(), ..header }
}

#[test]
fn checked_words_have_golden_values() {
    assert_eq!(checked(0, 640), 0xf369);
    assert_eq!(checked(1, 640), 0x0001_0c9b);
    assert_eq!(checked(1, 704), 0x0001_dda9);
    assert_eq!(checked((1 << 48) - 1, 640), 0xffff_ffff_ffff_c996);
}

#[test]
fn store_header_has_golden_bytes() {
    assert_eq!(hex_of(&header()), include_str!("golden/store_header.hex").trim_end());
}

#[test]
fn store_block_has_golden_bytes() {
    let block = StoreBlock {
        header: header(),
        state: [1, 2, 3, 4, 5, 6, 7, 8],
        catalogue: 9,
        reserved: [0; 6],
        extents: Link::NULL,
        readers: [10; 488],
        batches: [11; 512],
    };
    let bytes = bytes_of(&block);
    assert_eq!(bytes.len(), 8192);
    assert_eq!(hex(&bytes[64..200]), include_str!("golden/store_block.hex").trim_end());
    assert_eq!(hex(&bytes[4088..4104]), "0a000000000000000b00000000000000");
}

#[test]
fn extent_chunk_has_golden_bytes() {
    let chunk = ExtentChunk {
        magic: EXTENT_CHUNK_MAGIC,
        next: Link::NULL,
        reserved: [0; 6],
        rows: core::array::from_fn(|row| ExtentRow { extent: Link::NULL, class: row as u64 }),
    };
    assert_eq!(ROWS, 252);
    let bytes = bytes_of(&chunk);
    assert_eq!(bytes.len(), 4096);
    assert_eq!(hex(&bytes[..96]), include_str!("golden/extent_chunk.hex").trim_end());
    assert_eq!(hex(&bytes[4080..]), "0000000000000000fb00000000000000");
    assert_eq!(hex_of(&chunk.rows[7]), "00000000000000000700000000000000");
}

#[test]
fn node_header_has_golden_bytes() {
    let header = NodeHeader {
        magic: NODE_MAGIC,
        level: 1,
        kind: 2,
        table: 3,
        state: 4,
        low: 5,
        next: 6,
        low_record: 7,
        birth: 8,
        crc: 0,
        low_record_crc: 10,
        low_record_len: 11,
        reserved: 0,
    };
    let header = NodeHeader { crc: header.expected_crc(4096), ..header };
    assert_eq!(hex_of(&header), include_str!("golden/node_header.hex").trim_end());
}

/// The bytes of a file.
struct Image(Vec<u8>);

impl Image {
    fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        &self.0[usize::try_from(offset).unwrap()..][..len]
    }

    fn hex(&self, offset: u64, len: usize) -> String {
        hex(self.bytes(offset, len))
    }

    fn word(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.bytes(offset, 8).try_into().unwrap())
    }

    /// The offset of the record of the entry in a slot, and its bytes.
    fn record(&self, node: u64, slot: u64) -> (u64, String) {
        let payload = self.word(node + 64 + 32 * slot + 8);
        let (offset, len) = ((payload & ((1 << 40) - 1)) * 16, payload >> 40);
        (offset, self.hex(offset, usize::try_from(len).unwrap()))
    }
}

#[test]
fn closed_store_with_three_entries_has_golden_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.pm");
    let pool = PoolOptions::new().uuid(Uuid::from_bytes(*b"0123456789abcdef")).created_s(1_000_000_000);
    let heap_options = HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(16).chunk_bytes(1 << 16);
    Heap::create(&path, 1 << 20, &heap_options).unwrap().close().unwrap();

    // This call creates the store in the empty heap.
    let options = StoreOptions::new().node_slots(6).extent_bytes(4096);
    let store = Store::create(&path, 1 << 20, &options).unwrap();
    let table = store.table::<u64, &[u8]>("words").unwrap();
    table.insert(1, b"short").unwrap();
    table.insert(2, b"not so short a value").unwrap();
    table.insert(0x0102_0304_0506_0708, b"").unwrap();
    table.insert(1, b"new").unwrap();
    table.remove(2).unwrap();
    let block = store.heap().view(|view| view.root::<StoreBlock<'_>>(ROOT).unwrap().unwrap().offset());
    drop(table);
    store.close().unwrap();

    let image = Image(std::fs::read(&path).unwrap());
    assert_eq!(image.hex(block, 192), include_str!("golden/store/block.hex").trim_end());
    assert!(image.bytes(block + 192, 3904).iter().all(|byte| *byte == 0), "reserved bytes are zero");
    for slot in (block + 4096..block + 8192).step_by(64) {
        assert_eq!(unchecked(image.word(slot), slot), Some(0), "no batch was committed");
        assert!(image.bytes(slot + 8, 56).iter().all(|byte| *byte == 0), "reserved bytes are zero");
    }

    let extents = image.word(block + 184);
    assert_eq!(image.hex(extents, 64 + 4 * 16), include_str!("golden/store/extents.hex").trim_end());
    assert!(image.bytes(extents + 128, 4096 - 128).iter().all(|byte| *byte == 0), "unused rows are zero");

    // A node of six slots has four lines.
    let catalogue = unchecked(image.word(block + 128), block + 128).unwrap();
    assert_eq!(image.hex(catalogue, 256), include_str!("golden/store/catalogue.hex").trim_end());
    let (record, description) = image.record(catalogue, 0);
    assert_eq!(description, include_str!("golden/store/description.hex").trim_end());

    let described = record + 8 + "words".len() as u64;
    let (leaf, anchor) = (image.word(described + 8), image.word(described + 16));
    assert_eq!(image.hex(anchor, 128), include_str!("golden/store/anchor.hex").trim_end());
    assert_eq!(image.hex(leaf, 256), include_str!("golden/store/leaf.hex").trim_end());
    assert_eq!(image.record(leaf, 1).1, hex(b"not so short a value"));
}

/// The words of a hint node or an anchor, up to the first zero.
fn children(image: &Image, node: u64) -> Vec<u64> {
    let places = (0..).map(|word| node + 64 + 8 * word).take_while(|place| image.word(*place) != 0);
    places.map(|place| unchecked(image.word(place), place).unwrap()).collect()
}

#[test]
fn anchor_and_hint_nodes_lead_to_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.pm");
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let store = Store::create(&path, 1 << 20, &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    // Leaves get three of ascending keys each, and inner nodes up to six leaves.
    (0..24).for_each(|key| assert!(table.insert(key, key).unwrap()));
    let block = store.heap().view(|view| view.root::<StoreBlock<'_>>(ROOT).unwrap().unwrap().offset());
    drop(table);
    store.close().unwrap();

    let image = Image(std::fs::read(&path).unwrap());
    let catalogue = unchecked(image.word(block + 128), block + 128).unwrap();
    let (record, _) = image.record(catalogue, 0);
    let described = record + 8 + "t".len() as u64;
    let (first, anchor) = (image.word(described + 8), image.word(described + 16));
    let level = |node: u64| image.bytes(node, 5)[4];
    assert_eq!(level(anchor), ANCHOR_LEVEL);
    let [root] = children(&image, anchor)[..] else { panic!("one root") };
    assert_eq!(level(root), 2);
    let hint_nodes = children(&image, root);
    assert!(hint_nodes.len() == 2 && hint_nodes.iter().all(|hint| level(*hint) == 1));
    let leaves: Vec<u64> = hint_nodes.iter().flat_map(|hint| children(&image, *hint)).collect();
    let mut chain = vec![first];
    while let Some(next) = unchecked(image.word(chain[chain.len() - 1] + 24), chain[chain.len() - 1] + 24)
        .filter(|next| *next != 0)
    {
        chain.push(next);
    }
    // The left hint node still names the leaves that its split moved, until it needs their words.
    assert!(
        chain.ends_with(&children(&image, hint_nodes[1])) && chain.iter().all(|leaf| leaves.contains(leaf))
    );
    assert_eq!(
        image.word(hint_nodes[1] + 16),
        image.word(children(&image, hint_nodes[1])[0] + 16),
        "the low fence"
    );
}

#[test]
fn committed_batch_has_golden_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.pm");
    let options = StoreOptions::new().node_slots(6).extent_bytes(4096);
    let store = Store::create(&path, 1 << 20, &options).unwrap();
    let table = store.table::<u64, u64>("words").unwrap();
    table.insert(1, 10).unwrap();
    table.insert(2, 20).unwrap();
    let mut batch = store.batch();
    batch.insert(&table, 1, 11).unwrap();
    batch.remove(&table, 2).unwrap();
    batch.insert(&table, 3, 30).unwrap();
    batch.commit().unwrap();
    let block = store.heap().view(|view| view.root::<StoreBlock<'_>>(ROOT).unwrap().unwrap().offset());
    drop(table);
    store.close().unwrap();

    // The first session uses the slots from 8. It begins with epoch 2, and the batch has the next one.
    let image = Image(std::fs::read(&path).unwrap());
    let slot = block + 4096 + 8 * 64;
    assert_eq!(unchecked(image.word(slot), slot), Some(3));
    for other in (block + 4096..block + 8192).step_by(64).filter(|other| *other != slot) {
        assert_eq!(unchecked(image.word(other), other), Some(0), "no batch was committed in this slot");
    }

    let catalogue = unchecked(image.word(block + 128), block + 128).unwrap();
    let (record, _) = image.record(catalogue, 0);
    let leaf = image.word(record + 8 + "words".len() as u64 + 8);
    let commit = |entry: u64| image.word(leaf + 64 + 32 * entry + 24);
    let kind_slot_epoch = |entry: u64| (commit(entry) & 7, commit(entry) >> 4 & 0xfff, commit(entry) >> 16);
    // The replaced entry is emptied; the removal is in the place of the entry; the values are in the next slots. The last line was not used.
    assert_eq!([1, 2, 3].map(kind_slot_epoch), [(4, 8, 3), (3, 8, 3), (3, 8, 3)]);
    assert_eq!((commit(0) & 0xffff, commit(4), commit(5)), (7, 0, 0));
    assert_ne!(commit(0) >> 16, 0, "the checksum of an emptied slot");
    // The encoding of a value is big-endian. The removal leaves the words of the entry.
    let words = [1, 2, 3].map(|entry| {
        let place = leaf + 64 + 32 * entry;
        (image.word(place), image.word(place + 8).swap_bytes())
    });
    assert_eq!(words, [(2, 20), (1, 11), (3, 30)]);
}
