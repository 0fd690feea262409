//! Random sessions in a row, each ended by a crash, a kill, or a close: the store holds what a reference holds, and nothing is taken for corruption.

use fastrand::Rng;
use pm_btree::{Store, StoreOptions, Table, WriteError};
use pm_core::Domain;
use pm_testkit::{AnyPmem, Hook, Hooked, SampledPmem, State, any, seeds};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
struct Pages;
impl Hook<Arc<SampledPmem>> for Pages {
    fn domain(&self, _: &Arc<SampledPmem>) -> Domain {
        Domain::Page
    }
}

/// The number of the table, and the key.
type Name = (u8, Vec<u8>);
type Map = BTreeMap<Name, Vec<u8>>;
type AnyStore = Store<AnyPmem<'static>>;

struct Tables {
    words: Table<u64, u64, AnyPmem<'static>>,
    records: Table<u32, &'static [u8], AnyPmem<'static>>,
    names: Table<&'static [u8], &'static [u8], AnyPmem<'static>>,
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}
fn half(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().unwrap())
}

impl Tables {
    fn open(store: &AnyStore) -> Result<Self, String> {
        let text = |error: pm_btree::TableError| error.to_string();
        Ok(Self {
            words: store.table("words").map_err(text)?,
            records: store.table("records").map_err(text)?,
            names: store.table("names").map_err(text)?,
        })
    }

    fn get(&self, (table, key): &Name) -> Result<Option<Vec<u8>>, String> {
        let text = |error: pm_btree::ReadError| format!("get {table} {key:?}: {error}");
        Ok(match table {
            0 => self.words.get(word(key)).map_err(text)?.map(|value| value.value().to_be_bytes().to_vec()),
            1 => self.records.get(half(key)).map_err(text)?.map(|value| value.value().to_vec()),
            _ => self.names.get(key).map_err(text)?.map(|value| value.value().to_vec()),
        })
    }

    fn set(&self, (table, key): &Name, value: Option<&Vec<u8>>, grouped: bool) -> Result<(), WriteError> {
        match (table, value, grouped) {
            (0, Some(value), false) => drop(self.words.insert(word(key), word(value))?),
            (1, Some(value), false) => drop(self.records.insert(half(key), value)?),
            (_, Some(value), false) => drop(self.names.insert(key, value)?),
            (0, None, false) => drop(self.words.remove(word(key))?),
            (1, None, false) => drop(self.records.remove(half(key))?),
            (_, None, false) => drop(self.names.remove(key)?),
            (0, Some(value), true) => self.words.insert_grouped(word(key), word(value))?,
            (1, Some(value), true) => self.records.insert_grouped(half(key), value)?,
            (_, Some(value), true) => self.names.insert_grouped(key, value)?,
            (0, None, true) => self.words.remove_grouped(word(key))?,
            (1, None, true) => self.records.remove_grouped(half(key))?,
            (_, None, true) => self.names.remove_grouped(key)?,
        }
        Ok(())
    }

