//! Pools of any library: made when there is none, opened when there is one.

use crate::harness::*;

/// The magic says that there is a pool. On the next line, the rest of the header: version, identity, root, and a sum of these.
const MAGIC: u64 = 0;
const HEADER: u64 = 64;
const IS_POOL: u64 = u64::from_le_bytes(*b"pool\0\0\0\0");
const VERSION: u64 = 3;
const ROOT: u64 = 1024;

fn write_magic(pmem: &SimPmem) -> Done {
    pmem.put(MAGIC, IS_POOL) //~ B32 kept
}

fn create(pmem: &SimPmem, form: Form, identity: u64) -> Done {
    if form == Form::Bug {
        write_magic(pmem)?;
    }
    pmem.store_u64(ROOT, 0);
    pmem.flush(ROOT, 8);
    pmem.store(HEADER, &bytes_of(&[VERSION, identity, ROOT, VERSION + identity + ROOT]));
    pmem.flush(HEADER, 32);
    pmem.fence()?;
    if form == Form::Fixed {
        write_magic(pmem)?;
    }
    Ok(())
}

/// Opens the pool, or makes one of that identity. Returns which one it is, and where its root object is.
fn open_or_create(pmem: &SimPmem, form: Form, identity: u64) -> Result<(u64, u64), FenceError> {
    if pmem.load_u64(MAGIC) != IS_POOL {
        create(pmem, form, identity)?;
    }
    let [version, identity, root, sum] = load_words(pmem, HEADER);
    assert_eq!((version, sum), (VERSION, version + identity + root), "the pool cannot be opened");
    Ok((identity, root))
}

/// B32, of which Witcher reports 22: a pool's magic is durable before the rest of its header. A crash in its making
/// leaves a file that cannot be opened as a pool, and that the next creation takes for one.
pub(crate) fn crash_in_create_leaves_an_unusable_pool(form: Form) -> Case {
    // What the root's place was used for before.
    let used = image(|pmem| pmem.store_u64(ROOT, 99));
    let create: Step = |pmem, form| open_or_create(pmem, form, 1).map(|_| ());
    let set_root: Step = |pmem, _| pmem.put(ROOT, 5);
    let states = [(2, 0), (1, 0), (1, 5)];
    Case::steps(
        used,
        [create, set_root],
        move |pmem, step| step(pmem, form),
        states,
        move |pmem| {
            let (identity, root) = open_or_create(pmem, form, 2)?;
            Ok((identity, pmem.load_u64(root)))
        },
    )
}
