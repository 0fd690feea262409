//! Planted faults: the checkers find them in histories that are made up, and in those of real nodes.

use super::checker::{self, Verdict};
use super::cluster::{Cluster, Reply, wait_for};
use super::history::{Action, Operation};
use super::porcupine;
use super::run::{Run, cluster_behind_proxies, compare, number};
use fastrand::Rng;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// What a made-up store does wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A read returns the value before an acknowledged write.
    StaleRead,
    /// An acknowledged write has no effect.
    LostWrite,
    /// An INCRBY has its effect twice.
    AddedTwice,
}

/// The operations of unknown outcome of a key. Each can double the states that the checker keeps.
const UNKNOWN: usize = 6;

/// A store with one key, in which operations take effect one after the other.
struct MadeUp {
    key: String,
    rng: Rng,
    value: Option<i64>,
    at: u64,
    unknown: usize,
    history: Vec<Operation>,
}

impl MadeUp {
    /// An operation that overlaps others, or none of those before and after it.
    fn operation(&mut self, action: Action, overlaps: bool) {
        self.at += 100;
        let distance = if overlaps { 300 } else { 10 };
        let mut operation = Operation {
            client: self.at,
            key: self.key.clone(),
            action,
            call: self.at - self.rng.u64(1..distance),
            end: None,
            result: None,
        };
        let (after, result) = action.apply(self.value);
        let is_unknown = overlaps && self.unknown < UNKNOWN && self.rng.u8(..40) == 0;
        self.unknown += usize::from(is_unknown);
        if !is_unknown {
            (operation.end, operation.result) = (Some(self.at + self.rng.u64(1..distance)), result);
        }
        if !is_unknown || self.rng.bool() {
            self.value = after;
        }
        self.history.push(operation);
    }

    fn random(&mut self) {
        let value = i64::try_from(self.at).unwrap() << 20;
        let action = match self.rng.u8(..7) {
            0 | 1 => Action::Get,
            2 => Action::Set { value },
            3 => Action::Create { value },
            4 => Action::Delete,
            5 => Action::Add { value: self.rng.i64(1..100) },
            _ => Action::Swap { expected: self.value.unwrap_or(0), value },
        };
        self.operation(action, true);
    }

    fn plant(&mut self, planted: Planted) {
        let set = |number: i64| Action::Set { value: number << 50 };
        self.operation(set(1), false);
        let before = self.value;
        match planted {
            Planted::Nothing => {}
            Planted::StaleRead => {
                self.operation(set(2), false);
                let now = std::mem::replace(&mut self.value, before);
                self.operation(Action::Get, false);
                self.value = now;
            }
            Planted::LostWrite => {
                self.operation(set(2), false);
                self.value = before;
            }
            Planted::AddedTwice => {
                // More than all other increments together.
                let add = 1 << 19;
                self.operation(Action::Add { value: add }, false);
                self.value = self.value.map(|value| value + add);
            }
        }
        self.operation(Action::Get, false);
    }
}

#[test]
fn planted_faults_are_found_in_histories() {
    let seed = number("PM_REPLICATED_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("PM_REPLICATED_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let kinds = [Planted::Nothing, Planted::StaleRead, Planted::LostWrite, Planted::AddedTwice];
    let mut history = Vec::new();
    for kind in kinds {
        for number in 0..20 {
            let (key, rng) = (format!("{kind:?} {number}"), rng.fork());
            let mut store = MadeUp { key, rng, value: None, at: 1000, unknown: 0, history: Vec::new() };
            (0..150).for_each(|_| store.random());
            store.plant(kind);
            (0..100).for_each(|_| store.random());
            history.extend(store.history);
        }
    }
    let verdicts = checker::check(&history);
    for (key, verdict) in &verdicts {
        let is_legal = key.starts_with("Nothing");
        assert_eq!(*verdict == Verdict::Linearizable, is_legal, "{key}: {verdict:?}");
        assert_eq!(matches!(verdict, Verdict::Illegal(_)), !is_legal, "{key}: {verdict:?}");
    }
    if let Some(program) = porcupine::built() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replicated-planted.jsonl");
        porcupine::write(&history, &file);
        compare(&verdicts, &porcupine::check(program, &file));
    }
}

/// Clients that read what their node has see old values.
#[test]
fn local_reads_are_found() {
    let seed = number("PM_REPLICATED_SEED").unwrap_or_else(|| fastrand::u64(..));
    let run = Run { name: "local-reads", seed, operations: 6000, reads_are_local: true };
    let history = run.history();
    let verdicts = run.verdicts(&history);
    let illegal = verdicts.values().filter(|verdict| matches!(verdict, Verdict::Illegal(_))).count();
    assert!(illegal > 0, "no checker has found reads of old values");
    println!("{illegal} of {} keys are not linearizable, as they should be", verdicts.len());
    fs::remove_file(run.file()).unwrap();
}

