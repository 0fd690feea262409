//! Calls that change directories: each is one transaction.

use crate::error::FsError;
use crate::format::{INLINE_LINK_MAX, NAME_MAX, PAGE_BYTES};
use crate::node::acl;
use crate::node::attribute_block;
use crate::node::dir::{self, DirIndex, Entry, Found, check_name};
use crate::node::inode::{FileKind, InodeRef, NewInode, offset_of_ino};
use crate::node::slot::Slot;
use crate::node::tree;
use crate::session::orphans;
use crate::session::shared::{Locked, Shared, apply, index};
use crate::session::table::{Life, State};
use crate::volume::Volume;
use pm_core::Pmem;
use std::sync::Arc;

/// The most names of an inode.
const LINKS_MAX: u64 = 65_000;

/// The longest target of a symbolic link.
const TARGET_MAX: usize = 4095;

/// The most ancestors of a directory that are looked at: a corrupted parent may lead in a circle.
const DEPTH_MAX: u32 = 1 << 20;

/// A handle that is given back when this is dropped.
struct Held<'s, P: Pmem> {
    shared: &'s Shared<P>,
    state: Arc<State>,
}

impl<P: Pmem> Drop for Held<'_, P> {
    fn drop(&mut self) {
        // An inode that cannot be freed now stays an orphan, which the next open frees.
        drop(self.shared.release(&self.state));
    }
}

/// The inode with a name in a directory.
pub(crate) fn lookup<P: Pmem>(shared: &Shared<P>, dir: &State, name: &[u8]) -> Result<Arc<State>, FsError> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    shared.ensure_index(dir)?;
    let inner = dir.read();
    let found = index(&inner)?.find(&shared.volume, name)?.ok_or(FsError::NotFound)?;
    shared.open_found(&found)
}

fn held<'s, P: Pmem>(shared: &'s Shared<P>, dir: &State, name: &[u8]) -> Result<Held<'s, P>, FsError> {
    lookup(shared, dir, name).map(|state| Held { shared, state })
}

/// Creates an inode with a name. A symbolic link has a target.
///
/// # Durability
/// Durable when this returns; a crash before that leaves the file or not. One fence; two if the directory gets a block.
pub(crate) fn create<P: Pmem>(
    shared: &Shared<P>,
    dir: &State,
    name: &[u8],
    new: NewInode,
    (umask, target): (u32, &[u8]),
) -> Result<Arc<State>, FsError> {
    check_name(name)?;
    if target.len() > TARGET_MAX {
        return Err(FsError::NameTooLong);
    }
    let volume = shared.prepared()?;
    shared.ensure_index(dir)?;
    let mut inner = dir.write();
    let entries = index(&inner)?;
    if entries.find(volume, name)?.is_some() {
        return Err(FsError::Exists);
    }
    let is_dir = new.kind == FileKind::Directory;
    let (mode, inherited) =
        acl::inherit(&attribute_block::load(volume, &dir.inode)?, new.kind, new.mode, umask);
    let (new, now) = (NewInode { mode, ..new }, volume.now());
    let nlink = dir.inode.nlink(volume)?;
    let page = if target.len() > INLINE_LINK_MAX { Some(volume.pages.take(1)?) } else { None };
    if let Some(page) = &page {
        volume.pmem().store_nt(volume.page(page.numbers()[0])?, target);
    }
    let (inode, added) = volume.transaction(|change| {
        let inode = new.create(change, now)?;
        if let Some(page) = &page {
            change.note_data();
            tree::set(change, &inode, 0, Slot::page(page.numbers()[0]))?;
        } else if !target.is_empty() {
            change.write_bytes(inode.slots_at(), target)?;
        }
        if !target.is_empty() {
            inode.set_size(change, target.len() as u64)?;
        }
        if !inherited.is_empty() {
            attribute_block::replace(change, &inode, &inherited)?;
        }
        let added = entries.add(change, &dir.inode, name, &inode)?;
        dir.inode.touch(change, now)?;
        if is_dir {
            dir.inode.set_nlink(change, dir.inode.changed_nlink(nlink, 1, 0)?)?;
        }
        Ok((inode, added))
    })?;
    if let Some(page) = page {
        page.keep();
    }
    apply(&mut inner, added);
    Ok(shared.table.open(inode))
}

