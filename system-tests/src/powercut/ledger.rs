//! The comparison of acknowledged writes with the content after a power cut.

use std::collections::BTreeMap;

use miette::{Result, bail, miette};

use super::slots::Held;

/// The expected content of one kind of slots, over any number of power cuts.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// The first word of these slots' reports.
    kind: String,
    /// The number of writers. Slot N belongs to writer N modulo this number.
    writer_count: u64,
    /// Whether writes of these slots are atomic.
    is_atomic: bool,
    /// The expected content of each slot: found after the last cut, or acknowledged since.
    expected: BTreeMap<u64, Held>,
    acknowledged_count: usize,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// The number of writes acknowledged since the last cut, all present or overwritten by later ones.
    pub acknowledged_count: usize,
    /// The number of slots with a complete write that was not acknowledged.
    pub unacknowledged_count: usize,
    /// The number of slots torn by the cut.
    pub torn_count: usize,
}

impl Ledger {
    /// A ledger for blank slots.
    #[must_use]
    pub fn new(kind: &str, writer_count: u64, is_atomic: bool) -> Self {
        Self {
            kind: kind.to_owned(),
            writer_count,
            is_atomic,
            expected: BTreeMap::new(),
            acknowledged_count: 0,
        }
    }

    /// Enters a report, `KIND SLOT SEQUENCE`, and returns whether it is of this ledger's kind.
    pub fn acknowledge(&mut self, line: &str) -> Result<bool> {
        let Some(numbers) = line.strip_prefix(&self.kind).and_then(|rest| rest.strip_prefix(' ')) else {
            return Ok(false);
        };
        let malformed = || miette!("malformed report: {line:?}");
        let (slot, sequence) = numbers.split_once(' ').ok_or_else(malformed)?;
        let slot = slot.parse().map_err(|_| malformed())?;
        let sequence = sequence.parse().map_err(|_| malformed())?;
        if let Some(Held::Write(before)) = self.expected.insert(slot, Held::Write(sequence))
            && before >= sequence
        {
            bail!("slot {slot}: write {sequence} was acknowledged after {before}");
        }
        self.acknowledged_count += 1;
        Ok(true)
    }

    /// The number of writes acknowledged since the last comparison.
    #[must_use]
    pub const fn acknowledged_count(&self) -> usize {
        self.acknowledged_count
    }

    /// Compares with the content that a reader found after the cut, a line `SLOT HELD` for each slot that is not blank. This content is expected from
    /// then on.
    ///
    /// # Errors
    /// If an acknowledged write is lost, a writer has changed more than one slot without acknowledgement, or an atomic slot is torn.
    pub fn compare(&mut self, found: &str) -> Result<Tally> {
        let found = parse(found)?;
        let mut tally = Tally {
            acknowledged_count: std::mem::take(&mut self.acknowledged_count),
            unacknowledged_count: 0,
            torn_count: 0,
        };
        let mut changed = BTreeMap::new();
        let slots = self.expected.keys().chain(found.keys()).copied();
        for slot in slots.collect::<std::collections::BTreeSet<_>>() {
            let expected = self.expected.get(&slot).copied().unwrap_or(Held::Nothing);
            let is = found.get(&slot).copied().unwrap_or(Held::Nothing);
            if is == expected {
                continue;
            }
            match (expected, is) {
                (_, Held::Torn) if self.is_atomic => bail!("{} {slot} is torn", self.kind),
                (_, Held::Torn) => tally.torn_count += 1,
                (Held::Nothing | Held::Torn, Held::Write(_)) => tally.unacknowledged_count += 1,
                (Held::Write(old), Held::Write(new)) if new > old => tally.unacknowledged_count += 1,
                _ => bail!("{} {slot} holds {is} where {expected} was acknowledged", self.kind),
            }
            if let Some(other) = changed.insert(slot % self.writer_count, slot) {
                bail!(
                    "{} {slot} and {other} both hold unacknowledged writes of one writer: {is} where {expected} was",
                    self.kind
                );
            }
        }
        self.expected = found;
        Ok(tally)
    }
}

fn parse(found: &str) -> Result<BTreeMap<u64, Held>> {
    let parse = |line: &str| {
        let (slot, held) = line.split_once(' ')?;
        Some((slot.parse().ok()?, held.parse().ok()?))
    };
    found.lines().map(|line| parse(line).ok_or_else(|| miette!("a malformed line: {line:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two writers: slots 0, 2, 4 belong to the first, 1 and 3 to the second.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new("block", 2, false);
        for line in ["block 0 10", "block 1 11", "block 2 12", "block 3 13", "block 2 14"] {
            assert!(ledger.acknowledge(line).expect("a report"));
        }
        ledger
    }

    #[test]
    fn only_own_reports_are_counted() {
        let mut ledger = ledger();
        assert!(!ledger.acknowledge("file 1 2").expect("another's"));
        assert!(!ledger.acknowledge("blocks 1 2").expect("another's"));
        assert!(ledger.acknowledge("block 1").is_err());
        assert!(ledger.acknowledge("block 2 14").is_err(), "a write cannot come twice");
        assert_eq!(ledger.acknowledged_count(), 5);
    }

    #[test]
    fn comparison_sets_next_expectation() {
        let mut ledger = ledger();
        let well = Tally { acknowledged_count: 5, unacknowledged_count: 0, torn_count: 0 };
        assert_eq!(ledger.compare("0 10\n1 11\n2 14\n3 13\n").expect("well"), well);
        assert_eq!(ledger.compare("0 10\n1 11\n2 14\n3 13\n").expect("well").acknowledged_count, 0);
        assert!(ledger.compare("0 10\n1 11\n2 14\n").is_err());
    }

    #[test]
    fn each_writer_may_have_one_write_in_flight() {
        let tally = ledger().compare("0 10\n1 torn\n2 14\n3 13\n4 15\n").expect("well");
        assert_eq!((tally.unacknowledged_count, tally.torn_count), (1, 1));
        let tally = ledger().compare("0 16\n1 11\n2 14\n3 17\n").expect("well");
        assert_eq!((tally.unacknowledged_count, tally.torn_count), (2, 0));
        for two_of_one in ["0 16\n1 11\n2 torn\n3 13\n", "0 10\n1 18\n2 14\n3 19\n"] {
            assert!(ledger().compare(two_of_one).is_err(), "{two_of_one}");
        }
    }

    #[test]
    fn lost_old_and_torn_writes_are_found() {
        for bad in ["1 11\n2 14\n3 13\n", "0 10\n1 11\n2 12\n3 13\n", "0 10\n1 11\n2 14\n3 misplaced\n"] {
            assert!(ledger().compare(bad).is_err(), "{bad}");
        }
        let mut files = Ledger { is_atomic: true, ..ledger() };
        assert!(files.compare("0 10\n1 11\n2 torn\n3 13\n").is_err());
    }

    #[test]
    fn torn_slot_may_stay_torn_until_rewritten() {
        let mut ledger = ledger();
        let torn = "0 torn\n1 11\n2 14\n3 13\n";
        assert_eq!(ledger.compare(torn).expect("well").torn_count, 1);
        assert_eq!(ledger.compare(torn).expect("well").torn_count, 0);
        ledger.acknowledge("block 0 20").expect("a report");
        assert!(ledger.clone().compare("0 20\n1 11\n2 14\n3 13\n").is_ok());
        assert_eq!(ledger.compare(torn).expect("in flight again").torn_count, 1);
    }
}
