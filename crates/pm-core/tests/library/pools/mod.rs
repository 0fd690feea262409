//! Pools for tests, with numbers as the values of roots.

#![allow(dead_code, clippy::unwrap_used, reason = "helpers of several tests; a test fails by panicking")]

use pm_core::{Pmem, Pool, PoolOptions, RootError, Uuid};
use pm_crashsim::{Image, SimPmem};
use std::sync::Arc;

pub(crate) const POOL_BYTES: u64 = 1 << 15;

/// The length of a region in which a pool of [`POOL_BYTES`] can grow.
pub(crate) const LONGER_BYTES: u64 = POOL_BYTES + 8192;

pub(crate) type SimPool = Pool<Arc<SimPmem>>;

pub(crate) fn options(identity: u8) -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([identity; 16])).created_s(0)
}

/// Stores a number at an offset, and sets a root that links to it.
pub(crate) fn try_set_at<P: Pmem>(
    pool: &Pool<P>,
    name: &str,
    offset: u64,
    value: u64,
) -> Result<(), RootError> {
    pool.scope(|pm| {
        let place = pm.claim(offset)?;
        pm.set_root_in_flight(name, pm.flush(pm.write(place, &value))).map(drop)
    })
}

pub(crate) fn set_at<P: Pmem>(pool: &Pool<P>, name: &str, offset: u64, value: u64) {
    try_set_at(pool, name, offset, value).unwrap();
}

/// Stores a number in a line of the data area, and sets a root that links to it.
pub(crate) fn try_set<P: Pmem>(pool: &Pool<P>, name: &str, line: u64, value: u64) -> Result<(), RootError> {
    try_set_at(pool, name, pool.data().start + 64 * line, value)
}

pub(crate) fn set<P: Pmem>(pool: &Pool<P>, name: &str, line: u64, value: u64) {
    try_set(pool, name, line, value).unwrap();
}

pub(crate) fn get<P: Pmem>(pool: &Pool<P>, name: &str) -> Option<u64> {
    pool.scope(|pm| pm.root::<u64>(name).unwrap().map(|link| pm.read(link).unwrap()))
}

/// The page at an offset.
pub(crate) fn page<P: Pmem>(pmem: &P, offset: u64) -> [u8; 4096] {
    let mut page = [1; 4096];
    pmem.load(offset, &mut page);
    page
}

/// The header of a pool of this length.
pub(crate) fn header_of(pool_bytes: u64, identity: u8) -> [u8; 4096] {
    page(Pool::format(SimPmem::new(pool_bytes), &options(identity)).unwrap().pmem(), 0)
}

/// The image, extended to `len_bytes` with zeroes.
pub(crate) fn longer(image: &Image, len_bytes: u64) -> Image {
    let mut bytes = image.to_bytes();
    bytes.resize(usize::try_from(len_bytes).unwrap(), 0);
    Image::from_bytes(bytes)
}
