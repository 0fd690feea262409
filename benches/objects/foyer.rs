//! foyer: a cache in DRAM, with room for all objects. It keeps nothing over a restart.

use crate::{Contained, Loaded, random, rate};
use foyer_memory::{Cache, CacheBuilder};
use miette::{Result, miette};
use std::hint::black_box;

/// The copies a second of 64 B out of `count` objects at random.
pub(crate) fn loads(count: u64) -> Result<f64> {
    let capacity = usize::try_from(2 * count).expect("a number of objects");
    let cache: Cache<u64, Contained> = CacheBuilder::new(capacity).build();
    (0..count).for_each(|number| drop(cache.insert(number, [number; 32])));
    let load = |number: u64| {
        let entry = cache.get(&number).ok_or_else(|| miette!("object {number} was evicted"))?;
        let mut loaded: Loaded = [0; 8];
        loaded.copy_from_slice(&entry.value()[..8]);
        black_box(loaded);
        Ok(())
    };
    (0..count).try_for_each(load)?;
    rate(count, |number| load(random(number, count)))
}
