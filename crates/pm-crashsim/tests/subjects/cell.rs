//! One word under a redo log, which recovery replays.

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Oracle, SimPmem, Subject};
use std::sync::Arc;

const VALUE: u64 = 0;
const LOGGED: u64 = 64;
const IS_LOGGED: u64 = 128;
pub(crate) const LEN_BYTES: u64 = 192;

/// The word. With `forgets`, recovery drops the log before what it replayed is durable.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) forgets: bool,
}

fn put(pmem: &SimPmem, word: u64, value: u64) -> Result<(), FenceError> {
    pmem.store_u64(word, value);
    pmem.persist(word, 8)
}

impl Subject for Cell {
    type Op = u64;
    type State = u64;
    type Store = Arc<SimPmem>;
    type Error = FenceError;

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Arc<SimPmem>, FenceError> {
        if pmem.load_u64(IS_LOGGED) == 1 {
            pmem.store_u64(VALUE, pmem.load_u64(LOGGED));
            if !self.forgets {
                // Of one word there is all or nothing, so the fence of dropping the log is soon enough.
                pmem.flush(VALUE, 8);
            }
            put(&pmem, IS_LOGGED, 0)?;
        }
        Ok(pmem)
    }

    fn apply(&self, pmem: &mut Arc<SimPmem>, &value: &u64) -> Result<(), FenceError> {
        put(pmem, LOGGED, value)?;
        put(pmem, IS_LOGGED, 1)?;
        put(pmem, VALUE, value)?;
        put(pmem, IS_LOGGED, 0)
    }

    fn observe(&self, pmem: &Arc<SimPmem>) -> Result<u64, FenceError> {
        Ok(pmem.load_u64(VALUE))
    }
}

impl Oracle for Cell {
    fn initial(&self) -> u64 {
        0
    }

    fn expect(&self, state: &mut u64, &value: &u64) {
        *state = value;
    }
}
