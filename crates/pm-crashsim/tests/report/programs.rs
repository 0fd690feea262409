//! Programs with one bug each.

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Crash, Image, Run, SimPmem};

pub(crate) const FLAG: u64 = 0;
pub(crate) const SLOT: u64 = 1024;

pub(crate) fn region() -> Image {
    Image::zeroed(8192)
}

/// Publishes a slot by a flag, but flushes both at once.
pub(crate) fn unordered(run: &Run<()>) -> Result<(), FenceError> {
    let pmem = run.pmem();
    pmem.store_u64(SLOT, 7);
    pmem.flush(SLOT, 8);
    pmem.store_u64(FLAG, 1);
    pmem.flush(FLAG, 8);
    pmem.fence()?;
    run.ack(());
    Ok(())
}

/// The same without even a flush of the slot before the flag.
pub(crate) fn unflushed(run: &Run<()>) -> Result<(), FenceError> {
    let pmem = run.pmem();
    pmem.store_u64(SLOT, 7);
    pmem.store_u64(FLAG, 1);
    pmem.persist(FLAG, 8)?; // teeth(fence): the next one fences too
    pmem.persist(SLOT, 8)?; // too late: the planted bug
    run.ack(());
    Ok(())
}

/// The slot is durable if the flag is.
pub(crate) fn published(crash: &Crash<'_, ()>) -> Result<(), String> {
    let found = (crash.pmem().load_u64(FLAG) == 1).then(|| crash.pmem().load_u64(SLOT));
    let allowed = if crash.acked().is_empty() { vec![None, Some(7)] } else { vec![Some(7)] };
    crash.expect(found, allowed).map_err(|mismatch| mismatch.to_string())
}

pub(crate) const LINES: u64 = 20;
pub(crate) const FORGOTTEN: u64 = 13;

/// Stores to twenty lines, flushes all but one of them, and fences.
pub(crate) fn one_forgotten(run: &Run<()>) -> Result<(), FenceError> {
    let pmem = run.pmem();
    for line in 0..LINES {
        pmem.store_u64(SLOT + 64 * line, line + 1);
        if line != FORGOTTEN {
            pmem.flush(SLOT + 64 * line, 8);
        }
    }
    pmem.fence()?;
    run.ack(());
    // What follows keeps many more lines pending at the same crash.
    for line in 0..LINES {
        pmem.store_u64(4096 + 64 * line, 1);
    }
    Ok(())
}

/// Once acknowledged, all twenty lines are there.
pub(crate) fn all_there(crash: &Crash<'_, ()>) -> Result<(), String> {
    let found = (0..LINES).filter(|line| crash.pmem().load_u64(SLOT + 64 * line) == line + 1).count();
    match (found, crash.acked()) {
        (20, _) | (_, []) => Ok(()),
        _ => Err(format!("{found} lines of {LINES}")),
    }
}

/// Stores over the end of a line, and flushes as if the bytes lay in the first.
pub(crate) fn straddling(run: &Run<()>) -> Result<(), FenceError> {
    let pmem = run.pmem();
    pmem.store(SLOT + 60, &[7; 8]);
    pmem.flush(SLOT + 60, 4);
    pmem.fence()?;
    pmem.store_u64(FLAG, 1);
    pmem.persist(FLAG, 8)
}

/// The slot is not torn if the flag is durable.
pub(crate) fn whole(crash: &Crash<'_, ()>) -> Result<(), String> {
    let mut found = [0; 8];
    crash.pmem().load(SLOT + 60, &mut found);
    match crash.pmem().load_u64(FLAG) {
        1 => crash.expect(found, [[7; 8]]).map_err(|mismatch| mismatch.to_string()),
        _ => Ok(()),
    }
}

pub(crate) const BALANCES: [u64; 2] = [64, 128];
pub(crate) const LOG: u64 = 192;
pub(crate) const LOG_VALID: u64 = 256;

/// Two balances of 100.
pub(crate) fn two_accounts() -> Image {
    let pmem = SimPmem::new(4096);
    for balance in BALANCES {
        pmem.store_u64(balance, 100);
    }
    pmem.to_image()
}

/// Moves 10 from one balance to another under a redo log.
pub(crate) fn transfer(run: &Run<()>) -> Result<(), FenceError> {
    let pmem = run.pmem();
    pmem.store_u64(LOG, 90);
    pmem.store_u64(LOG + 8, 110);
    pmem.persist(LOG, 16)?;
    pmem.store_u64(LOG_VALID, 1);
    pmem.persist(LOG_VALID, 8)?;
    run.ack(());
    Ok(())
}

/// Replays the log, and forgets it before what it replayed is durable: only a crash inside recovery shows it.
pub(crate) fn recovers_carelessly(crash: &Crash<'_, ()>) -> Result<(), String> {
    let pmem = crash.pmem();
    if pmem.load_u64(LOG_VALID) == 1 {
        for (number, balance) in BALANCES.into_iter().enumerate() {
            pmem.store_u64(balance, pmem.load_u64(LOG + 8 * number as u64));
        }
        pmem.store_u64(LOG_VALID, 0);
        pmem.persist(0, 320).map_err(|error| error.to_string())?;
    }
    let found = BALANCES.map(|balance| pmem.load_u64(balance));
    let allowed = if crash.acked().is_empty() { vec![[100, 100], [90, 110]] } else { vec![[90, 110]] };
    crash.expect(found, allowed).map_err(|mismatch| mismatch.to_string())
}

/// Stores the wrong value, and never fails to make it durable.
pub(crate) fn wrong_value(run: &Run<()>) -> Result<(), FenceError> {
    let pmem = run.pmem();
    pmem.store_u64(SLOT, 8);
    pmem.persist(SLOT, 8)?;
    pmem.store_u64(FLAG, 1);
    pmem.persist(FLAG, 8)?;
    run.ack(());
    Ok(())
}

/// Uses all that the seam, and the simulator beyond it, offers.
pub(crate) fn all_calls(run: &Run<()>) -> Result<(), FenceError> {
    let pmem = run.pmem();
    pmem.store(100, &[1, 2, 3]);
    pmem.store(700, &[9; 20]);
    pmem.store_nt(512, &[5; 24]);
    pmem.flush(64, 64);
    pmem.fence()?;
    run.ack(());
    pmem.compare_exchange_u64(64, pmem.load_u64(64), 0x1234_5678_9abc).unwrap();
    pmem.clflush(64, 8);
    pmem.mfence();
    pmem.store_u64(800, 1);
    Ok(())
}

/// Nothing is ever right.
pub(crate) fn never(crash: &Crash<'_, ()>) -> Result<(), String> {
    match crash.pmem().load_u64(64) {
        0x1234_5678_9abc => Err("never right".to_owned()),
        _ => Ok(()),
    }
}
