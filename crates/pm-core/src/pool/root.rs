//! A root, and what a transaction stores to change it.

use super::RootError;
use super::format::{ROOT_NAME_BYTES, RootSlot};
use super::root_slots::name_of;
use crate::typed::bytes_of;
use core::fmt;

/// A root as the directory holds it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Root {
    name: [u8; ROOT_NAME_BYTES],
    offset: u64,
    len_bytes: u64,
    layout: u64,
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name: _, offset, len_bytes, layout } = self;
        f.debug_struct("Root")
            .field("name", &self.name())
            .field("offset", offset)
            .field("len_bytes", len_bytes)
            .field("layout", layout)
            .finish()
    }
}

impl Root {
    pub(super) const fn of(slot: &RootSlot) -> Self {
        Self {
            name: slot.name,
            offset: slot.target_offset,
            len_bytes: slot.target_bytes,
            layout: slot.layout,
        }
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        name_of(&self.name)
    }

    /// Where its value lies in the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// How long its value is.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The fingerprint of its value's type.
    #[must_use]
    pub const fn layout(&self) -> u64 {
        self.layout
    }

    /// Nothing, if its value has this layout and this length.
    ///
    /// # Errors
    /// [`RootError::Type`] else.
    pub fn expect_type(&self, expected_layout: u64, expected_bytes: u64) -> Result<(), RootError> {
        if (self.layout, self.len_bytes) == (expected_layout, expected_bytes) {
            return Ok(());
        }
        Err(RootError::Type {
            name: self.name().to_owned(),
            found_layout: self.layout,
            expected_layout,
            found_bytes: self.len_bytes,
            expected_bytes,
        })
    }
}

/// What a transaction stores to set or to remove a root, all of it at once, by means of its own; from
/// [`Pool::root_write`](crate::Pool::root_write). Other changes of the directory wait until it is done.
#[derive(Clone, Copy, Debug)]
pub struct RootWrite {
    pub(super) at: u64,
    pub(super) slot: RootSlot,
}

impl RootWrite {
    /// Where in the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.at
    }

    /// The name of the root that it sets or removes.
    #[must_use]
    pub fn name(&self) -> &str {
        name_of(&self.slot.name)
    }

    /// What.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        bytes_of(&self.slot)
    }

    /// The root that will be there, if one will.
    #[must_use]
    pub fn root(&self) -> Option<Root> {
        self.slot.is_in_use().then(|| Root::of(&self.slot))
    }
}
