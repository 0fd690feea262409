// The right use of everything that the wrong programs misuse.
use pm_alloc::{Heap, TxError};
use pm_core::{Link, Persist, field};

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

fn right(one: &Heap, other: &Heap) -> Result<u64, TxError> {
    // A value that leaves a closure, or is passed from one heap to the other, contains no link.
    let id = one.transaction(|tx| {
        let shop = tx.root::<Shop>("shop")?.expect("the heap has a shop");
        tx.read(tx.read(shop)?.newest).map(|order| order.id)
    })?;
    other.transaction(|tx| {
        let shop = tx.root::<Shop>("shop")?.expect("the heap has a shop");
        let order = tx.alloc(&Order { id, previous: tx.read(shop)?.newest })?;
        tx.write(shop.field(field!(Shop, newest)), &order)
    })?;
    // A heap is shared, and each thread begins its own transactions.
    std::thread::scope(|threads| {
        let forgetting = threads.spawn(|| one.transaction(|tx| tx.remove_root("old")));
        forgetting.join().expect("a transaction does not panic")
    })?;
    // A view stores single words, and allocates or frees whole blocks, by calls that are durable at once.
    other.view(|view| {
        let shop = view.root::<Shop>("shop")?.expect("the heap has a shop");
        view.unlink_and_free(shop.field(field!(Shop, newest)))?;
        view.store_u64(shop.field(field!(Shop, count)), id)?;
        Ok(view.read(shop)?.count)
    })
}

pub(super) fn compiles() {
    let _ = right;
}
