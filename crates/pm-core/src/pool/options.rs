//! The options for creating a pool.

use super::format::{DATA_START_MIN, Header, LOGGED_ROOTS};
use super::{PoolError, header};
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// The options for creating or formatting a pool: its layout, its identity, and how its roots are changed.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    data_start: u64,
    pub(super) overwrite: bool,
    logged_roots: bool,
    uuid: Option<Uuid>,
    created_s: Option<u64>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl PoolOptions {
    /// The defaults: the data area directly after the roots, a random identity, roots without a log, and no overwriting.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            data_start: DATA_START_MIN,
            overwrite: false,
            logged_roots: false,
            uuid: None,
            created_s: None,
        }
    }

    /// Sets the start of the data area: a multiple of 4,096, at least 8,192. Huge pages can map the data area if its start is a multiple of 2 MiB.
    #[must_use]
    pub const fn data_start(mut self, data_start: u64) -> Self {
        self.data_start = data_start;
        self
    }

    /// Allows formatting over an existing pool, which destroys that pool.
    #[must_use]
    pub const fn overwrite(mut self) -> Self {
        self.overwrite = true;
        self
    }

    /// Gives the pool logged roots: only transactions of a log in the data area may change its root directory. The pool's own methods that change
    /// roots return [`RootError::Logged`](super::RootError::Logged), because a replay of the log could undo their changes. The owner of the log uses
    /// [`Pool::begin_root_change`](super::Pool::begin_root_change) and [`Pool::logged_roots`](super::Pool::logged_roots).
    #[must_use]
    pub const fn with_logged_roots(mut self) -> Self {
        self.logged_roots = true;
        self
    }

    /// Sets the identity, which is random by default. Neither of its 8-byte halves may be zero, because a zero half in a corrupted header counts as
    /// erased. If one is zero, creating the pool fails with [`PoolError::Identity`].
    #[must_use]
    pub const fn uuid(mut self, uuid: Uuid) -> Self {
        self.uuid = Some(uuid);
        self
    }

    /// Sets the time of creation, in seconds since 1970. The default is the current time.
    #[must_use]
    pub const fn created_s(mut self, created_s: u64) -> Self {
        self.created_s = Some(created_s);
        self
    }

    pub(super) fn header(&self, pool_bytes: u64) -> Result<Header, PoolError> {
        let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let uuid = self.uuid.unwrap_or_else(Uuid::new_v4);
        if uuid.as_bytes().as_chunks::<8>().0.contains(&[0; 8]) {
            return Err(PoolError::Identity { uuid });
        }
        let created_s = self.created_s.unwrap_or_else(now_s);
        let features_ro_compat = if self.logged_roots { LOGGED_ROOTS } else { 0 };
        let header = header::new_header(pool_bytes, self.data_start, uuid, created_s)?;
        Ok(Header { features_ro_compat, ..header }.sealed())
    }
}