    fn all(&self) -> Result<Map, String> {
        let text = |error: pm_btree::ReadError| format!("range: {error}");
        let mut map = Map::new();
        for entry in self.words.range(..) {
            let (key, value) = entry.map_err(text)?;
            map.insert((0, key.value().to_be_bytes().to_vec()), value.value().to_be_bytes().to_vec());
        }
        for entry in self.records.range(..) {
            let (key, value) = entry.map_err(text)?;
            map.insert((1, key.value().to_be_bytes().to_vec()), value.value().to_vec());
        }
        for entry in self.names.range(..) {
            let (key, value) = entry.map_err(text)?;
            map.insert((2, key.value().to_vec()), value.value().to_vec());
        }
        let len = self.words.len().map_err(text)?
            + self.records.len().map_err(text)?
            + self.names.len().map_err(text)?;
        if len == map.len() as u64 { Ok(map) } else { Err(format!("length {len} of {}", map.len())) }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Set(Name, Option<Vec<u8>>),
    Batch(Vec<(Name, Option<Vec<u8>>)>),
    /// Removes keys of a table from the first to before the second.
    RemoveRange(u8, Vec<u8>, Vec<u8>),
    Pop(u8, bool),
    Grouped(Name, Option<Vec<u8>>),
    Sync,
    Compact,
}

struct Shape {
    keys: u64,
    long: usize,
}

fn name(random: &mut Rng, shape: &Shape) -> Name {
    let table = random.u8(..3);
    let number = random.u64(..shape.keys);
    let key = match table {
        0 => (number * 0x0100_0001).to_be_bytes().to_vec(),
        1 => (number as u32).to_be_bytes().to_vec(),
        _ => match number % 4 {
            0 => format!("{number:03}").into_bytes(),
            1 => format!("a long prefix of {number:03}").into_bytes(),
            2 => [b"a long prefix of ".as_slice(), &vec![0; number as usize % 7]].concat(),
            _ => [vec![b'k'; shape.long].as_slice(), number.to_string().as_bytes()].concat(),
        },
    };
    (table, key)
}

fn value(random: &mut Rng, table: u8) -> Vec<u8> {
    let len = if table == 0 { 8 } else { [0, 3, 8, 9, 24, 40, 100, 400][random.usize(..8)] };
    let byte = random.u8(..);
    let mut value = vec![byte; len];
    if let Some(first) = value.first_mut() {
        *first = random.u8(..);
    }
    value
}

fn change(random: &mut Rng, shape: &Shape) -> (Name, Option<Vec<u8>>) {
    let name = name(random, shape);
    let value = (random.u32(..10) < 6).then(|| value(random, name.0));
    (name, value)
}

fn op(random: &mut Rng, shape: &Shape, groups: bool) -> Op {
    match random.u32(..100) {
        0..50 => {
            let (name, value) = change(random, shape);
            if groups && random.u32(..4) > 0 { Op::Grouped(name, value) } else { Op::Set(name, value) }
        }
        50..80 => Op::Batch((0..random.usize(1..14)).map(|_| change(random, shape)).collect()),
        80..88 => {
            let (table, one) = name(random, shape);
            let other = loop {
                let other = name(random, shape);
                if other.0 == table {
                    break other.1;
                }
            };
            if one <= other { Op::RemoveRange(table, one, other) } else { Op::RemoveRange(table, other, one) }
        }
        88..94 => Op::Pop(random.u8(..3), random.bool()),
        94..97 => Op::Compact,
        _ => Op::Sync,
    }
}

/// All states that a crash during the operation may leave, the last of which is the one after it.
fn outcomes(map: &Map, op: &Op, removal_batch: usize) -> Vec<Map> {
    let mut map = map.clone();
    let set = |map: &mut Map, name: &Name, value: &Option<Vec<u8>>| match value {
        Some(value) => drop(map.insert(name.clone(), value.clone())),
        None => drop(map.remove(name)),
    };
    match op {
        Op::Set(name, value) | Op::Grouped(name, value) => set(&mut map, name, value),
        Op::Batch(changes) => changes.iter().for_each(|(name, value)| set(&mut map, name, value)),
        Op::RemoveRange(table, from, to) => {
            let names: Vec<Name> = map
                .range((*table, from.clone())..(*table, to.clone()))
                .map(|(name, _)| name.clone())
                .collect();
            let mut states = Vec::new();
            for batch in names.chunks(removal_batch) {
                batch.iter().for_each(|name| drop(map.remove(name)));
                states.push(map.clone());
            }
            if states.is_empty() {
                states.push(map);
            }
            return states;
        }
        Op::Pop(table, is_first) => {
            let mut names = map.keys().filter(|name| name.0 == *table);
            let name = if *is_first { names.next() } else { names.next_back() }.cloned();
            name.map(|name| map.remove(&name));
        }
        Op::Sync | Op::Compact => (),
    }
    vec![map]
}

fn apply(store: &mut AnyStore, op: &Op) -> Result<(), WriteError> {
    if matches!(op, Op::Compact) {
        return store.compact().map(drop);
    }
    let store = &*store;
    let tables = Tables::open(store).unwrap();
    match op {
        Op::Set(name, value) => tables.set(name, value.as_ref(), false),
        Op::Grouped(name, value) => tables.set(name, value.as_ref(), true),
        Op::Batch(changes) => {
            let mut batch = store.batch();
            for ((table, key), value) in changes {
                match (table, value) {
                    (0, Some(value)) => batch.insert(&tables.words, word(key), word(value))?,
                    (1, Some(value)) => batch.insert(&tables.records, half(key), value)?,
                    (_, Some(value)) => batch.insert(&tables.names, key, value)?,
                    (0, None) => batch.remove(&tables.words, word(key))?,
                    (1, None) => batch.remove(&tables.records, half(key))?,
                    (_, None) => batch.remove(&tables.names, key)?,
                }
            }
            batch.commit()
        }
        Op::RemoveRange(0, from, to) => tables.words.remove_range(word(from)..word(to)).map(drop),
        Op::RemoveRange(1, from, to) => tables.records.remove_range(half(from)..half(to)).map(drop),
        Op::RemoveRange(_, from, to) => tables.names.remove_range(from.as_slice()..to.as_slice()).map(drop),
        Op::Pop(0, true) => tables.words.pop_first().map(drop),
        Op::Pop(0, false) => tables.words.pop_last().map(drop),
        Op::Pop(1, true) => tables.records.pop_first().map(drop),
        Op::Pop(1, false) => tables.records.pop_last().map(drop),
        Op::Pop(_, true) => tables.names.pop_first().map(drop),
        Op::Pop(_, false) => tables.names.pop_last().map(drop),
        Op::Sync => store.sync(),
        Op::Compact => unreachable!(),
    }
}

/// What a power failure leaves in the page domain, in which the words of a page become durable in any order.
fn page_crash(state: &State, random: &mut Rng) -> State {
    let mut bytes = state.durable.clone();
    let odds = random.u32(1..5);
    for (old, new) in bytes.chunks_mut(16).zip(state.visible.chunks(16)) {
        if old != new && random.u32(..5) < odds {
            old.copy_from_slice(new);
        }
    }
    let sampled = SampledPmem::new(bytes.len() as u64);
    let mut empty = sampled.state();
    empty.visible.clone_from(&bytes);
    empty.durable = bytes;
    empty
}

/// The visible state, durable.
fn whole(state: &State) -> State {
    let mut empty = SampledPmem::new(state.visible.len() as u64).state();
    empty.visible.clone_from(&state.visible);
    empty.durable.clone_from(&state.visible);
    empty
}

struct Run {
    random: Rng,
    shape: Shape,
    is_page: bool,
    slots: u32,
    limit: u32,
    removal_batch: u32,
    ops: u64,
    crashes: u64,
}

impl Run {
    fn options(&mut self) -> StoreOptions {
        StoreOptions::new()
            .node_slots(self.slots)
            .extent_bytes(4096)
            .sweep_at_open([0, 0, 1, 3, 1000][self.random.usize(..5)])
            .changes_per_epoch([1, 2, 7, 4096][self.random.usize(..4)])
            .empty_leaves([1, 2, 8, 32][self.random.usize(..4)])
            .group_commits(self.limit)
            .removal_batch(self.removal_batch)
            .verify_reads(self.random.u32(..4) == 0)
    }

