//! Clients that ask random nodes for random operations, and write down what becomes of them.

use super::cluster::{Client, Reply};
use super::history::{Action, Operation};
use fastrand::Rng;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of clients at a time.
pub(crate) const CLIENTS: u64 = 20;

/// The number of keys that are in use at a time.
const KEYS: usize = 50;

/// The number of pairs of keys that are in use besides. The keys of a pair are only set and read together, and always have the same value, so that a pair has
/// the history of one key.
const PAIRS: usize = 4;

/// What the names of pairs begin with.
const PAIR: &str = "pair";

/// The operations of a key, after which another key takes its place: the open operations of a key multiply its possible states.
const OPERATIONS_OF_KEY: u64 = 250;

/// How long a client waits for an answer.
const ANSWER: Duration = Duration::from_secs(3);

/// The time before another attempt, after one that has changed nothing.
const PAUSE: Duration = Duration::from_millis(10);

/// A value is a number of its own times this, plus the increments since it was set, which are smaller.
const VALUE: i64 = 1 << 20;

/// A key's place.
#[derive(Default)]
struct Slot {
    operations: AtomicU64,
    /// A value that was seen, which PM.CAS expects.
    seen: AtomicI64,
}

/// What clients share.
pub(crate) struct Workload {
    ports: Vec<u16>,
    /// Clients send READONLY, and then read what a node has: not linearizable.
    reads_are_local: bool,
    start: Instant,
    slots: Vec<Slot>,
    /// Operations that clients may begin, have begun, and have ended.
    granted: AtomicU64,
    begun: AtomicU64,
    done: AtomicU64,
    clients: AtomicU64,
    values: AtomicI64,
    is_ended: AtomicBool,
}

/// A request, with its operation on each key or on a pair.
struct Request {
    words: Vec<String>,
    actions: Vec<(usize, String, Action)>,
}

/// What became of a request.
enum Outcome {
    Results(Vec<Option<i64>>),
    /// It may have been executed, or may be later.
    Unknown,
    NotExecuted,
}

impl Workload {
    pub(crate) fn new(ports: &[u16], reads_are_local: bool) -> Self {
        Self {
            ports: ports.to_vec(),
            reads_are_local,
            start: Instant::now(),
            slots: (0..KEYS + PAIRS).map(|_| Slot::default()).collect(),
            granted: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            clients: AtomicU64::new(0),
            values: AtomicI64::new(1),
            is_ended: AtomicBool::new(false),
        }
    }

    /// The time that histories have, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    /// Lets clients begin more operations, and returns how many will then have been allowed.
    pub(crate) fn grant(&self, count: u64) -> u64 {
        self.granted.fetch_add(count, Ordering::Relaxed) + count
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Clients end.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
    }

