// A link that leaves its scope.
#![allow(unused)]
include!("shop.rs");

fn misuse(pool: &Pool<Region>) {
    let escaped = pool.scope(|pm| pm.root::<Shop>("shop").unwrap());
}

fn main() {}
