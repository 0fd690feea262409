//! POSIX access control lists: two extended attributes, of which the access list agrees with the permissions, and the default list of a directory is
//! inherited.
//!
//! # Source
//! acl(5); `include/uapi/linux/posix_acl_xattr.h` of Linux.

use crate::error::FsError;
use crate::node::attribute_block::Xattrs;
use crate::node::inode::FileKind;

/// The name of the list that permissions are checked by.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The name of the list that new files in a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// Tags of entries, in the order in which a list has them.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// An entry of a list: a tag, permissions of three bits, and the number of a user or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

/// The three bits of a mode from a shift on.
const fn bits(mode: u32, shift: u32) -> u16 {
    (mode >> shift & 0o7) as u16
}

impl Acl {
    /// Parses the value of an attribute. `None` if it is no valid list.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_at_checked(HEAD_BYTES)?;
        let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else { return None };
        let entries = entries.iter().map(|&[tag_0, tag_1, perm_0, perm_1, id @ ..]| Entry {
            tag: u16::from_le_bytes([tag_0, tag_1]),
            permissions: u16::from_le_bytes([perm_0, perm_1]),
            id: u32::from_le_bytes(id),
        });
        let acl = Self(entries.collect());
        (version == VERSION.to_le_bytes() && acl.is_valid()).then_some(acl)
    }

    /// Whether the entries are in order, those that each list has are there once, and a mask is there if users or groups have names.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let is_known = |entry: &Entry| {
            matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && entry.permissions <= 7
        };
        let named = [USER, GROUP].map(count).iter().sum::<usize>();
        let key = |entry: &Entry| (entry.tag, if matches!(entry.tag, USER | GROUP) { entry.id } else { 0 });
        self.0.iter().all(is_known)
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && self
                .0
                .iter()
                .enumerate()
                .all(|(at, entry)| !self.0[..at].iter().any(|other| key(other) == key(entry)))
            && [USER_OBJ, GROUP_OBJ, OTHER].map(count) == [1; 3]
            && (named == 0 || count(MASK) == 1)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for Entry { tag, permissions, id } in &self.0 {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Whether it says no more than the permissions of a mode.
    fn is_mode_only(&self) -> bool {
        self.0.len() == 3
    }

    /// The entry that the group's bits of a mode are: the mask, or that of the group.
    fn group_class(&self) -> u16 {
        if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OBJ }
    }

    /// A mode with the permissions of this list.
    fn mode(&self, mode: u32) -> u32 {
        let of = |tag: u16| {
            self.0.iter().find(|entry| entry.tag == tag).map_or(0, |entry| u32::from(entry.permissions))
        };
        mode & !0o777 | of(USER_OBJ) << 6 | of(self.group_class()) << 3 | of(OTHER)
    }

    /// Changes the permissions of the owner, of the group's class and of others.
    fn map_classes(&mut self, mut change: impl FnMut(u16, u32) -> u16) {
        let group_class = self.group_class();
        for entry in &mut self.0 {
            let shift = match entry.tag {
                USER_OBJ => 6,
                OTHER => 0,
                tag if tag == group_class => 3,
                _ => continue,
            };
            entry.permissions = change(entry.permissions, shift);
        }
    }
}

/// Sets a list among the attributes of a file. Returns the file's new mode.
pub(crate) fn set(
    attributes: &mut Xattrs,
    name: &[u8],
    value: &[u8],
    kind: FileKind,
    mode: u32,
) -> Result<u32, FsError> {
    let acl = Acl::parse(value).ok_or(FsError::Invalid)?;
    match (name == DEFAULT, kind) {
        (_, FileKind::Symlink) => return Err(FsError::Invalid),
        (true, FileKind::Directory) => {
            attributes.insert(name.to_vec(), value.to_vec());
            return Ok(mode);
        }
        (true, _) => return Err(FsError::AccessDenied),
        (false, _) => {}
    }
    if acl.is_mode_only() {
        attributes.remove(name);
    } else {
        attributes.insert(name.to_vec(), value.to_vec());
    }
    Ok(acl.mode(mode))
}

/// Changes the access list among the attributes of a file to agree with a new mode. Returns whether there is one.
pub(crate) fn change_mode(attributes: &mut Xattrs, mode: u32) -> bool {
    let Some(value) = attributes.get_mut(ACCESS) else { return false };
    // One that is no list, from the medium, has no permissions to change.
    let Some(mut acl) = Acl::parse(value) else { return false };
    acl.map_classes(|_, shift| bits(mode, shift));
    *value = acl.to_bytes();
    true
}

/// What a new file gets because of its directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    pub(crate) mode: u32,
    pub(crate) attributes: Xattrs,
}