    /// The keys and pairs that were used.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = |(place, slot): (usize, &Slot)| {
            let count = slot.operations.load(Ordering::Relaxed).div_ceil(OPERATIONS_OF_KEY);
            (0..count).map(move |turn| name(place, turn))
        };
        self.slots.iter().enumerate().flat_map(keys).collect()
    }

    /// A client, until the workload ends.
    pub(crate) fn run(&self, seed: u64) -> Vec<Operation> {
        let mut rng = Rng::with_seed(seed);
        let mut history = Vec::new();
        let mut id = self.clients.fetch_add(1, Ordering::Relaxed);
        let mut connections: Vec<Option<Client>> = self.ports.iter().map(|_| None).collect();
        while self.begin() {
            let request = self.request(&mut rng);
            let node = rng.usize(..connections.len());
            let call = self.now();
            let outcome = self.ask(&mut connections[node], self.ports[node], &request);
            let end = self.now();
            let is_read = request.actions.iter().all(|(.., action)| *action == Action::Get);
            let results = match outcome {
                // A read without an answer says nothing.
                Outcome::NotExecuted => None,
                Outcome::Unknown if is_read => None,
                Outcome::Unknown => Some((None, vec![None; request.actions.len()])),
                Outcome::Results(results) => Some((Some(end), results)),
            };
            let Some((end, results)) = results else {
                self.begun.fetch_sub(1, Ordering::Relaxed);
                thread::sleep(PAUSE);
                continue;
            };
            for ((place, key, action), result) in request.actions.into_iter().zip(results) {
                if let (Action::Get | Action::Add { .. }, Some(value)) = (action, result) {
                    self.slots[place].seen.store(value, Ordering::Relaxed);
                }
                history.push(Operation { client: id, key, action, call, end, result });
            }
            if end.is_none() {
                id = self.clients.fetch_add(1, Ordering::Relaxed);
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        history
    }

    /// Waits until another operation may begin. Returns false at the end.
    fn begin(&self) -> bool {
        while !self.is_ended.load(Ordering::Relaxed) {
            let granted = self.granted.load(Ordering::Relaxed);
            let more = |begun| (begun < granted).then_some(begun + 1);
            if self.begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    fn request(&self, rng: &mut Rng) -> Request {
        let value = || self.values.fetch_add(1, Ordering::Relaxed) * VALUE;
        if rng.u8(..15) == 0 {
            let action = if rng.bool() { Action::Get } else { Action::Set { value: value() } };
            return self.of_pair(KEYS + rng.usize(..PAIRS), action);
        }
        let count = if rng.u8(..10) == 0 { 3 } else { 1 };
        let mut places = rng.choose_multiple(0..KEYS, count);
        places.sort_unstable();
        let keys: Vec<(usize, String)> = places.into_iter().map(|place| (place, self.key(place))).collect();
        let (name, action): (&str, &mut dyn FnMut() -> Action) = if count > 1 {
            if rng.bool() {
                ("MGET", &mut || Action::Get)
            } else {
                ("MSET", &mut || Action::Set { value: value() })
            }
        } else {
            let seen = self.slots[keys[0].0].seen.load(Ordering::Relaxed);
            let added = rng.i64(1..1000);
            match rng.u8(..10) {
                0..3 => ("GET", &mut || Action::Get),
                3..5 => ("SET", &mut || Action::Set { value: value() }),
                5 => ("SET", &mut || Action::Create { value: value() }),
                6 => ("DEL", &mut || Action::Delete),
                7..9 => ("INCRBY", &mut move || Action::Add { value: added }),
                _ => ("PM.CAS", &mut move || Action::Swap { expected: seen, value: value() }),
            }
        };
        let actions: Vec<_> = keys.into_iter().map(|(place, key)| (place, key, action())).collect();
        let mut words = vec![name.to_owned()];
        for (_, key, action) in &actions {
            words.push(key.clone());
            match action {
                Action::Get | Action::Delete => {}
                Action::Set { value } | Action::Add { value } => words.push(value.to_string()),
                Action::Create { value } => words.extend([value.to_string(), "NX".to_owned()]),
                Action::Swap { expected, value } => words.extend([expected.to_string(), value.to_string()]),
            }
        }
        Request { words, actions }
    }

    fn of_pair(&self, place: usize, action: Action) -> Request {
        let pair = self.key(place);
        let mut words = Vec::new();
        for key in keys_of(&pair) {
            words.push(key);
            if let Action::Set { value } = action {
                words.push(value.to_string());
            }
        }
        words.insert(0, if action == Action::Get { "MGET" } else { "MSET" }.to_owned());
        Request { words, actions: vec![(place, pair, action)] }
    }

    /// The key or pair that has this place now.
    fn key(&self, place: usize) -> String {
        let turn = self.slots[place].operations.fetch_add(1, Ordering::Relaxed) / OPERATIONS_OF_KEY;
        name(place, turn)
    }

    fn ask(&self, connection: &mut Option<Client>, port: u16, request: &Request) -> Outcome {
        if connection.as_ref().is_some_and(is_closed) {
            *connection = None;
        }
        let client = match connection {
            Some(client) => client,
            None => match self.connect(port) {
                Ok(client) => connection.insert(client),
                Err(_) => return Outcome::NotExecuted,
            },
        };
        let words: Vec<&str> = request.words.iter().map(String::as_str).collect();
        match client.call(&words) {
            Ok(Reply::Error(error)) if error.starts_with("UNKNOWN") => Outcome::Unknown,
            Ok(Reply::Error(error))
                if error.starts_with("TRYAGAIN not executed") || error.starts_with("CLUSTERDOWN") =>
            {
                Outcome::NotExecuted
            }
            Ok(reply) => Outcome::Results(results(request, reply)),
            Err(_) => {
                *connection = None;
                Outcome::Unknown
            }
        }
    }

    fn connect(&self, port: u16) -> io::Result<Client> {
        let mut client = Client::connect(port)?;
        client.writer.set_read_timeout(Some(ANSWER))?;
        if self.reads_are_local && client.call(&["READONLY"])? != Reply::ok() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(client)
    }
}

/// A key's or pair's name.
fn name(place: usize, turn: u64) -> String {
    if place < KEYS { format!("{place}.{turn}") } else { format!("{PAIR} {place}.{turn}") }
}

/// The keys in a store of a key or of a pair.
pub(crate) fn keys_of(name: &str) -> Vec<String> {
    let name = name.to_owned();
    if name.starts_with(PAIR) { vec![format!("{name}, one"), format!("{name}, two")] } else { vec![name] }
}

/// The value of both keys of a pair.
pub(crate) fn of_both(pair: &str, values: Vec<Reply>) -> Reply {
    let [one, two] = <[Reply; 2]>::try_from(values).unwrap();
    assert_eq!(one, two, "{pair}: two keys that are only set together differ when they are read together");
    one
}

/// Whether the other side has closed the connection: a request that is not sent leaves no doubt.
fn is_closed(client: &Client) -> bool {
    let peeked = client.writer.set_nonblocking(true).and_then(|()| client.writer.peek(&mut [0]));
    let is_open = peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    !(is_open && client.writer.set_nonblocking(false).is_ok())
}

/// The result of each of a request's actions.
fn results(request: &Request, reply: Reply) -> Vec<Option<i64>> {
    let replies = match reply {
        Reply::Array(replies) if request.actions[0].1.starts_with(PAIR) => {
            vec![of_both(&request.actions[0].1, replies)]
        }
        Reply::Array(replies) => replies,
        reply => vec![reply; request.actions.len()],
    };
    assert_eq!(replies.len(), request.actions.len(), "{:?}", request.words);
    let result = |(reply, (_, _, action)): (Reply, &(usize, String, Action))| match (action, reply) {
        (Action::Get, Reply::Bulk(value)) => {
            value.map(|value| String::from_utf8(value).unwrap().parse().unwrap())
        }
        (Action::Set { .. }, Reply::Simple(text)) if text == "OK" => None,
        (Action::Create { .. }, Reply::Simple(text)) if text == "OK" => Some(1),
        (Action::Create { .. }, Reply::Bulk(None)) => Some(0),
        (Action::Delete | Action::Add { .. } | Action::Swap { .. }, Reply::Integer(number)) => Some(number),
        (_, reply) => panic!("{:?} has the answer {reply:?}", request.words),
    };
    replies.into_iter().zip(&request.actions).map(result).collect()
}
