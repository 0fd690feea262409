// The right use of all that the wrong ones use wrongly.
include!("shop.rs");

fn place(pool: &Pool<Region>, id: u64) -> Result<u64, Box<dyn std::error::Error>> {
    pool.scope(|pm| {
        let shop = pm.root::<Shop>("shop")?.ok_or("no shop")?;
        let previous = pm.read(shop)?.newest;
        let order = pm.write(pm.claim(pool.data().start + 64 * id)?, &Order { id, previous });
        let order = pm.fence(pm.flush(order))?;
        let newest = pm.store_link(shop.field(field!(Shop, newest)), order.link())?;
        pm.fence(pm.flush(newest))?;
        Ok(pm.read(shop)?.count)
    })
}

pub(super) fn compiles() {
    let _ = place;
}
