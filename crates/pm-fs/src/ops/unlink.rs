//! Removes names.

use crate::error::FsError;
use crate::node::dir::{DirChange, DirIndex};
use crate::node::inode::FileKind;
use crate::ops::lookup::{DirName, check_empty, find_again, hold};
use crate::session::link_removal::{LinkRemoval, RemovedLink};
use crate::session::locked::Locked;
use crate::session::shared::Shared;
use pm_core::Pmem;

/// What a transaction has done to the directory, and to the inode.
struct Unlinked {
    removed: DirChange,
    link: RemovedLink,
}

/// Removes a name, of a directory if `of_dir`, and else of another file.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves the name or not. One fence. A file that is open
/// or has more than eight pages is freed by further transactions.
pub(crate) fn unlink<P: Pmem>(shared: &Shared<P>, at: DirName<'_>, of_dir: bool) -> Result<(), FsError> {
    let volume = shared.prepared()?;
    let dir = at.dir;
    loop {
        let child = hold(shared, at)?;
        let state = &*child.state;
        match (state.inode.kind == FileKind::Directory, of_dir) {
            (true, false) => return Err(FsError::IsADirectory),
            (false, true) => return Err(FsError::NotADirectory),
            (true, true) => shared.ensure_index(state)?,
            (false, false) => {}
        }
        let mut locked = Locked::new(&[dir, state]);
        let Some(found) = find_again(volume, &locked, at, state)? else { continue };
        check_empty(&locked, state)?;
        let link = LinkRemoval::prepare(shared, state)?;
        let (now, dir_nlink) = (volume.now(), dir.inode.nlink(volume)?);
        let unlinked = volume.transaction(|change| {
            let removed = DirIndex::remove(change, found)?;
            dir.inode.touch(change, now)?;
            if of_dir {
                dir.inode.set_nlink(change, dir.inode.changed_nlink(dir_nlink, 0, 1)?)?;
            }
            Ok(Unlinked { removed, link: link.store(change, now)? })
        })?;
        locked.get_mut(dir).apply(unlinked.removed);
        link.finish(&mut locked, unlinked.link);
        return Ok(());
    }
}
