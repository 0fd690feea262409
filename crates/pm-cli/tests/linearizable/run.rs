//! A run: three nodes, clients, faults, and then the verdicts of the checkers.

use super::checker::{self, Verdict};
use super::clients::{CLIENTS, Workload, keys_of, of_both};
use super::cluster::{Client, Cluster, Reply, free_ports};
use super::history::{Action, Operation};
use super::nemesis::{Events, Nemesis};
use super::network::Network;
use super::porcupine;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The operations of a fault, before, during and after it.
const SHARE: u64 = 2500;

/// Numbers of entries of the log that are kept, of which a run has one: with few of them, a node that was away receives a snapshot.
const LOG_ENTRIES: [u16; 3] = [100, 1000, 20_000];

/// A number in the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// A cluster whose nodes keep so many entries, and reach each other by a network that can be cut.
pub(crate) fn cluster_behind_proxies(log_entries: u16) -> (Cluster, Network) {
    let mut cluster = Cluster::start(&["--log-entries", &log_entries.to_string()]);
    // Nodes keep the addresses of their first start: those of the proxies, which they have until then.
    cluster.settle();
    (0..3).for_each(|node| cluster.terminate(node));
    cluster.ports = free_ports(3);
    let network = Network::start(&cluster.peers, &cluster.ports);
    (0..3).for_each(|node| cluster.serve(node));
    (cluster, network)
}

/// What is run.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
    pub(crate) operations: u64,
    pub(crate) reads_are_local: bool,
}

/// Ends the clients, also when the nemesis panics.
struct Ended<'a>(&'a Workload);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Run {
    /// Runs, checks, and panics if the history is not linearizable.
    pub(crate) fn checked(&self) {
        let history = self.history();
        let verdicts = self.verdicts(&history);
        let wrong: Vec<_> =
            verdicts.iter().filter(|(_, verdict)| **verdict != Verdict::Linearizable).collect();
        assert!(wrong.is_empty(), "PM_REPLICATED_SEED={}: {wrong:#?}", self.seed);
        println!("{} keys are linearizable", verdicts.len());
        fs::remove_file(self.file()).unwrap();
    }

    /// What the clients have found.
    pub(crate) fn history(&self) -> Vec<Operation> {
        println!("PM_REPLICATED_SEED={} PM_REPLICATED_OPERATIONS={}", self.seed, self.operations);
        let start = Instant::now();
        let mut rng = Rng::with_seed(self.seed);
        let (mut cluster, network) = cluster_behind_proxies(LOG_ENTRIES[rng.usize(..LOG_ENTRIES.len())]);
        let filler = fill(&cluster);
        let workload = Workload::new(&cluster.ports, self.reads_are_local);
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| rng.u64(..)).collect();
        let (mut history, events) = thread::scope(|scope| {
            let ended = Ended(&workload);
            let run = |seed| {
                let workload = &workload;
                scope.spawn(move || workload.run(seed))
            };
            let clients: Vec<_> = seeds.into_iter().map(run).collect();
            let mut nemesis = Nemesis {
                cluster: &mut cluster,
                network: &network,
                workload: &workload,
                rng,
                events: Events::default(),
                removed: None,
            };
            nemesis.run(self.operations, SHARE);
            let events = nemesis.events;
            drop(ended);
            let history: Vec<Operation> =
                clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
            (history, events)
        });
        report(&history, &events, start.elapsed());
        history.extend(final_reads(&cluster, &workload, filler));
        history.sort_by_key(|operation| operation.call);
        porcupine::write(&history, &self.file());
        history
    }

    /// The history's file.
    pub(crate) fn file(&self) -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replicated-{}-{}.jsonl", self.name, self.seed))
    }

    /// The verdict on each key, in which the checkers agree.
    pub(crate) fn verdicts(&self, history: &[Operation]) -> BTreeMap<String, Verdict> {
        let start = Instant::now();
        println!("the history: {}", self.file().display());
        let verdicts = checker::check(history);
        println!("the checker in Rust took {:.1} s", start.elapsed().as_secs_f64());
        if let Some(program) = porcupine::built() {
            let start = Instant::now();
            compare(&verdicts, &porcupine::check(program, &self.file()));
            println!("Porcupine took {:.1} s, and agrees", start.elapsed().as_secs_f64());
        }
        verdicts
    }
}