    fn pmem(&self, sampled: &Arc<SampledPmem>) -> AnyPmem<'static> {
        if self.is_page {
            AnyPmem::other(Hooked::new(Arc::clone(sampled), Pages))
        } else {
            any(Arc::clone(sampled))
        }
    }

    /// Which of the states the store has. Looks only at what differs, or at all.
    fn resolve(&mut self, store: &AnyStore, candidates: &[Map], is_complete: bool) -> Result<Map, String> {
        let tables = Tables::open(store)?;
        if is_complete {
            let all = tables.all()?;
            let report = store.check().unwrap();
            if !report.is_sound() {
                return Err(format!("{report:?}"));
            }
            if store.heap().blocks() != store.blocks() {
                return Err("blocks are leaked".to_owned());
            }
            return match candidates.contains(&all) {
                true => Ok(all),
                false => {
                    let last = candidates.last().unwrap();
                    let differs: Vec<_> = last
                        .iter()
                        .filter(|(key, value)| all.get(*key) != Some(value))
                        .chain(all.iter().filter(|(key, value)| last.get(*key) != Some(value)))
                        .collect();
                    Err(format!("none of {} states: {differs:?}", candidates.len()))
                }
            };
        }
        let first = &candidates[0];
        let mut names = std::collections::BTreeSet::new();
        for other in &candidates[1..] {
            names.extend(
                first.keys().chain(other.keys()).filter(|name| first.get(*name) != other.get(*name)).cloned(),
            );
        }
        let mut left: Vec<&Map> = candidates.iter().collect();
        for name in names {
            let found = tables.get(&name)?;
            left.retain(|map| map.get(&name) == found.as_ref());
        }
        left.first().map(|map| (*map).clone()).ok_or_else(|| "no state has what was found".to_owned())
    }

