//! Renames: a name goes to another place, or two names exchange their inodes.

use crate::error::FsError;
use crate::node::dir::{DirChange, DirIndex, Found};
use crate::node::inode::{FileKind, offset_of_ino};
use crate::ops::lookup::{DirName, check_empty, find_again, hold};
use crate::session::link_removal::{LinkRemoval, RemovedLink};
use crate::session::locked::Locked;
use crate::session::shared::Shared;
use crate::session::table::State;
use crate::volume::Volume;
use pm_core::Pmem;

/// The most ancestors of a directory that are looked at: a corrupted parent may lead in a circle.
const DEPTH_MAX: u32 = 1 << 20;

/// Gives a file another name, in the same directory or in another one. An inode that has that name loses it, unless `keeps_target`: then that is an
/// error.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves the old state. One fence; two if the directory
/// gets a block. An inode that is replaced is freed as by [`unlink`](super::unlink::unlink).
pub(crate) fn rename<P: Pmem>(
    shared: &Shared<P>,
    from: DirName<'_>,
    to: DirName<'_>,
    keeps_target: bool,
) -> Result<(), FsError> {
    from.check()?;
    to.check()?;
    let volume = shared.prepared()?;
    shared.ensure_index(from.dir)?;
    shared.ensure_index(to.dir)?;
    let is_across = is_across(from, to);
    let _renames = is_across.then(|| shared.lock_renames());
    loop {
        let child = hold(shared, from)?;
        let target = match hold(shared, to) {
            Ok(target) => Some(target),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let (state, replaced) = (&*child.state, target.as_ref().map(|target| &*target.state));
        if let Some(replaced) = replaced
            && is_dir(replaced)
        {
            shared.ensure_index(replaced)?;
        }
        let all: Vec<&State> = [from.dir, to.dir, state].into_iter().chain(replaced).collect();
        let mut locked = Locked::new(&all);
        let (found, old) =
            (find_again(volume, &locked, from, state)?, find_target(volume, &locked, to, replaced)?);
        let (Some(found), false) = (found, matches!(old, Target::Changed)) else { continue };
        if is_across && is_dir(state) {
            check_no_ancestor(shared, state, to.dir)?;
        }
        let Target::Replaced(old) = old else {
            return Move { from, found, to, state, old: None }.run(shared, &mut locked);
        };
        if keeps_target {
            return Err(FsError::Exists);
        }
        if old.state.inode.ino == state.inode.ino {
            return Ok(());
        }
        match (is_dir(state), is_dir(old.state)) {
            (true, false) => return Err(FsError::NotADirectory),
            (false, true) => return Err(FsError::IsADirectory),
            _ => check_empty(&locked, old.state)?,
        }
        return Move { from, found, to, state, old: Some(old) }.run(shared, &mut locked);
    }
}

/// Exchanges the inodes of two names.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves the old state. One fence.
pub(crate) fn exchange<P: Pmem>(
    shared: &Shared<P>,
    one: DirName<'_>,
    other: DirName<'_>,
) -> Result<(), FsError> {
    one.check()?;
    other.check()?;
    shared.ensure_index(one.dir)?;
    shared.ensure_index(other.dir)?;
    let (one_dir, other_dir) = (&one.dir.inode, &other.dir.inode);
    let is_across = is_across(one, other);
    let _renames = is_across.then(|| shared.lock_renames());
    let volume = shared.prepared()?;
    loop {
        let (first, second) = (hold(shared, one)?, hold(shared, other)?);
        let (first, second) = (&*first.state, &*second.state);
        let [first_is_dir, second_is_dir] = [first, second].map(is_dir);
        let locked = Locked::new(&[one.dir, other.dir, first, second]);
        let (Some(found), Some(other_found)) =
            (find_again(volume, &locked, one, first)?, find_again(volume, &locked, other, second)?)
        else {
            continue;
        };
        if is_across && first_is_dir {
            check_no_ancestor(shared, first, other.dir)?;
        }
        if is_across && second_is_dir {
            check_no_ancestor(shared, second, one.dir)?;
        }
        if first.inode.ino == second.inode.ino {
            return Ok(());
        }
        let now = volume.now();
        let (one_nlink, other_nlink) = (one_dir.nlink(volume)?, other_dir.nlink(volume)?);
        let [first_count, second_count] = [first_is_dir, second_is_dir].map(u64::from);
        volume.transaction(|change| {
            DirIndex::replace(change, one.name, found, &second.inode)?;
            DirIndex::replace(change, other.name, other_found, &first.inode)?;
            one_dir.touch(change, now)?;
            if is_across {
                other_dir.touch(change, now)?;
                if first_is_dir {
                    first.inode.set_parent(change, other_dir.ino)?;
                }
                if second_is_dir {
                    second.inode.set_parent(change, one_dir.ino)?;
                }
                if first_is_dir != second_is_dir {
                    let nlink = one_dir.changed_nlink(one_nlink, second_count, first_count)?;
                    one_dir.set_nlink(change, nlink)?;
                    let nlink = other_dir.changed_nlink(other_nlink, first_count, second_count)?;
                    other_dir.set_nlink(change, nlink)?;
                }
            }
            change.set(first.inode.ctime_at(), now)?;
            change.set(second.inode.ctime_at(), now)
        })?;
        return Ok(());
    }
}

/// Checks that a directory is no ancestor of another one, nor the same. The caller has the lock of renames, so that no directory gets another parent,
/// and that of `of`, which has a name, so that none of its ancestors is removed.
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

fn is_dir(state: &State) -> bool {
    state.inode.kind == FileKind::Directory
}

/// Whether two names are in different directories.
fn is_across(one: DirName<'_>, other: DirName<'_>) -> bool {
    one.dir.inode.ino != other.dir.inode.ino
}

/// An inode that loses its name to the one that is renamed, and the entry that it has.
#[derive(Clone, Copy)]
struct Replaced<'s> {
    found: Found,
    state: &'s State,
}

