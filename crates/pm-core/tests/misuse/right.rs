// The right use of all that the wrong ones use wrongly.
use pm_core::{Link, Persist, Pool, Region, field};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Order<'p> {
    id: u64,
    previous: Link<'p, Order<'p>>,
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Shop<'p> {
    newest: Link<'p, Order<'p>>,
    count: u64,
}

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

fn main() {
    let _ = place;
}