    fn run(&mut self, sessions: u32) -> Result<(), String> {
        let mut rng = pm_testkit::Rng::of(self.random.u64(..));
        let sampled = Arc::new(SampledPmem::new(384 << 10));
        let options = self.options();
        let store = Store::format(self.pmem(&sampled), &options).unwrap();
        drop(Tables::open(&store)?);
        store.close().unwrap();
        let mut state = sampled.state();
        let mut candidates = vec![Map::new()];
        for session in 0..sessions {
            let at = |what: String| format!("session {session}: {what}");
            let sampled = Arc::new(SampledPmem::of(state.clone()));
            let range = [40, 400, 3_000, 8_000][self.random.usize(..4)];
            sampled.stop_at(self.random.u64(..range));
            let options = self.options();
            let mut store =
                Store::attach(self.pmem(&sampled), &options).map_err(|error| at(format!("open: {error}")))?;
            let mut stopped = sampled.stopped();
            if stopped.is_none() {
                let is_complete = self.random.u32(..3) == 0;
                let found = self.resolve(&store, &candidates, is_complete).map_err(at)?;
                // A crash while it was resolved leaves what was seen, if something was seen.
                candidates = vec![found];
                stopped = sampled.stopped();
            }
            let count = self.random.u32(1..60);
            for number in 0..count {
                if stopped.is_some() {
                    break;
                }
                let now = candidates.last().unwrap().clone();
                let op = op(&mut self.random, &self.shape, self.limit > 0);
                let states = outcomes(&now, &op, self.removal_batch as usize);
                self.ops += 1;
                let applied = apply(&mut store, &op);
                stopped = sampled.stopped();
                match applied {
                    Ok(()) => {
                        let after = states.last().unwrap().clone();
                        candidates.extend(states);
                        if stopped.is_none() && !matches!(op, Op::Grouped(..)) {
                            candidates = vec![after];
                        }
                    }
                    // Nothing was changed, and all others are durable.
                    Err(WriteError::Full) if needs_room(&op) => (),
                    Err(error) => {
                        return Err(at(format!(
                            "operation {number}, {}: {error}",
                            &format!("{op:?}").chars().take(60).collect::<String>()
                        )));
                    }
                }
            }
            if let Some(crashed) = stopped {
                drop(store);
                self.crashes += 1;
                state = match self.random.u32(..4) {
                    // A kill: what is pending may be lost later. In the page domain the next open makes all durable.
                    0 if self.is_page => whole(&crashed),
                    0 => crashed,
                    _ if self.is_page && std::env::var_os("PM_ATTACK_EADR").is_some() => whole(&crashed),
                    _ if self.is_page && std::env::var_os("PM_ATTACK_WORDS").is_some() => {
                        page_crash(&crashed, &mut self.random)
                    }
                    _ => crashed.crash(&mut rng),
                };
                continue;
            }
            // Close, perhaps with a crash.
            let after = candidates.last().unwrap().clone();
            sampled.stop_at(sampled.events() + self.random.u64(..60));
            store.close().map_err(|error| at(format!("close: {error}")))?;
            match sampled.stopped() {
                Some(crashed) if self.random.bool() => {
                    self.crashes += 1;
                    candidates.push(after);
                    state = match self.random.u32(..4) {
                        0 if self.is_page => whole(&crashed),
                        0 => crashed,
                        _ => crashed.crash(&mut rng),
                    };
                }
                _ => {
                    candidates = vec![after];
                    state =
                        if self.random.bool() { sampled.state() } else { sampled.state().crash(&mut rng) };
                }
            }
        }
        Ok(())
    }
}

/// Whether the operation may find the store full.
fn needs_room(op: &Op) -> bool {
    !matches!(op, Op::RemoveRange(..) | Op::Pop(..) | Op::Compact | Op::Sync | Op::Set(_, None))
}

