// A link made from bytes, which may have been a link of another pool.

use pm_core::{Link, Pool, PoolOptions, Region, from_bytes};

fn main() {
    let pool = Pool::format(Region::anonymous(1 << 20).unwrap(), &PoolOptions::new()).unwrap();
    pool.scope(|pm| {
        let link: Link<'_, u64> = from_bytes(|bytes| bytes[0] = 64);
        pm.read(link).map(drop)
    })
    .unwrap();
}
