//! A checker of linearizability: it follows the history of a key in the order of time, and keeps every state that the key may be in.

use super::history::Operation;
use std::collections::{BTreeMap, HashSet};

/// The states that a key may be in at a time, above which a history is undecided.
const STATES: usize = 1 << 20;

/// What a checker has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Linearizable,
    /// No order explains the answers.
    Illegal(String),
    /// There was not enough time or memory.
    Undecided(String),
}

/// What a key may have been through: its value, and which of the operations that have begun have had their effect, by their places.
type State = (Option<i64>, u64);

/// Checks each key of a history.
pub(crate) fn check(history: &[Operation]) -> BTreeMap<String, Verdict> {
    let mut keys = BTreeMap::<&str, Vec<&Operation>>::new();
    for operation in history {
        keys.entry(&operation.key).or_default().push(operation);
    }
    keys.into_iter().map(|(key, operations)| (key.to_owned(), check_key(&operations))).collect()
}

/// Checks one key. When an operation returns, every state is left out in which it cannot have had its effect by then, after any of those that
/// are open at this time.
fn check_key(operations: &[&Operation]) -> Verdict {
    let calls = operations.iter().map(|operation| (operation.call, 0, *operation));
    let ends = operations.iter().filter_map(|operation| Some((operation.end?, 1, *operation)));
    let mut events: Vec<(u64, u8, &Operation)> = calls.chain(ends).collect();
    // At the same time a call is before a return: the two operations overlap.
    events.sort_by_key(|(at, kind, _)| (*at, *kind));
    let mut places = [None::<&Operation>; 64];
    let mut states = HashSet::<State>::from([(None, 0)]);
    for (_, kind, operation) in events {
        if kind == 0 {
            let Some(free) = places.iter_mut().find(|place| place.is_none()) else {
                return Verdict::Undecided("more than 64 operations of a key are open at once".to_owned());
            };
            *free = Some(operation);
            continue;
        }
        let is_this = |place: &Option<&Operation>| place.is_some_and(|other| std::ptr::eq(other, operation));
        let Some(place) = places.iter().position(is_this) else {
            return Verdict::Undecided(format!("it returns before it is called: {operation:?}"));
        };
        let Some(next) = after_return(states, place, &places) else {
            return Verdict::Undecided(format!("more than {STATES} states at {operation:?}"));
        };
        if next.is_empty() {
            return Verdict::Illegal(format!("no order explains {operation:?}"));
        }
        states = without_used_up(next, &places);
        places[place] = None;
    }
    Verdict::Linearizable
}

/// The states after the operation at `place` has returned; none if there are too many.
fn after_return(
    states: HashSet<State>,
    place: usize,
    places: &[Option<&Operation>; 64],
) -> Option<HashSet<State>> {
    let mut next = HashSet::new();
    let mut reached: Vec<State> = states.iter().copied().collect();
    let mut seen = states;
    while let Some((value, effects)) = reached.pop() {
        if effects & (1 << place) != 0 {
            next.insert((value, effects & !(1 << place)));
            continue;
        }
        for (at, operation) in places.iter().enumerate() {
            if let Some(operation) = operation
                && effects & (1 << at) == 0
                && let Some(after) = operation.step(value)
            {
                let state = (after, effects | (1 << at));
                if seen.insert(state) {
                    reached.push(state);
                }
            }
        }
        if seen.len() > STATES {
            return None;
        }
    }
    Some(next)
}

/// Leaves out each state that differs from another one only by more operations of unknown outcome that have had their effect: whatever happens after it can
/// happen after the other one, too, in which they may still have it or never.
fn without_used_up(states: HashSet<State>, places: &[Option<&Operation>; 64]) -> HashSet<State> {
    let mut unknown = 0u64;
    for (at, place) in places.iter().enumerate() {
        unknown |= u64::from(place.is_some_and(|operation| operation.end.is_none())) << at;
    }
    let mut alike = BTreeMap::<(Option<i64>, u64), Vec<u64>>::new();
    for (value, effects) in states {
        alike.entry((value, effects & !unknown)).or_default().push(effects & unknown);
    }
    let mut kept = HashSet::new();
    for ((value, effects), mut used) in alike {
        used.sort_by_key(|used| used.count_ones());
        let mut least = Vec::<u64>::new();
        for used in used {
            if !least.iter().any(|least| least & !used == 0) {
                least.push(used);
            }
        }
        kept.extend(least.into_iter().map(|used| (value, effects | used)));
    }
    kept
}
