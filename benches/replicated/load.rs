//! The load: clients that send one request at a time, all in one thread of this process, the same for all systems.

use miette::{IntoDiagnostic as _, Result, ensure, miette};
use pm_bench::processor_time;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};

/// The part of the time before the measurement.
const WARM_UP: u32 = 5;

/// The clients that set all keys.
const FILLING: usize = 64;

/// A client of a replicated store. Each has a connection of its own.
pub(crate) trait Client: Sized + 'static {
    async fn connect(address: SocketAddr) -> Result<Self>;
    /// Sets a key. Returns when the write is durable on a majority.
    async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// The length of a key's value, by a linearizable read.
    async fn read(&mut self, key: &[u8]) -> Result<Option<usize>>;
    /// Whether the node of this connection leads its cluster.
    async fn is_leader(&mut self) -> Result<bool>;
}

/// Whether the node at an address leads its cluster.
pub(crate) fn is_leader<C: Client>(address: SocketAddr) -> Result<bool> {
    run(async { C::connect(address).await?.is_leader().await })
}

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Put,
    Read,
}

pub(crate) const OPERATIONS: [Operation; 2] = [Operation::Put, Operation::Read];

impl Operation {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Read => "linearizable read",
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Put => 0,
            Self::Read => 1,
        }
    }
}

/// The sizes of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) keys: u64,
    pub(crate) value_bytes: usize,
    pub(crate) time: Duration,
}

/// What the clients together have measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    /// Operations a second.
    pub(crate) rate: f64,
    /// The median and the 99th percentile of the latency.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The processor time of all nodes, and that of the clients, for each operation.
    pub(crate) nodes_us: f64,
    pub(crate) load_us: f64,
}

/// What a client has to do, and when.
#[derive(Clone, Copy)]
struct Phase {
    load: Load,
    operation: Operation,
    /// When latencies start to count, and when the client ends.
    begin: Instant,
    end: Instant,
}

/// The key of a number.
fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key-000000000000";
    let mut rest = number;
    for digit in key.iter_mut().rev().take(12) {
        *digit += u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    key
}

impl Load {
    fn value(self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut value = vec![0; self.value_bytes];
        random.fill(&mut value);
        value
    }

    /// Sets all keys once.
    pub(crate) fn fill<C: Client>(self, address: SocketAddr) -> Result<()> {
        run(async {
            let keys = Rc::new(std::cell::Cell::new(0));
            let mut clients = JoinSet::new();
            for seed in 0..FILLING {
                let keys = Rc::clone(&keys);
                clients.spawn_local(async move {
                    let mut client = C::connect(address).await?;
                    let mut random = fastrand::Rng::with_seed(seed as u64);
                    loop {
                        let number = keys.get();
                        if number == self.keys {
                            return Ok(());
                        }
                        keys.set(number + 1);
                        client.put(&key(number), &self.value(&mut random)).await?;
                    }
                });
            }
            joined(clients).await.map(drop)
        })
    }

    /// Measures `count` clients. `nodes` returns the processor time of all nodes.
    pub(crate) fn measure<C: Client>(
        self,
        address: SocketAddr,
        operation: Operation,
        count: usize,
        nodes: impl Fn() -> Result<Duration>,
    ) -> Result<Measured> {
        let (mut latencies, elapsed, [nodes, load]) = run(async {
            let mut connected = Vec::new();
            for _ in 0..count {
                connected.push(C::connect(address).await?);
            }
            let begin = Instant::now() + self.time / WARM_UP;
            let phase = Phase { load: self, operation, begin, end: begin + self.time };
            let mut clients = JoinSet::new();
            for (client, seed) in connected.into_iter().zip(1..) {
                clients.spawn_local(requests(client, fastrand::Rng::with_seed(seed), phase));
            }
            tokio::time::sleep_until(phase.begin.into()).await;
            let before = [nodes()?, processor_time()];
            tokio::time::sleep_until(phase.end.into()).await;
            let after = [nodes()?, processor_time()];
            let elapsed = phase.begin.elapsed();
            let spent: [Duration; 2] =
                std::array::from_fn(|index| after[index].saturating_sub(before[index]));
            Ok((joined(clients).await?.concat(), elapsed.min(self.time), spent))
        })?;
        ensure!(!latencies.is_empty(), "no request was answered in {:?}", self.time);
        latencies.sort_unstable();
        let percentile = |part: usize| f64::from(latencies[(latencies.len() - 1) * part / 100]) / 1e3;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / latencies.len() as f64;
        Ok(Measured {
            rate: latencies.len() as f64 / elapsed.as_secs_f64(),
            p50_us: percentile(50),
            p99_us: percentile(99),
            nodes_us: each(nodes),
            load_us: each(load),
        })
    }
}

/// Sends requests until the end, and returns the latencies, in nanoseconds, of those that were answered within the measured time.
async fn requests<C: Client>(mut client: C, mut random: fastrand::Rng, phase: Phase) -> Result<Vec<u32>> {
    let Phase { load, operation, begin, end } = phase;
    let mut value = load.value(&mut random);
    let mut latencies = Vec::new();
    loop {
        let key = key(random.u64(..load.keys));
        let place = random.usize(..value.len());
        value[place] = value[place].wrapping_add(1);
        let sent = Instant::now();
        match operation {
            Operation::Put => client.put(&key, &value).await?,
            Operation::Read => {
                let found = client.read(&key).await?;
                ensure!(found == Some(value.len()), "a key has a value of {found:?} bytes");
            }
        }
        let answered = Instant::now();
        if answered >= end {
            return Ok(latencies);
        }
        if answered >= begin {
            latencies.push(u32::try_from((answered - sent).as_nanos()).unwrap_or(u32::MAX));
        }
    }
}

/// Runs clients in this thread.
fn run<T>(clients: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().into_diagnostic()?;
    LocalSet::new().block_on(&runtime, clients)
}

/// What all clients return.
async fn joined<T: 'static>(mut clients: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut results = Vec::new();
    while let Some(result) = clients.join_next().await {
        results.push(result.map_err(|error| miette!("a client has panicked: {error}"))??);
    }
    Ok(results)
}