/// Compares the verdicts of two checkers.
pub(crate) fn compare(verdicts: &BTreeMap<String, Verdict>, others: &BTreeMap<String, Verdict>) {
    assert_eq!(verdicts.len(), others.len());
    for (key, verdict) in verdicts {
        let other = &others[key];
        assert_eq!(
            std::mem::discriminant(verdict),
            std::mem::discriminant(other),
            "key {key}: the checkers do not agree: {verdict:?}, {other:?}"
        );
    }
}

/// Stores keys that no client uses, so that a snapshot takes a while. Returns them.
fn fill(cluster: &Cluster) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let pair = |number: u32| (format!("filler {number}").into_bytes(), vec![b'f'; 400]);
    let filler: Vec<_> = (0..5000).map(pair).collect();
    let mut client = cluster.client(0);
    cluster.leader();
    for pairs in filler.chunks(250) {
        let strings = pairs.iter().flat_map(|(key, value)| [key.as_slice(), value]);
        client.send(&[[&b"MSET"[..]].into_iter().chain(strings).collect()]).unwrap();
        assert_eq!(client.receive().unwrap(), Reply::ok());
    }
    filler.into_iter().collect()
}

/// Waits until all nodes have the same, and reads every key that was used.
fn final_reads(cluster: &Cluster, workload: &Workload, filler: BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<Operation> {
    cluster.settle();
    let contents = [0, 1, 2].map(|node| cluster.contents(node));
    assert!(contents[0] == contents[1] && contents[1] == contents[2], "the nodes' contents differ");
    let mut client = cluster.client(0);
    let keys = workload.keys();
    let reads: Vec<Operation> = keys.into_iter().map(|key| read(workload, &mut client, key)).collect();
    let present = reads
        .iter()
        .filter_map(|read| Some((keys_of(&read.key), read.result?.to_string().into_bytes())))
        .flat_map(|(keys, value)| keys.into_iter().map(move |key| (key.into_bytes(), value.clone())));
    let expected: BTreeMap<_, _> = present.chain(filler).collect();
    assert!(expected == contents[0], "reads differ from the nodes' contents");
    reads
}

/// A read of a client of its own.
fn read(workload: &Workload, client: &mut Client, key: String) -> Operation {
    let call = workload.now();
    let keys = keys_of(&key);
    let words: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let Reply::Array(mut values) = client.call(&words).unwrap() else { panic!("MGET returns values") };
    let value = if values.len() == 1 { values.remove(0) } else { of_both(&key, values) };
    let Reply::Bulk(value) = value else { panic!("MGET returns strings") };
    let result = value.map(|value| String::from_utf8(value).unwrap().parse().unwrap());
    Operation { client: u64::MAX >> 1, key, action: Action::Get, call, end: Some(workload.now()), result }
}

fn report(history: &[Operation], events: &Events, took: Duration) {
    let open = history.iter().filter(|operation| operation.end.is_none()).count();
    println!(
        "{} operations on keys in {:.0} s, {open} of them with unknown outcome; {} leaders killed; faults: {:?}",
        history.len(),
        took.as_secs_f64(),
        events.deaths,
        events.faults
    );
    println!("seconds to the answer to a write that began after this:    times     min  median     max");
    for (how, losses) in &events.losses {
        let mut times: Vec<Duration> = losses.iter().filter_map(|at| until_write(history, *at)).collect();
        times.sort_unstable();
        let [min, median, max] = [0, times.len() / 2, times.len().saturating_sub(1)]
            .map(|place| times.get(place).copied().unwrap_or_default().as_secs_f64());
        println!("{how:<56} {:>7} {min:>7.2} {median:>7.2} {max:>7.2}", times.len());
    }
}

/// The time until the first answer to a write that began after this.
fn until_write(history: &[Operation], at: u64) -> Option<Duration> {
    let writes = history.iter().filter(|operation| operation.is_write() && operation.call >= at);
    Some(Duration::from_nanos(writes.filter_map(|operation| operation.end).min()? - at))
}