/// A node's file is set back to a copy that is as old as what the only other node knows of it. What it has acknowledged together with a third node is lost when
/// that one is away.
#[test]
fn write_that_an_old_copy_has_lost_is_found() {
    let (mut cluster, _network) = cluster_behind_proxies(1000);
    let start = Instant::now();
    let mut history = Vec::new();
    let mut ask = |cluster: &Cluster, node: usize, action: Action| {
        let now = || u64::try_from(start.elapsed().as_nanos()).unwrap();
        let mut client = cluster.client(node);
        let call = now();
        let words = match action {
            Action::Set { value } => vec!["SET".to_owned(), "key".to_owned(), value.to_string()],
            _ => vec!["GET".to_owned(), "key".to_owned()],
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // Until there is a leader, nothing is executed.
        let reply = wait_for(|| match client.call(&words).unwrap() {
            Reply::Error(error) if error.starts_with("TRYAGAIN") || error.starts_with("CLUSTERDOWN") => None,
            reply => Some(reply),
        });
        let result = match reply {
            Reply::Bulk(value) => value.map(|value| String::from_utf8(value).unwrap().parse().unwrap()),
            reply => {
                assert_eq!(reply, Reply::ok());
                None
            }
        };
        let key = "key".to_owned();
        history.push(Operation { client: 1, key, action, call, end: Some(now()), result });
    };
    let [old, away, gone] = [0, 1, 2];
    ask(&cluster, old, Action::Set { value: 1 << 20 });
    cluster.settle();
    cluster.terminate(old);
    let copy = cluster.dir.path().join("copy.pm");
    fs::copy(cluster.path(old), &copy).unwrap();
    cluster.terminate(away);
    cluster.serve(old);
    ask(&cluster, old, Action::Set { value: 2 << 20 });
    cluster.terminate(old);
    cluster.terminate(gone);

    fs::rename(&copy, cluster.path(old)).unwrap();
    cluster.serve(away);
    cluster.serve(old);
    ask(&cluster, away, Action::Get);
    let verdicts = checker::check(&history);
    assert!(matches!(verdicts["key"], Verdict::Illegal(_)), "{verdicts:?}: {history:?}");
    if let Some(program) = porcupine::built() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replicated-old-copy.jsonl");
        porcupine::write(&history, &file);
        compare(&verdicts, &porcupine::check(program, &file));
    }
}

/// What the other tests rely on: a cut holds all bytes between nodes, so that the rest elects another leader, and the one that is cut off confirms nothing.
#[test]
fn leader_behind_cut_links_confirms_nothing() {
    let (cluster, network) = cluster_behind_proxies(1000);
    let leader = cluster.leader();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    for other in others {
        network.cut(leader, other);
        network.cut(other, leader);
    }
    let named = others.map(|other| {
        wait_for(|| {
            let named = cluster.info(other, "leader_id").parse::<usize>().ok()? - 1;
            (named != leader).then_some(named)
        })
    });
    assert!(others.contains(&named[0]), "{named:?}");
    let reply = cluster.client(leader).call(&["GET", "key"]).unwrap();
    assert!(matches!(&reply, Reply::Error(error) if error.starts_with("CLUSTERDOWN")), "{reply:?}");
    network.heal();
    cluster.settle();
    assert_eq!(cluster.client(leader).call(&["GET", "key"]).unwrap(), Reply::Bulk(None));
}

/// A leader that is replaced while it has entries that no other node has, and then receives the state in place of the log, has no answers to these entries. It
/// can lead again all the same.
#[test]
fn replaced_leader_that_received_the_state_leads_again() {
    let (cluster, network) = cluster_behind_proxies(3);
    let old = cluster.leader();
    let others = [(old + 1) % 3, (old + 2) % 3];
    let mut clients = [(); 2].map(|()| cluster.client(old));
    assert_eq!(clients[0].call(&["SET", "a", "0"]).unwrap(), Reply::ok());
    for other in others {
        network.cut(old, other);
        network.cut(other, old);
    }
    let index = |node, name| cluster.info(node, name).parse::<u64>().unwrap();
    let before = index(old, "last_log_index");
    // An entry each.
    for (number, client) in (1..).zip(&mut clients) {
        client.send(&[vec![b"SET", b"a", b"1"]]).unwrap();
        wait_for(|| (index(old, "last_log_index") >= before + number).then_some(()));
    }
    let new = wait_for(|| {
        let named = others.map(|node| cluster.info(node, "leader_id"));
        let leader = named[0].parse::<usize>().ok()? - 1;
        (named[0] == named[1] && leader != old).then_some(leader)
    });
    let mut client = cluster.client(new);
    wait_for(|| {
        assert_eq!(client.call(&["SET", "b", "1"]).unwrap(), Reply::ok());
        (index(new, "purged_index") > before + 10).then_some(())
    });
    network.heal();
    cluster.settle();
    for client in &mut clients {
        let reply = client.receive().unwrap();
        assert!(matches!(&reply, Reply::Error(reason) if reason.starts_with("UNKNOWN")), "{reply:?}");
    }
    for node in others {
        cluster.manage(old, &["remove", &(node + 1).to_string()]).unwrap();
    }
    let id = (old + 1).to_string();
    wait_for(|| (cluster.info(old, "leader_id") == id).then_some(()));
    let mut client = cluster.client(old);
    assert_eq!(client.call(&["SET", "a", "2"]).unwrap(), Reply::ok());
    assert_eq!(
        client.call(&["MGET", "a", "b"]).unwrap(),
        Reply::Array(["2", "1"].map(|value| Reply::bulk(value.as_bytes())).into())
    );
}