/// Creates a file without a name, which inherits the access control list of a directory.
///
/// # Durability
/// Durable when this returns, but freed after a crash. One fence; two if the directory of orphans gets a block.
pub(crate) fn create_unnamed<P: Pmem>(
    shared: &Shared<P>,
    dir: &State,
    new: NewInode,
    umask: u32,
) -> Result<Arc<State>, FsError> {
    let volume = shared.prepared()?;
    shared.ensure_index(dir)?;
    let inner = dir.read();
    // Fails if it has no name any more.
    index(&inner)?;
    let (mode, inherited) =
        acl::inherit(&attribute_block::load(volume, &dir.inode)?, new.kind, new.mode, umask);
    shared.ensure_index(&shared.orphans)?;
    let mut list = shared.orphans.write();
    let entries = index(&list)?;
    let (inode, added) = volume.transaction(|change| {
        let inode = NewInode { mode, ..new }.create(change, volume.now())?;
        if !inherited.is_empty() {
            attribute_block::replace(change, &inode, &inherited)?;
        }
        let name = orphans::name_of(inode.ino);
        let added = entries.add(change, &shared.orphans.inode, &name, &inode)?;
        Ok((inode, added))
    })?;
    apply(&mut list, added);
    let state = shared.table.open(inode);
    state.write().life = Life::Unnamed;
    Ok(state)
}

/// Gives an inode another name, or its first one.
///
/// # Durability
/// Durable when this returns; a crash before that leaves the name or not. One fence; two if the directory gets a block.
pub(crate) fn link<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    dir: &State,
    name: &[u8],
) -> Result<(), FsError> {
    check_name(name)?;
    if state.inode.kind == FileKind::Directory {
        return Err(FsError::NotPermitted);
    }
    let volume = shared.prepared()?;
    shared.ensure_index(dir)?;
    let mut locked = Locked::new(&[state, dir]);
    let is_first = match locked.get(state).life {
        Life::Named => false,
        Life::Unnamed => true,
        Life::Orphan | Life::Freed => return Err(FsError::NotFound),
    };
    let entries = locked.index(dir)?;
    if entries.find(volume, name)?.is_some() {
        return Err(FsError::Exists);
    }
    let nlink = state.inode.nlink(volume)?;
    if nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks);
    }
    let mut list = match is_first {
        true => {
            shared.ensure_index(&shared.orphans)?;
            Some(shared.orphans.write())
        }
        false => None,
    };
    let old_name = match &list {
        Some(list) => index(list)?.find(volume, &orphans::name_of(state.inode.ino))?,
        None => None,
    };
    let now = volume.now();
    let (added, removed) = volume.transaction(|change| {
        state.inode.set_nlink(change, nlink + 1)?;
        change.set(state.inode.ctime_at(), now)?;
        dir.inode.touch(change, now)?;
        let removed = old_name.map(|found| DirIndex::remove(change, found)).transpose()?;
        let added = entries.add(change, &dir.inode, name, &state.inode)?;
        Ok((added, removed))
    })?;
    apply(locked.get_mut(dir), added);
    locked.get_mut(state).life = Life::Named;
    if let (Some(list), Some(removed)) = (&mut list, removed) {
        apply(list, removed);
    }
    Ok(())
}

/// Removes a name, of a directory if `of_dir`, and else of another file.
///
/// # Durability
/// Durable when this returns; a crash before that leaves the name or not. One fence. A file that is open or has more than eight pages is freed by further
/// transactions.
pub(crate) fn unlink<P: Pmem>(
    shared: &Shared<P>,
    dir: &State,
    name: &[u8],
    of_dir: bool,
) -> Result<(), FsError> {
    let volume = shared.prepared()?;
    loop {
        let child = held(shared, dir, name)?;
        let state = &*child.state;
        match (state.inode.kind == FileKind::Directory, of_dir) {
            (true, false) => return Err(FsError::IsADirectory),
            (false, true) => return Err(FsError::NotADirectory),
            (true, true) => shared.ensure_index(state)?,
            (false, false) => {}
        }
        let mut locked = Locked::new(&[dir, state]);
        let Some(found) = is_still(volume, &locked, dir, name, Some(state))? else { continue };
        let Some(found) = found else { continue };
        check_empty(&locked, state)?;
        let nlink = state.inode.nlink(volume)?;
        let is_last = of_dir || nlink <= 1;
        let is_freed = is_last && shared.is_freed_at_once(state)?;
        let mut orphans = None;
        if is_last && !is_freed {
            shared.ensure_index(&shared.orphans)?;
            orphans = Some(shared.orphans.write());
        }
        let (now, dir_nlink) = (volume.now(), dir.inode.nlink(volume)?);
        let (removed, orphaned) = volume.transaction(|change| {
            let removed = DirIndex::remove(change, found)?;
            dir.inode.touch(change, now)?;
            if of_dir {
                dir.inode.set_nlink(change, dir.inode.changed_nlink(dir_nlink, 0, 1)?)?;
            }
            if !is_last {
                state.inode.set_nlink(change, nlink - 1)?;
                change.set(state.inode.ctime_at(), now)?;
                return Ok((removed, None));
            }
            Ok((removed, shared.drop_last_name(change, state, now, orphans.as_deref())?))
        })?;
        apply(locked.get_mut(dir), removed);
        finish_drop(shared, &mut locked, state, is_last.then_some(is_freed));
        if let (Some(orphans), Some(orphaned)) = (&mut orphans, orphaned) {
            apply(orphans, orphaned);
        }
        return Ok(());
    }
}