fn check(is_page: bool, is_grouped: bool) {
    let (mut ops, mut crashes, mut failures) = (0, 0, Vec::new());
    for seed in seeds(20) {
        let mut random = Rng::with_seed(seed * 4 + u64::from(is_page) * 2 + u64::from(is_grouped));
        let slots = [4, 4, 6, 8, 14, 62][random.usize(..6)];
        let limit = if is_grouped { [1, 2, 5, 30][random.usize(..4)] } else { 0 };
        let shape =
            Shape { keys: [6, 20, 60, 200][random.usize(..4)], long: [20, 200, 500][random.usize(..3)] };
        let removal_batch = [1, 3, 4096][random.usize(..3)];
        let mut run = Run { random, shape, is_page, slots, limit, removal_batch, ops: 0, crashes: 0 };
        if let Err(error) = run.run(40) {
            let error: String = error.chars().take(600).collect();
            failures.push(format!("seed {seed}, {slots} slots, limit {limit}: {error}"));
        }
        ops += run.ops;
        crashes += run.crashes;
    }
    println!("{ops} operations, {crashes} crashes");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn random_sessions_keep_all() {
    check(false, false);
}

#[test]
fn random_sessions_keep_all_on_pages() {
    check(true, false);
}

#[test]
fn random_sessions_with_groups_keep_a_prefix() {
    check(false, true);
}

#[test]
fn random_sessions_with_groups_keep_a_prefix_on_pages() {
    check(true, true);
}

/// What is set aside for groups of random changes in a store that is nearly full is enough: no change that has joined is lost, and what the group does not
/// need is free afterwards.
#[test]
fn random_groups_in_full_stores_lose_nothing() {
    let mut failures = Vec::new();
    let (mut joined, mut refused) = (0, 0);
    for seed in seeds(20) {
        let mut random = Rng::with_seed(seed);
        let slots = [4, 4, 6, 14, 62][random.usize(..5)];
        let limit = [1, 3, 10, 50][random.usize(..4)];
        let options = StoreOptions::new().node_slots(slots).extent_bytes(4096).group_commits(limit);
        let pmem = Arc::new(pm_core::Region::anonymous(192 << 10).unwrap());
        let mut store = Store::format(any(pmem), &options).unwrap();
        drop(Tables::open(&store).unwrap());
        let shape =
            Shape { keys: [60, 400, 2000][random.usize(..3)], long: [20, 200, 500][random.usize(..3)] };
        let mut map = Map::new();
        let mut result = Ok(());
        for number in 0..3_000 {
            if random.u32(..400) == 0 {
                store.compact().unwrap();
            }
            let tables = Tables::open(&store).unwrap();
            let (name, mut value) = change(&mut random, &shape);
            if number % 600 > 400 && random.bool() {
                value = None;
            }
            match tables.set(&name, value.as_ref(), true) {
                Ok(()) => {
                    joined += 1;
                    match value {
                        Some(value) => drop(map.insert(name, value)),
                        None => drop(map.remove(&name)),
                    }
                }
                Err(WriteError::Full) => {
                    refused += 1;
                    // A change that waits for nothing does not do better. (A record that was replaced may have been released by this one.)
                    if tables.set(&name, value.as_ref(), false).is_ok() {
                        match value {
                            Some(value) => drop(map.insert(name, value)),
                            None => drop(map.remove(&name)),
                        }
                    }
                }
                Err(error) => result = Err(error.to_string()),
            }
            if random.u32(..60) == 0
                && let Err(error) = store.sync()
            {
                result = Err(format!("sync: {}", error.to_string().chars().take(200).collect::<String>()));
            }
            if let Err(error) = &result {
                failures.push(format!(
                    "seed {seed}, {slots} slots, limit {limit}, long {}, change {number}: {error}",
                    shape.long
                ));
                break;
            }
        }
        if result.is_ok() {
            let synced = store.sync().map_err(|error| error.to_string());
            let all = Tables::open(&store).unwrap().all();
            if synced.is_err() || all.as_ref() != Ok(&map) {
                failures.push(format!("seed {seed}: end {synced:?}, {:?}", all.map(|all| all.len())));
            }
        }
    }
    println!("{joined} joined, {refused} refused");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
