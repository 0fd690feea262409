//! One word under a redo log, which recovery replays.

use crate::harness::*;

const VALUE: u64 = 0;
const LOGGED: u64 = 64;
const IS_LOGGED: u64 = 128;
pub(crate) const LEN_BYTES: u64 = 192;

/// The word. With `forgets`, recovery drops the log before what it replayed is durable.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) forgets: bool,
}

fn put(pmem: &SimPmem, word: u64, value: u64) -> Done {
    pmem.put(word, value)
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
                // One word is atomic, so the fence that drops the log is early enough.
                pmem.flush(VALUE, 8);
            }
            put(&pmem, IS_LOGGED, 0)?;
        }
        Ok(pmem)
    }

    fn apply(&self, pmem: &mut Arc<SimPmem>, &value: &u64) -> Done {
        put(pmem, LOGGED, value)?;
        put(pmem, IS_LOGGED, 1)?;
        put(pmem, VALUE, value)?;
        put(pmem, IS_LOGGED, 0)
    }

    fn observe(&self, pmem: &Arc<SimPmem>) -> Result<u64, FenceError> {
        Ok(pmem.load_u64(VALUE))
    }
}

oracle!(Cell: u64 = 0, |state, &value| *state = value);
