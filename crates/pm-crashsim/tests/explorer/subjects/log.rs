//! A log of words. A record carries its number and a checksum, so that one fence makes it durable.

use crate::harness::*;

/// Bytes of a record: number, value, checksum. Most straddle a line or two.
pub(crate) const RECORD_LEN: usize = 40;
pub(crate) const RECORD: u64 = RECORD_LEN as u64;
const CAPACITY: u64 = 8;
pub(crate) const LEN_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Recovery does not look at the checksum.
    TrustsNumbers,
    /// An append flushes only the first line of its record.
    FlushesFirstLine,
    /// Recovery does not clear the bytes after the last good record.
    KeepsStale,
}

/// The log. `is_buffered`: an append is durable only after a sync.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) is_buffered: bool,
    pub(crate) flaw: Flaw,
}

#[derive(Clone, Debug)]
pub(crate) enum LogOp {
    Append(u64),
    Sync,
}

pub(crate) struct OpenLog {
    pmem: Arc<SimPmem>,
    values: Vec<u64>,
}

fn checksum(number: u64, value: u64) -> u64 {
    let mixed = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd) ^ value;
    mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53) | 1
}

impl Log {
    /// The value of a good record with that number.
    fn record(&self, pmem: &SimPmem, number: u64) -> Option<u64> {
        let word = |index: u64| {
            let mut word = [0; 8];
            pmem.load(number * RECORD + index * 16, &mut word);
            u64::from_le_bytes(word)
        };
        let (found, value, sum) = (word(0), word(1), word(2));
        let is_good = sum == checksum(number, value) || self.flaw == Flaw::TrustsNumbers;
        (found == number + 1 && is_good).then_some(value)
    }
}

impl Subject for Log {
    type Op = LogOp;
    type State = Vec<u64>;
    type Store = OpenLog;
    type Error = FenceError;

    fn open(&self, pmem: Arc<SimPmem>) -> Result<OpenLog, FenceError> {
        let values: Vec<u64> = (0..CAPACITY).map_while(|number| self.record(&pmem, number)).collect();
        // Any word of it: the rest of a torn record must not be read as the end of the next one.
        let is_stale = |number: &u64| {
            let mut record = [0; RECORD_LEN];
            pmem.load(number * RECORD, &mut record);
            record != [0; RECORD_LEN]
        };
        let stale = (values.len() as u64..CAPACITY).filter(is_stale);
        for number in stale.filter(|_| self.flaw != Flaw::KeepsStale) {
            pmem.store(number * RECORD, &[0; RECORD_LEN]);
            pmem.flush(number * RECORD, RECORD);
        }
        pmem.fence()?;
        Ok(OpenLog { pmem, values })
    }

    fn apply(&self, log: &mut OpenLog, op: &LogOp) -> Done {
        let LogOp::Append(value) = *op else { return log.pmem.fence() };
        let number = log.values.len() as u64;
        if number == CAPACITY {
            return Ok(());
        }
        let mut record = [0; RECORD_LEN];
        for (index, word) in [number + 1, value, checksum(number, value)].into_iter().enumerate() {
            record[index * 16..index * 16 + 8].copy_from_slice(&word.to_le_bytes());
        }
        log.pmem.store(number * RECORD, &record);
        let flushed = if self.flaw == Flaw::FlushesFirstLine { 1 } else { RECORD };
        log.pmem.flush(number * RECORD, flushed);
        if !self.is_buffered {
            log.pmem.fence()?;
        }
        log.values.push(value);
        Ok(())
    }

    fn observe(&self, log: &OpenLog) -> Result<Vec<u64>, FenceError> {
        Ok(log.values.clone())
    }

    fn is_sync(&self, op: &LogOp) -> bool {
        matches!(op, LogOp::Sync)
    }
}

oracle!(Log: Vec<u64> = Vec::new(), |values, op| match op {
    LogOp::Append(value) if (values.len() as u64) < CAPACITY => values.push(*value),
    LogOp::Append(_) | LogOp::Sync => {}
});