/// Notes that an inode has lost its last name, if it has: whether it was freed at once.
fn finish_drop<P: Pmem>(shared: &Shared<P>, locked: &mut Locked<'_>, state: &State, is_freed: Option<bool>) {
    match is_freed {
        None => {}
        Some(true) => {
            locked.get_mut(state).life = Life::Freed;
            shared.table.forget(state);
        }
        Some(false) => locked.get_mut(state).life = Life::Orphan,
    }
}

/// The entry of a name, if it is still that of `expected`, or if there is still none. `None` if it has changed: then the caller looks again.
fn is_still<P: Pmem>(
    volume: &Volume<P>,
    locked: &Locked<'_>,
    dir: &State,
    name: &[u8],
    expected: Option<&State>,
) -> Result<Option<Option<Found>>, FsError> {
    let found = locked.index(dir)?.find(volume, name)?;
    let is_same = found.map(|found| found.ino) == expected.map(|state| state.inode.ino);
    match expected.filter(|_| is_same).map(|state| (state, locked.get(state).life)) {
        // The number is another inode's by now.
        Some((_, Life::Freed)) => Ok(None),
        Some((state, Life::Orphan | Life::Unnamed)) => {
            Err(FsError::corrupted(offset_of_ino(state.inode.ino), "the number of links"))
        }
        _ => Ok(is_same.then_some(found)),
    }
}

/// Checks that a directory has no entries; other inodes have none.
fn check_empty(locked: &Locked<'_>, state: &State) -> Result<(), FsError> {
    let len = locked.get(state).index.as_ref().map_or(0, DirIndex::len);
    if len == 0 { Ok(()) } else { Err(FsError::NotEmpty) }
}

