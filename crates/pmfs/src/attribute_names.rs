//! The names of extended attributes: xattr(7).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// The attributes with access control lists.
pub(crate) const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// How the names of attributes begin that only root may use.
pub(crate) const TRUSTED: &[u8] = b"trusted.";

/// Whether an attribute with this name is stored. Capabilities would need more than to be stored.
pub(crate) fn is_kept(name: &OsStr) -> bool {
    let name = name.as_bytes();
    ACLS.contains(&name) || [b"user.", TRUSTED].iter().any(|prefix| name.starts_with(prefix))
}
