//! The bytes of a pool: changing the format requires changing this file.

use crate::crash::options;
use core::mem::offset_of;
use pm_core::{Pmem as _, Region, bytes_of};
use pm_objects::format::{
    Entry, MAGIC, OBJECT_TAG, ObjectBlock, Owner, RootBlock, RootHeader, VERSION, seal, tier, unseal,
};
use pm_objects::{Contents, Hints, Locality, Objects};
use pm_testkit::any;
use std::sync::Arc;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn words_and_checksums_are_golden() {
    assert_eq!(format!("{:016x}", seal(7, 1 << 32 | 1, 4096, 500)), "75020000000001f4");
    assert_eq!(unseal(7, 1 << 32 | 1, 4096, seal(7, 1 << 32 | 1, 4096, 500)), Some(500));
    assert_eq!(unseal(7, 1 << 32 | 1, 4096, 0), None);
    assert_eq!(
        hex(bytes_of(&Entry::new(7, 1 << 32 | 1, 3, tier::PM, 900))),
        "840300000040ea270000000001000000"
    );
    assert_eq!(
        hex(bytes_of(&Owner::new(7, 8192, 1 << 32 | 1, 900, 3))),
        "01000000010000008403000000000000030000005b8b23e8"
    );
}

/// A pool with an object, and one with hints and a table, as the second version of the format has them.
#[test]
fn pool_is_golden() {
    let region = Arc::new(Region::anonymous(256 << 10).unwrap());
    let objects = Objects::format(any(Arc::clone(&region)), &options()).unwrap();
    objects.create("name", Contents::Slice(&[5_u32, 6])).unwrap();
    let hints = Hints::new().locality(Locality::Cold);
    objects.create_with("cold", Contents::Slice(&[7_u8; 64 * 3]), &hints).unwrap();
    objects.close().unwrap();
    let mut bytes = vec![0; 256 << 10];
    region.load(0, &mut bytes);
    let root = bytes.windows(8).position(|found| found == MAGIC).unwrap();
    let root = &bytes[root..root + size_of::<RootBlock>()];
    assert_eq!(
        hex(&root[..size_of::<RootHeader>()]),
        "504d4f424a0d0a1a020000004000000000000000000000000000000000000000000200000000000007000000000000000101010101010101010101010101010100000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000755070500000000"
    );
    assert_eq!(u32::from_le_bytes(root[8..12].try_into().unwrap()), VERSION);
    let intent = &root[offset_of!(RootBlock, intent)..][..36];
    assert_eq!(hex(intent), "8909aa4e0200000040e700000000000000000000000000000400000000000000636f6c64");
    let tag = OBJECT_TAG.to_le_bytes();
    let mut objects = (0..bytes.len()).step_by(64).filter(|at| bytes[*at..at + 4] == tag);
    let mut next = || objects.next().map(|at| hex(&bytes[at..at + size_of::<ObjectBlock>()])).unwrap();
    assert_eq!(
        next(),
        "4f424a5440a6f71a01000000010000002ae03f3ce545b2a6040000000000000000000000000000000000000000000000010000000000000008000000000002fb000000000000a8cc0000000000006a6a9603000000406ab90000000001000000000000000000000000000000000000000000000000000000"
    );
    assert_eq!(
        next(),
        "4f424a54486e66740200000001000000454b923e191a3c4d0100000002000000000000000000000000000000000000000100000000000000c00000000000ad5a9f0300000008ec9f000000000000fc64000000000000352d0000000001000000000000000000000000000000000000000000000000000000"
    );
}