/// The mode of a new file in a directory with these attributes, and the attributes that it inherits. `umask` counts if the directory has no default
/// list.
pub(crate) fn inherit(parent: &Xattrs, kind: FileKind, mode: u32, umask: u32) -> Inherited {
    let mut attributes = Xattrs::new();
    let list = parent.get(DEFAULT).filter(|_| kind != FileKind::Symlink);
    let Some((value, mut acl)) = list.and_then(|value| Some((value, Acl::parse(value)?))) else {
        return Inherited { mode: mode & !(umask & 0o777), attributes };
    };
    if kind == FileKind::Directory {
        attributes.insert(DEFAULT.to_vec(), value.clone());
    }
    acl.map_classes(|permissions, shift| permissions & bits(mode, shift));
    if !acl.is_mode_only() {
        attributes.insert(ACCESS.to_vec(), acl.to_bytes());
    }
    Inherited { mode: acl.mode(mode), attributes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect()).to_bytes()
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn lists_are_validated() {
        let valid =
            [(USER_OBJ, 7, NONE), (USER, 5, 1), (GROUP_OBJ, 4, NONE), (MASK, 7, NONE), (OTHER, 0, NONE)];
        assert_eq!(Acl::parse(&value(&valid)).map(|acl| acl.to_bytes()), Some(value(&valid)));
        let without = |at: usize| {
            valid.iter().enumerate().filter(move |(index, _)| *index != at).map(|(_, entry)| *entry)
        };
        for at in [0, 2, 3, 4] {
            assert_eq!(Acl::parse(&value(&without(at).collect::<Vec<_>>())), None, "{at}");
        }
        // Without names no mask is needed.
        assert!(Acl::parse(&value(&[valid[0], valid[2], valid[4]])).is_some());
        assert_eq!(Acl::parse(&value(&[valid[0], valid[1], valid[1], valid[2], valid[3], valid[4]])), None);
        assert_eq!(Acl::parse(&value(&[valid[0], valid[2], valid[1], valid[3], valid[4]])), None);
        assert_eq!(Acl::parse(&value(&[(USER_OBJ, 8, NONE), valid[2], valid[4]])), None);
        assert_eq!(Acl::parse(&value(&[valid[0], valid[2], valid[4], (0x40, 0, NONE)])), None);
        let mut other_version = value(&valid);
        other_version[0] = 1;
        assert_eq!(Acl::parse(&other_version), None);
        assert_eq!(Acl::parse(&value(&valid)[..11]), None);
        assert_eq!(Acl::parse(b""), None);
    }

    #[test]
    fn access_list_is_the_mode() {
        let mut attributes = Xattrs::new();
        let named = value(&[
            (USER_OBJ, 6, NONE),
            (USER, 7, 1),
            (GROUP_OBJ, 4, NONE),
            (MASK, 5, NONE),
            (OTHER, 1, NONE),
        ]);
        let set = |attributes: &mut Xattrs, name, value| set(attributes, name, value, FileKind::File, 0o4600);
        assert_eq!(set(&mut attributes, ACCESS, &named).ok(), Some(0o4651));
        assert_eq!(attributes[ACCESS], named);
        assert!(change_mode(&mut attributes, 0o720));
        let changed = value(&[
            (USER_OBJ, 7, NONE),
            (USER, 7, 1),
            (GROUP_OBJ, 4, NONE),
            (MASK, 2, NONE),
            (OTHER, 0, NONE),
        ]);
        assert_eq!(attributes[ACCESS], changed);
        // The mode says all.
        let short = value(&[(USER_OBJ, 6, NONE), (GROUP_OBJ, 4, NONE), (OTHER, 1, NONE)]);
        assert_eq!(set(&mut attributes, ACCESS, &short).ok(), Some(0o4641));
        assert!(attributes.is_empty());
        assert!(!change_mode(&mut attributes, 0o720));
        assert!(matches!(set(&mut attributes, DEFAULT, &short), Err(FsError::AccessDenied)));
        assert!(matches!(set(&mut attributes, ACCESS, b"none"), Err(FsError::Invalid)));
    }

    #[test]
    fn default_list_is_inherited() {
        let default = value(&[
            (USER_OBJ, 7, NONE),
            (USER, 7, 1),
            (GROUP_OBJ, 5, NONE),
            (MASK, 7, NONE),
            (OTHER, 5, NONE),
        ]);
        let parent = Xattrs::from([(DEFAULT.to_vec(), default.clone())]);
        let inherit = |parent: &Xattrs, kind, mode, umask| {
            let Inherited { mode, attributes } = inherit(parent, kind, mode, umask);
            (mode, attributes)
        };
        let (mode, inherited) = inherit(&parent, FileKind::File, 0o644, 0o077);
        let access = value(&[
            (USER_OBJ, 6, NONE),
            (USER, 7, 1),
            (GROUP_OBJ, 5, NONE),
            (MASK, 4, NONE),
            (OTHER, 4, NONE),
        ]);
        assert_eq!((mode, inherited), (0o644, Xattrs::from([(ACCESS.to_vec(), access)])));
        let (mode, inherited) = inherit(&parent, FileKind::Directory, 0o777, 0o077);
        assert_eq!((mode, &inherited[DEFAULT], &inherited[ACCESS]), (0o775, &default, &default));
        assert_eq!(inherit(&parent, FileKind::Symlink, 0o777, 0), (0o777, Xattrs::new()));
        assert_eq!(inherit(&Xattrs::new(), FileKind::File, 0o666, 0o027), (0o640, Xattrs::new()));
        // A list that the mode says all of is not stored.
        let short = value(&[(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]);
        let parent = Xattrs::from([(DEFAULT.to_vec(), short)]);
        assert_eq!(inherit(&parent, FileKind::File, 0o666, 0o777), (0o640, Xattrs::new()));
    }
}
