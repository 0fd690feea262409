//! The tables of fields in `docs/format/` equal the code.

use std::path::Path;

use pm_alloc::format::{ChunkCount, HeapHeader, LogEntry};
use pm_btree::format::{ExtentChunk, ExtentRow, NodeHeader, StoreBlock, StoreHeader};
use pm_core::Persist;
use pm_core::pool::format::{Header, RootSlot};
use pm_fs::format::{
    AttributeBlock, AttributeEntry, DirBlock, DirEntry, Identity, Inode, Node, Saved, Status, Superblock,
};
use pm_objects::format::{
    Directory, Entry, FileHeader, Intent, MapBlock, ObjectBlock, Owner, RootBlock, RootHeader,
};
use pmbd::buffer::format::{SlotHeader, SlotsHeader};
use pmbd::disk::format::Descriptor;
use xtask::tidy::formats::{Field, Layout, check};
use xtask::tidy::{Tree, Violation};

/// Every struct on media.
fn layouts() -> Vec<Layout> {
    vec![
        layout::<Header>("Header", "crates/pm-core/src/pool/format.rs", "docs/format/pool.md"),
        layout::<RootSlot>("RootSlot", "crates/pm-core/src/pool/format.rs", "docs/format/pool.md"),
        layout::<Descriptor>("Descriptor", "crates/pmbd-ublk/src/disk/format.rs", "docs/format/disk.md"),
        layout::<SlotsHeader>("SlotsHeader", "crates/pmbd-ublk/src/buffer/format.rs", "docs/format/slots.md"),
        layout::<SlotHeader>("SlotHeader", "crates/pmbd-ublk/src/buffer/format.rs", "docs/format/slots.md"),
        layout::<HeapHeader>("HeapHeader", "crates/pm-alloc/src/format.rs", "docs/format/heap.md"),
        layout::<ChunkCount>("ChunkCount", "crates/pm-alloc/src/format.rs", "docs/format/heap.md"),
        layout::<LogEntry>("LogEntry", "crates/pm-alloc/src/format.rs", "docs/format/heap.md"),
        layout::<StoreBlock<'static>>("StoreBlock", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
        layout::<StoreHeader>("StoreHeader", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
        layout::<ExtentChunk<'static>>(
            "ExtentChunk",
            "crates/pm-btree/src/format.rs",
            "docs/format/store.md",
        ),
        layout::<ExtentRow<'static>>("ExtentRow", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
        layout::<NodeHeader>("NodeHeader", "crates/pm-btree/src/format.rs", "docs/format/store.md"),
        layout::<Superblock>("Superblock", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<Saved>("Saved", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<Inode>("Inode", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<Identity>("Identity", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<Status>("Status", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<Node>("Node", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<DirBlock>("DirBlock", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<DirEntry>("DirEntry", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<AttributeBlock>("AttributeBlock", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<AttributeEntry>("AttributeEntry", "crates/pm-fs/src/format.rs", "docs/format/fs.md"),
        layout::<RootBlock>("RootBlock", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
        layout::<RootHeader>("RootHeader", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
        layout::<Intent>("Intent", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
        layout::<ObjectBlock>("ObjectBlock", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
        layout::<Entry>("Entry", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
        layout::<Directory>("Directory", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
        layout::<FileHeader>("FileHeader", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
        layout::<MapBlock>("MapBlock", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
        layout::<Owner>("Owner", "crates/pm-objects/src/format.rs", "docs/format/objects.md"),
    ]
}

fn layout<T: Persist>(name: &'static str, source: &'static str, document: &'static str) -> Layout {
    let fields = T::FIELDS.iter().map(|field| Field {
        name: field.name,
        offset_bytes: field.offset_bytes,
        size_bytes: field.size_bytes,
    });
    Layout { name, source, document, fields: fields.collect() }
}

fn repository() -> Tree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Tree::read(&root).expect("the repository is readable")
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(|violation| format!("{violation}\n")).collect()
}

#[test]
fn documents_equal_the_code() {
    let violations = check(&repository(), &layouts());
    assert!(violations.is_empty(), "\n{}", list(&violations));
}

/// A check of the wrong files would find no violations.
#[test]
fn unlisted_struct_in_this_repository_is_found() {
    let new = ("crates/pm-core/src/new/format.rs", "//! New.\n#[derive(Persist)]\nstruct New;\n");
    let repository = repository();
    let files = repository.files().map(|file| (file.path(), file.text()));
    let found = list(&check(&Tree::of(&files.chain([new]).collect::<Vec<_>>()), &layouts()));
    assert!(found.starts_with(&format!("{}:3:", new.0)), "{found}");
}

#[test]
fn structs_on_media_have_whole_words() {
    for layout in layouts() {
        let last = layout.fields.last().expect("a struct on media has fields");
        assert!((last.offset_bytes + last.size_bytes).is_multiple_of(8), "{}", layout.name);
    }
}
