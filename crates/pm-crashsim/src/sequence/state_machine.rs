//! Sequences that a state machine of `proptest-state-machine` made up, and whose states it expects.

use super::case::Case;
use super::sequences::Sequences;
use super::subject::Subject;
use core::marker::PhantomData;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

type ReferenceState<S> = <<S as StateMachineSubject>::Reference as ReferenceStateMachine>::State;

/// A [`Subject`] of which a reference state machine knows what is expected. Needs the feature
/// `proptest-state-machine`.
pub trait StateMachineSubject: Subject<Op: 'static, State: 'static> + Sized + 'static {
    /// The reference. Its transitions are the operations.
    type Reference: ReferenceStateMachine<Transition = Self::Op>;

    /// The structure, created in the state that the reference starts in, with what explores it.
    fn sequences(initial: &ReferenceState<Self>) -> Sequences<Self>;

    /// What can be seen of a structure that is in the reference's state.
    fn state(reference: &ReferenceState<Self>) -> Self::State;
}

/// The test of a [`StateMachineSubject`]: collects the transitions, and crashes them everywhere at the end.
///
/// For `prop_state_machine!`: `fn survives(sequential 1..6 => CrashTest<Log>);`.
#[derive(Debug)]
pub struct CrashTest<S>(PhantomData<S>);

/// The transitions so far. See [`CrashTest`].
#[derive(Debug)]
pub struct Transitions<S: StateMachineSubject> {
    initial: ReferenceState<S>,
    ops: Vec<S::Op>,
}

impl<S: StateMachineSubject> StateMachineTest for CrashTest<S> {
    type SystemUnderTest = Transitions<S>;
    type Reference = S::Reference;

    fn init_test(initial: &ReferenceState<S>) -> Transitions<S> {
        Transitions { initial: initial.clone(), ops: Vec::new() }
    }

    fn apply(mut so_far: Transitions<S>, _: &ReferenceState<S>, op: S::Op) -> Transitions<S> {
        so_far.ops.push(op);
        so_far
    }

    fn teardown(all: Transitions<S>, _: ReferenceState<S>) {
        let Transitions { initial, ops } = all;
        let sequences = S::sequences(&initial);
        let step = |state: ReferenceState<S>, op: &S::Op| {
            let possible = S::Reference::preconditions(&state, op);
            possible.then(|| S::Reference::apply(state, op))
        };
        let case = |subject, durability| {
            Case::new(subject, durability, (&ops, &[]), initial.clone(), step, S::state)
        };
        if let Err(failure) = sequences.explore_case(case) {
            panic!("{failure}");
        }
    }
}
