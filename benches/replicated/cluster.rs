//! A cluster of any kind: its processes, and its leader.

use crate::etcd::{self, EtcdClient};
use crate::load::{self, Load, Measured, Operation};
use crate::ours::{self, OurClient};
use miette::{IntoDiagnostic as _, Result, bail, ensure};
use pm_bench::Server;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time for the election of the first leader.
const ELECTION: Duration = Duration::from_secs(30);

/// A replicated store.
#[derive(Debug)]
pub(crate) enum Kind {
    /// The program `pm`.
    Ours(PathBuf),
    Etcd(etcd::Program),
}

impl Kind {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Ours(_) => "ours".to_owned(),
            Self::Etcd(program) => program.name(),
        }
    }

    /// Whether the node at an address leads its cluster. One that does not answer does not.
    fn is_leader(&self, address: SocketAddr) -> bool {
        let answer = match self {
            Self::Ours(_) => load::is_leader::<OurClient>(address),
            Self::Etcd(_) => load::is_leader::<EtcdClient>(address),
        };
        answer.unwrap_or(false)
    }
}

/// A cluster, whose processes end when it is dropped.
pub(crate) struct Cluster<'k> {
    kind: &'k Kind,
    servers: Vec<Server>,
    leader: SocketAddr,
}

/// Addresses of loopback whose ports were free a moment ago.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let listeners = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).into_diagnostic());
    let listeners = listeners.collect::<Result<Vec<_>>>()?;
    listeners.iter().map(|listener| listener.local_addr().into_diagnostic()).collect()
}

impl<'k> Cluster<'k> {
    /// Starts a new cluster, and waits for its leader. Messages of the nodes are in `directory`.
    pub(crate) fn start(kind: &'k Kind, directory: &Path, nodes: usize) -> Result<Self> {
        let addresses = free_addresses(nodes)?;
        let commands = match kind {
            Kind::Ours(pm) => ours::commands(pm, directory, &addresses)?,
            Kind::Etcd(program) => program.commands(directory, &addresses, &free_addresses(nodes)?),
        };
        let mut servers = Vec::new();
        for (node, mut command) in commands.into_iter().enumerate() {
            let messages = File::create(messages(directory, node)).into_diagnostic()?;
            servers.push(Server::start(command.stderr(messages))?);
        }
        let begin = Instant::now();
        let leader = loop {
            if let Some(leader) = addresses.iter().find(|address| kind.is_leader(**address)) {
                break *leader;
            }
            if begin.elapsed() > ELECTION {
                bail!("no leader after {ELECTION:?}\n{}", all_messages(directory, nodes));
            }
            sleep(Duration::from_millis(50));
        };
        Ok(Self { kind, servers, leader })
    }

    /// Sets all keys.
    pub(crate) fn fill(&self, load: Load) -> Result<()> {
        match self.kind {
            Kind::Ours(_) => load.fill::<OurClient>(self.leader),
            Kind::Etcd(_) => load.fill::<EtcdClient>(self.leader),
        }
    }

    /// Measures clients of the leader.
    pub(crate) fn measure(&self, operation: Operation, clients: usize, load: Load) -> Result<Measured> {
        let nodes = || self.servers.iter().map(Server::processor_time).sum::<Result<Duration>>();
        let measured = match self.kind {
            Kind::Ours(_) => load.measure::<OurClient>(self.leader, operation, clients, nodes),
            Kind::Etcd(_) => load.measure::<EtcdClient>(self.leader, operation, clients, nodes),
        }?;
        ensure!(self.kind.is_leader(self.leader), "the leader has changed while it was measured");
        Ok(measured)
    }
}

fn messages(directory: &Path, node: usize) -> PathBuf {
    directory.join(format!("{node}.messages"))
}

/// The last messages of all nodes.
fn all_messages(directory: &Path, nodes: usize) -> String {
    let last = |node| {
        let text = std::fs::read_to_string(messages(directory, node)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("node {node}:\n{}\n", lines[lines.len().saturating_sub(10)..].join("\n"))
    };
    (0..nodes).map(last).collect()
}
