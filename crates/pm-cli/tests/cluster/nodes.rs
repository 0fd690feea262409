//! Processes of `pm store serve` that are a cluster.

use super::client::{Client, Reply};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take: only a cluster that hangs takes it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Three nodes.
pub(crate) struct Cluster {
    pub(crate) dir: TempDir,
    /// Where each node listens, for clients.
    pub(crate) ports: Vec<u16>,
    /// Where each node is for the other nodes.
    pub(crate) peers: Vec<u16>,
    pub(crate) nodes: Vec<Option<Child>>,
    /// The nodes that are served with `--join`.
    pub(crate) joins: Vec<bool>,
    arguments: Vec<String>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.kill(node));
    }
}

/// Ports that were free a moment ago. Linux gives none of these to the near end of a connection, which could take the port of a node that is killed.
pub(crate) fn free_ports(count: u8) -> Vec<u16> {
    let listen = || {
        let port = fastrand::u16(10_240..32_768);
        Some((port, TcpListener::bind(("127.0.0.1", port)).ok()?))
    };
    let listening: Vec<_> = (0..count).map(|_| wait_for(listen)).collect();
    listening.into_iter().map(|(port, _)| port).collect()
}

/// The program.
pub(crate) fn pm() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pm"));
    command.stdin(Stdio::null());
    command
}

impl Cluster {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut cluster = Self::create_all(arguments);
        (0..3).for_each(|node| cluster.serve(node));
        cluster
    }

    /// Three nodes that were never started.
    pub(crate) fn create_all(arguments: &[&str]) -> Self {
        let dir =
            tempfile::tempdir_in(if fs::exists("/dev/shm").unwrap() { "/dev/shm" } else { "/tmp" }).unwrap();
        let ports = free_ports(3);
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let cluster = Self {
            dir,
            peers: ports.clone(),
            ports,
            nodes: vec![None, None, None],
            joins: vec![false; 3],
            arguments,
        };
        (0..3).for_each(|node| cluster.create(node));
        cluster
    }

    pub(crate) fn path(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("{node}.pm"))
    }

    pub(crate) fn messages(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("{node}.messages"))
    }

    pub(crate) fn create(&self, node: usize) {
        self.create_sized(node, "128M");
    }

    pub(crate) fn create_sized(&self, node: usize, size: &str) {
        let created = pm().args(["store", "create", "--size", size]).arg(self.path(node)).output().unwrap();
        assert!(created.status.success(), "{created:?}");
    }

    /// The command that serves a node.
    pub(crate) fn command(&self, node: usize) -> Command {
        let port = |other: usize| if other == node { self.ports[other] } else { self.peers[other] };
        let addresses = (0..3).map(|other| format!("{}=127.0.0.1:{}", other + 1, port(other)));
        let addresses: Vec<_> = if self.joins[node] { vec![self.address(node)] } else { addresses.collect() };
        let mut command = pm();
        command.args(["store", "serve"]).arg(self.path(node)).args([
            "--id",
            &(node + 1).to_string(),
            "--cluster",
        ]);
        command.arg(addresses.join(",")).args(&self.arguments);
        if self.joins[node] {
            command.arg("--join");
        }
        command
    }

    /// A node with its address, for the command line.
    pub(crate) fn address(&self, node: usize) -> String {
        format!("{}=127.0.0.1:{}", node + 1, self.ports[node])
    }

    /// Starts one more node, which is no member yet.
    pub(crate) fn join(&mut self) -> usize {
        let ports = free_ports(1);
        self.ports.extend(&ports);
        self.peers.extend(ports);
        self.nodes.push(None);
        self.joins.push(true);
        let node = self.nodes.len() - 1;
        self.create(node);
        self.serve(node);
        node
    }

    /// Runs `pm store cluster` at a node, and returns what it prints, or its error.
    pub(crate) fn manage(&self, at: usize, arguments: &[&str]) -> Result<String, String> {
        let mut command = pm();
        command.args(["store", "cluster", "--at", &format!("127.0.0.1:{}", self.ports[at])]).args(arguments);
        let output = command.output().unwrap();
        let (printed, messages) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        if output.status.success() { Ok(printed) } else { Err(messages) }
    }

    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_some()).collect()
    }

    /// Starts a node, and waits until it serves clients.
    pub(crate) fn serve(&mut self, node: usize) {
        self.spawn(node, self.command(node));
    }

    pub(crate) fn spawn(&mut self, node: usize, mut command: Command) {
        let messages = File::options().create(true).append(true).open(self.messages(node)).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(messages).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.nodes[node] = Some(child);
        assert!(
            line.contains("serves Redis clients"),
            "{line:?}: {:?}",
            fs::read_to_string(self.messages(node))
        );
    }

    pub(crate) fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn signal(&self, node: usize, signal: Signal) {
        if let Some(child) = &self.nodes[node] {
            kill_process(Pid::from_child(child), signal).unwrap();
        }
    }

    /// Ends a node as an operator does.
    pub(crate) fn terminate(&mut self, node: usize) {
        self.signal(node, Signal::TERM);
        let Some(mut child) = self.nodes[node].take() else { return };
        let status = wait_for(|| child.try_wait().unwrap());
        assert!(
            status.success(),
            "node {node} ends with {status}: {:?}",
            fs::read_to_string(self.messages(node))
        );
    }

    pub(crate) fn client(&self, node: usize) -> Client {
        Client::connect(self.ports[node]).unwrap()
    }

    /// A client that reads what this node has.
    pub(crate) fn local(&self, node: usize) -> Client {
        let mut client = self.client(node);
        assert_eq!(client.call(&["READONLY"]).unwrap(), Reply::ok());
        client
    }

    /// A line of INFO.
    pub(crate) fn info(&self, node: usize, name: &str) -> String {
        let Reply::Bulk(Some(text)) = self.client(node).call(&["INFO"]).unwrap() else {
            panic!("INFO is a text")
        };
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    /// The leader that a majority names.
    pub(crate) fn leader(&self) -> usize {
        wait_for(|| {
            let named: Vec<String> =
                self.alive().into_iter().map(|node| self.info(node, "leader_id")).collect();
            let first = named[0].parse::<usize>().ok()?;
            (named.iter().all(|leader| *leader == named[0]) && self.nodes[first - 1].is_some())
                .then(|| first - 1)
        })
    }

    /// Waits until all nodes have applied the same entries.
    pub(crate) fn settle(&self) {
        self.leader();
        wait_for(|| {
            let index = |name| self.alive().into_iter().map(|node| self.info(node, name)).collect::<Vec<_>>();
            let (applied, last) = (index("applied_index"), index("last_log_index"));
            (applied.iter().chain(&last).all(|index| *index == applied[0])).then_some(())
        });
    }

    /// Everything that a node has.
    pub(crate) fn contents(&self, node: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut client = self.local(node);
        let (mut contents, mut from) = (BTreeMap::new(), Vec::new());
        loop {
            client.send(&[vec![b"PM.RANGE", &from, b"\xff", b"5000"]]).unwrap();
            let Reply::Array(strings) = client.receive().unwrap() else { panic!("a range is an array") };
            if strings.is_empty() {
                return contents;
            }
            for pair in strings.chunks(2) {
                let [Reply::Bulk(Some(key)), Reply::Bulk(Some(value))] = pair else { panic!("{pair:?}") };
                from = [key.as_slice(), &[0]].concat();
                contents.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Waits until there is a value.
#[track_caller]
pub(crate) fn wait_for<T>(mut value: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "it takes too long");
        thread::sleep(Duration::from_millis(20));
    }
}