/// What has the new name.
enum Target<'s> {
    Nothing,
    Replaced(Replaced<'s>),
    /// Something else than before: the caller looks again.
    Changed,
}

/// What has the new name, under all locks, after the caller has found and locked `replaced` there.
fn find_target<'s, P: Pmem>(
    volume: &Volume<P>,
    locked: &Locked<'_>,
    to: DirName<'_>,
    replaced: Option<&'s State>,
) -> Result<Target<'s>, FsError> {
    let Some(state) = replaced else {
        let found = locked.entries(to.dir)?.find(volume, to.name)?;
        return Ok(if found.is_none() { Target::Nothing } else { Target::Changed });
    };
    let found = find_again(volume, locked, to, state)?;
    Ok(found.map_or(Target::Changed, |found| Target::Replaced(Replaced { found, state })))
}

/// A rename whose locks are taken and whose conditions are checked.
struct Move<'s> {
    from: DirName<'s>,
    /// The entry of the old name.
    found: Found,
    to: DirName<'s>,
    /// The inode.
    state: &'s State,
    old: Option<Replaced<'s>>,
}

/// What the transaction of a rename has done.
struct Moved {
    /// A new entry. `None` if the inode has that of the one that was replaced.
    placed: Option<DirChange>,
    removed: DirChange,
    link: Option<RemovedLink>,
}

impl Move<'_> {
    fn run<P: Pmem>(self, shared: &Shared<P>, locked: &mut Locked<'_>) -> Result<(), FsError> {
        let Self { from, found, to, state, old } = self;
        let volume = &shared.volume;
        let is_across = is_across(from, to);
        let (from_dir, to_dir, inode) = (&from.dir.inode, &to.dir.inode, &state.inode);
        let link = old.map(|old| LinkRemoval::prepare(shared, old.state)).transpose()?;
        let now = volume.now();
        let (from_nlink, to_nlink) = (from_dir.nlink(volume)?, to_dir.nlink(volume)?);
        let gained = u64::from(is_dir(state) && is_across);
        let lost = u64::from(old.is_some_and(|old| is_dir(old.state)));
        let entries = locked.entries(to.dir)?;
        let moved = volume.transaction(|change| {
            let placed = match old {
                Some(old) => {
                    DirIndex::replace(change, to.name, old.found, inode)?;
                    None
                }
                None => Some(entries.add(change, to_dir, to.name, inode)?),
            };
            let removed = DirIndex::remove(change, found)?;
            to_dir.touch(change, now)?;
            if is_across {
                from_dir.touch(change, now)?;
            }
            if gained != 0 {
                from_dir.set_nlink(change, from_dir.changed_nlink(from_nlink, 0, 1)?)?;
                inode.set_parent(change, to_dir.ino)?;
            }
            if gained != lost {
                to_dir.set_nlink(change, to_dir.changed_nlink(to_nlink, gained, lost)?)?;
            }
            change.set(inode.ctime_at(), now)?;
            let link = link.as_ref().map(|link| link.store(change, now)).transpose()?;
            Ok(Moved { placed, removed, link })
        })?;
        if let Some(placed) = moved.placed {
            locked.get_mut(to.dir).apply(placed);
        }
        locked.get_mut(from.dir).apply(moved.removed);
        if let (Some(link), Some(removed)) = (link, moved.link) {
            link.finish(locked, removed);
        }
        Ok(())
    }
}
