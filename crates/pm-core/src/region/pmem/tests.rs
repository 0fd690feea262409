//! What needs the insides of a region.

use super::*;

#[test]
fn file_is_not_published_after_a_failed_fence() {
    // In a directory that is not in memory, as the one for temporary files may be.
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("data.pm");
    let created = RegionOptions::new().create_with(&path, 4096, |region| {
        assert_eq!(region.page_sync.is_some(), region.domain == Domain::Page);
        if let Some(page_sync) = &region.page_sync {
            page_sync.poison();
        }
        Ok::<_, OpenError>(())
    });
    match created {
        Ok(region) => assert_eq!(region.domain, Domain::Volatile, "no fence can fail"),
        Err(error) => {
            assert!(matches!(error, OpenError::Fence(FenceError::Poisoned)), "{error}");
            assert!(!path.exists());
        }
    }
}

#[test]
fn stores_before_a_fault_are_written_back_by_the_next_fence() {
    let mut region = Region::anonymous(8192).unwrap();
    region.page_sync = Some(PageSync::with_page(4096));
    rustix::fs::ftruncate(region.file.fd(), 4096).unwrap();
    assert_eq!(region.try_store_nt(0, &[9; 8192]), Err(MediumFault));
    assert_eq!(region.load_u64(4088), u64::from_le_bytes([9; 8]));
    assert_eq!(region.page_sync.unwrap().pending(), [(0, 8192)]);
}

#[test]
fn failed_sync_of_the_file_poisons_the_region() {
    let mut region = Region::anonymous(4096).unwrap();
    region.page_sync = Some(PageSync::new());
    region.sync_file().unwrap();
    region.persist(0, 8).unwrap();
    // What cannot be synced at all.
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    region.file = LockedFile::new(socket.into(), Path::new("socket"), true).unwrap();
    assert!(matches!(region.sync_file(), Err(OpenError::Io { operation: "fsync", .. })));
    assert_eq!(region.persist(0, 8), Err(FenceError::Poisoned));
    assert!(matches!(region.sync_file(), Err(OpenError::Fence(FenceError::Poisoned))));
}
