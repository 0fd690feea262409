//! Power cuts during transactions on a heap on DAX. Acknowledged transactions must survive, all transactions must be atomic, and the heap must be valid.

use crate::power_cut_load::Load;
use miette::Result;

#[test]
fn acknowledged_transactions_survive_kills_and_power_cuts() -> Result<()> {
    let load = Load {
        kind: "heap",
        what: "transactions",
        run: "transact /mnt/pmem/heap.pm",
        check: "look /mnt/pmem/heap.pm",
        most: 15_150,
        checked: "the heap is whole",
    };
    load.survives_kills_and_power_cuts()
}