/// Gives a file another name, in the same directory or in another one. An inode that has that name loses it, unless `keeps_target`: then that is an error.
///
/// # Durability
/// Durable when this returns; a crash before that leaves the old state. One fence; two if the directory gets a block. An inode that is replaced is freed as by
/// [`unlink`].
pub(crate) fn rename<P: Pmem>(
    shared: &Shared<P>,
    (from_dir, from): (&State, &[u8]),
    (to_dir, to): (&State, &[u8]),
    keeps_target: bool,
) -> Result<(), FsError> {
    check_name(from)?;
    check_name(to)?;
    let volume = shared.prepared()?;
    shared.ensure_index(from_dir)?;
    shared.ensure_index(to_dir)?;
    let is_across = from_dir.inode.ino != to_dir.inode.ino;
    let _renames = is_across.then(|| shared.lock_renames());
    loop {
        let child = held(shared, from_dir, from)?;
        let target = match held(shared, to_dir, to) {
            Ok(target) => Some(target),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let (state, replaced) = (&*child.state, target.as_ref().map(|target| &*target.state));
        if let Some(replaced) = replaced
            && replaced.inode.kind == FileKind::Directory
        {
            shared.ensure_index(replaced)?;
        }
        let all: Vec<&State> = [from_dir, to_dir, state].into_iter().chain(replaced).collect();
        let mut locked = Locked::new(&all);
        let (Some(Some(found)), Some(old)) = (
            is_still(volume, &locked, from_dir, from, Some(state))?,
            is_still(volume, &locked, to_dir, to, replaced)?,
        ) else {
            continue;
        };
        if is_across && state.inode.kind == FileKind::Directory {
            check_no_ancestor(shared, state, to_dir)?;
        }
        let Some(replaced) = replaced else {
            return rename_to(shared, &mut locked, (from_dir, found), (to_dir, to, None), state);
        };
        if keeps_target {
            return Err(FsError::Exists);
        }
        if replaced.inode.ino == state.inode.ino {
            return Ok(());
        }
        match (state.inode.kind == FileKind::Directory, replaced.inode.kind == FileKind::Directory) {
            (true, false) => return Err(FsError::NotADirectory),
            (false, true) => return Err(FsError::IsADirectory),
            _ => check_empty(&locked, replaced)?,
        }
        let old = old.map(|old| (old, replaced));
        return rename_to(shared, &mut locked, (from_dir, found), (to_dir, to, old), state);
    }
}

/// Checks that a directory is no ancestor of another one, nor the same. The caller has the lock of renames, so that no directory gets another parent, and that of
/// `of`, which has a name, so that none of its ancestors is removed.
fn check_no_ancestor<P: Pmem>(shared: &Shared<P>, dir: &State, of: &State) -> Result<(), FsError> {
    let mut ino = of.inode.ino;
    for _ in 0..DEPTH_MAX {
        if ino == dir.inode.ino {
            return Err(FsError::Invalid);
        }
        if ino == shared.root.inode.ino {
            return Ok(());
        }
        ino = shared.parent_of(ino)?;
    }
    Err(FsError::corrupted(offset_of_ino(of.inode.ino), "the parent of a directory"))
}

/// Renames, under all locks.
fn rename_to<P: Pmem>(
    shared: &Shared<P>,
    locked: &mut Locked<'_>,
    (from_dir, found): (&State, Found),
    (to_dir, to, old): (&State, &[u8], Option<(Found, &State)>),
    state: &State,
) -> Result<(), FsError> {
    let volume = &shared.volume;
    let is_across = from_dir.inode.ino != to_dir.inode.ino;
    let is_dir = state.inode.kind == FileKind::Directory;
    let replaces_dir = old.is_some_and(|(_, old)| old.inode.kind == FileKind::Directory);
    let old_nlink = old.map(|(_, old)| old.inode.nlink(volume)).transpose()?;
    let is_last = old_nlink.map(|nlink| replaces_dir || nlink <= 1);
    let is_freed = match old {
        Some((_, old)) if is_last == Some(true) => Some(shared.is_freed_at_once(old)?),
        _ => None,
    };
    let mut orphans = None;
    if is_freed == Some(false) {
        shared.ensure_index(&shared.orphans)?;
        orphans = Some(shared.orphans.write());
    }
    let now = volume.now();
    let (from_nlink, to_nlink) = (from_dir.inode.nlink(volume)?, to_dir.inode.nlink(volume)?);
    let gained = u64::from(is_dir && is_across);
    let lost = u64::from(replaces_dir);
    let entries = locked.index(to_dir)?;
    let target = &state.inode;
    let (placed, removed, orphaned) = volume.transaction(|change| {
        let placed = match old {
            Some((old, _)) => {
                DirIndex::replace(change, to, old, target)?;
                None
            }
            None => Some(entries.add(change, &to_dir.inode, to, target)?),
        };
        let removed = DirIndex::remove(change, found)?;
        to_dir.inode.touch(change, now)?;
        if is_across {
            from_dir.inode.touch(change, now)?;
        }
        if gained != 0 {
            from_dir.inode.set_nlink(change, from_dir.inode.changed_nlink(from_nlink, 0, 1)?)?;
            state.inode.edit(change, |identity| identity.parent = to_dir.inode.ino)?;
        }
        if gained != lost {
            to_dir.inode.set_nlink(change, to_dir.inode.changed_nlink(to_nlink, gained, lost)?)?;
        }
        change.set(state.inode.ctime_at(), now)?;
        let orphaned = match (old, old_nlink) {
            (Some((_, old)), Some(nlink)) if is_last == Some(false) => {
                old.inode.set_nlink(change, nlink - 1)?;
                change.set(old.inode.ctime_at(), now)?;
                None
            }
            (Some((_, old)), _) => shared.drop_last_name(change, old, now, orphans.as_deref())?,
            _ => None,
        };
        Ok((placed, removed, orphaned))
    })?;
    if let Some(placed) = placed {
        apply(locked.get_mut(to_dir), placed);
    }
    apply(locked.get_mut(from_dir), removed);
    if let Some((_, old)) = old {
        finish_drop(shared, locked, old, is_freed);
    }
    if let (Some(orphans), Some(orphaned)) = (&mut orphans, orphaned) {
        apply(orphans, orphaned);
    }
    Ok(())
}

/// Exchanges the inodes of two names.
///
/// # Durability
/// Durable when this returns; a crash before that leaves the old state. One fence.
pub(crate) fn exchange<P: Pmem>(
    shared: &Shared<P>,
    (one_dir, one): (&State, &[u8]),
    (other_dir, other): (&State, &[u8]),
) -> Result<(), FsError> {
    check_name(one)?;
    check_name(other)?;
    shared.ensure_index(one_dir)?;
    shared.ensure_index(other_dir)?;
    let is_across = one_dir.inode.ino != other_dir.inode.ino;
    let _renames = is_across.then(|| shared.lock_renames());
    let volume = shared.prepared()?;
    loop {
        let (first, second) = (held(shared, one_dir, one)?, held(shared, other_dir, other)?);
        let (first, second) = (&*first.state, &*second.state);
        let [first_is_dir, second_is_dir] =
            [first, second].map(|state| state.inode.kind == FileKind::Directory);
        let locked = Locked::new(&[one_dir, other_dir, first, second]);
        let (Some(Some(found)), Some(Some(other_found))) = (
            is_still(volume, &locked, one_dir, one, Some(first))?,
            is_still(volume, &locked, other_dir, other, Some(second))?,
        ) else {
            continue;
        };
        if is_across && first_is_dir {
            check_no_ancestor(shared, first, other_dir)?;
        }
        if is_across && second_is_dir {
            check_no_ancestor(shared, second, one_dir)?;
        }
        if first.inode.ino == second.inode.ino {
            return Ok(());
        }
        let now = volume.now();
        let (one_nlink, other_nlink) = (one_dir.inode.nlink(volume)?, other_dir.inode.nlink(volume)?);
        let [first_count, second_count] = [first_is_dir, second_is_dir].map(u64::from);
        volume.transaction(|change| {
            DirIndex::replace(change, one, found, &second.inode)?;
            DirIndex::replace(change, other, other_found, &first.inode)?;
            one_dir.inode.touch(change, now)?;
            if is_across {
                other_dir.inode.touch(change, now)?;
                if first_is_dir {
                    first.inode.edit(change, |identity| identity.parent = other_dir.inode.ino)?;
                }
                if second_is_dir {
                    second.inode.edit(change, |identity| identity.parent = one_dir.inode.ino)?;
                }
                if first_is_dir != second_is_dir {
                    let nlink = one_dir.inode.changed_nlink(one_nlink, second_count, first_count)?;
                    one_dir.inode.set_nlink(change, nlink)?;
                    let nlink = other_dir.inode.changed_nlink(other_nlink, first_count, second_count)?;
                    other_dir.inode.set_nlink(change, nlink)?;
                }
            }
            change.set(first.inode.ctime_at(), now)?;
            change.set(second.inode.ctime_at(), now)
        })?;
        return Ok(());
    }
}

/// The target of a symbolic link.
pub(crate) fn read_link<P: Pmem>(volume: &Volume<P>, inode: &InodeRef) -> Result<Vec<u8>, FsError> {
    if inode.kind != FileKind::Symlink {
        return Err(FsError::Invalid);
    }
    let corrupted = FsError::corrupted(inode.size_at(), "the length of a symbolic link");
    let len = usize::try_from(inode.size(volume)?).ok().filter(|len| *len <= TARGET_MAX);
    let mut target = vec![0; len.ok_or(corrupted)?];
    if target.len() <= INLINE_LINK_MAX {
        volume.bytes(inode.slots_at(), &mut target)?;
    } else {
        let slot = tree::find(volume, inode, 0)?;
        let slot = slot.ok_or(FsError::corrupted(inode.slots_at(), "a symbolic link"))?;
        volume.pmem().load(volume.page(slot.number)?, &mut target);
    }
    Ok(target)
}

const _: () = assert!((TARGET_MAX as u64) < PAGE_BYTES);

/// The entries of a directory behind the one with a cookie.
pub(crate) fn entries<P: Pmem>(shared: &Shared<P>, dir: &State, behind: u64) -> Result<Vec<Entry>, FsError> {
    shared.ensure_index(dir)?;
    let inner = dir.read();
    // Fails if it has no name any more.
    index(&inner)?;
    dir::entries(&shared.volume, &dir.inode, behind)
}
