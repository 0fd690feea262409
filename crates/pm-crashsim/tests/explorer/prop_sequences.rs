//! Sequences that proptest makes, plain and from a reference state machine.

use crate::harness::*;
use crate::subjects::table::{self, Flaw, Table, TableOp};
use pm_crashsim::{CrashTest, StateMachineSubject};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

fn sequences(flaw: Flaw) -> Sequences<Table> {
    Sequences::new(Table(flaw), table::LEN_BYTES).unwrap()
}

fn op() -> impl Strategy<Value = TableOp> {
    prop_oneof![
        3 => (0..4_u64, 1..100_u64).prop_map(|(key, value)| TableOp::Put(key, value)),
        1 => (0..4_u64).prop_map(TableOp::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn sound_table_survives(ops in vec(op(), 1..7)) {
        sequences(Flaw::None).property(&ops)?;
    }
}

#[test]
fn proptest_shortens_a_failing_sequence() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRunner::deterministic().new_rng());
    let found = runner.run(&vec(op(), 1..7), |ops| {
        // One operation is enough to show it, if another one follows a recovery.
        sequences(Flaw::OldGoesFirst).crash_onward(0).property(&ops)
    });
    let Err(TestError::Fail(reason, ops)) = found else { panic!("{found:?}") };
    assert!(reason.message().contains("which is not allowed"), "{reason}");
    // Both keys must stay the same, so neither can be made smaller alone.
    assert!(
        matches!(ops[..], [TableOp::Put(first, 1), TableOp::Put(second, 1)] if first == second),
        "{ops:?}"
    );
}

/// A map of few keys: a key is removed only when it is there.
pub(crate) struct Map;

impl ReferenceStateMachine for Map {
    type State = BTreeMap<u64, u64>;
    type Transition = TableOp;

    fn init_state() -> BoxedStrategy<Self::State> {
        Just(BTreeMap::new()).boxed()
    }

    fn transitions(_: &Self::State) -> BoxedStrategy<TableOp> {
        op().boxed()
    }

    fn preconditions(map: &Self::State, op: &TableOp) -> bool {
        match op {
            TableOp::Put(..) => true,
            TableOp::Remove(key) => map.contains_key(key),
        }
    }

    fn apply(mut map: Self::State, op: &TableOp) -> Self::State {
        match *op {
            TableOp::Put(key, value) => map.insert(key, value),
            TableOp::Remove(key) => map.remove(&key),
        };
        map
    }
}

impl StateMachineSubject for Table {
    type Reference = Map;

    fn sequences(_: &BTreeMap<u64, u64>) -> Sequences<Self> {
        sequences(Flaw::None)
    }

    fn state(map: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
        map.clone()
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn sound_table_follows_its_reference(sequential 1..6 => CrashTest<Table>);
}

#[test]
#[should_panic(expected = "the state recovered is {}, which is not allowed")]
fn state_machine_test_finds_a_bug() {
    let (map, ops) = (BTreeMap::new(), vec![TableOp::Put(1, 1), TableOp::Put(1, 2)]);
    CrashTest::<Flawed>::test_sequential(ProptestConfig::default(), map, ops, None);
}

/// The table that drops the old version first.
#[derive(Clone, Debug)]
struct Flawed(Table);

impl Subject for Flawed {
    type Op = TableOp;
    type State = BTreeMap<u64, u64>;
    type Store = <Table as Subject>::Store;
    type Error = <Table as Subject>::Error;

    fn open(&self, pmem: Self::Store) -> Result<Self::Store, Self::Error> {
        self.0.open(pmem)
    }
    fn apply(&self, store: &mut Self::Store, op: &TableOp) -> Result<(), Self::Error> {
        self.0.apply(store, op)
    }
    fn observe(&self, store: &Self::Store) -> Result<Self::State, Self::Error> {
        self.0.observe(store)
    }
}

impl StateMachineSubject for Flawed {
    type Reference = Map;

    fn sequences(_: &BTreeMap<u64, u64>) -> Sequences<Self> {
        Sequences::new(Self(Table(Flaw::OldGoesFirst)), table::LEN_BYTES).unwrap()
    }

    fn state(map: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
        map.clone()
    }
}
