//! etcd, and its client: the messages that the benchmark needs, as etcd's `rpc.proto` numbers them.

use crate::grpc::Channel;
use crate::load::Client;
use miette::{IntoDiagnostic as _, Result, ensure, miette};
use prost::Message;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::apt::{self, Need};
use xtask::process;

const ETCD: Need = Need::new("etcd", "etcd-server");

/// Where Go's own archive is unpacked.
const GO: &str = "/usr/local/go/bin/go";

/// A version of etcd.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    version: String,
}

impl Program {
    /// Debian's, which is installed if it is missing.
    pub(crate) fn of_debian() -> Result<Self> {
        apt::ensure(&[ETCD])?;
        Self::at(apt::find(ETCD.program).ok_or_else(|| miette!("etcd is not in PATH"))?)
    }

    /// The version that `benches/go/etcd/go.mod` names, built with Go into `directory`.
    pub(crate) fn of_go(directory: &Path) -> Result<Self> {
        let go = apt::find("go").or_else(|| Some(PathBuf::from(GO)).filter(|go| go.is_file()));
        let go = go.ok_or_else(|| miette!("there is no Go to build it with"))?;
        let path = directory.join("etcd");
        eprintln!("building etcd with Go");
        std::fs::create_dir_all(directory).into_diagnostic()?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go/etcd");
        process::output(Command::new(go).current_dir(source).arg("build").arg("-o").arg(&path).arg("."))?;
        Self::at(path)
    }

    fn at(path: PathBuf) -> Result<Self> {
        let text = process::output(Command::new(&path).arg("--version"))?;
        let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
        let version = version.ok_or_else(|| miette!("{} has no version: {text}", path.display()))?.to_owned();
        Ok(Self { path, version })
    }

    /// `etcd` and the version without its last part.
    pub(crate) fn name(&self) -> String {
        let version = self.version.rsplit_once('.').map_or(self.version.as_str(), |(version, _)| version);
        format!("etcd {version}")
    }

    /// Its version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The commands of the nodes of a new cluster. Its options are the default ones.
    pub(crate) fn commands(
        &self,
        directory: &Path,
        clients: &[SocketAddr],
        peers: &[SocketAddr],
    ) -> Vec<Command> {
        let url = |address: &SocketAddr| format!("http://{address}");
        let cluster = peers.iter().zip(1..).map(|(peer, node)| format!("node{node}={}", url(peer)));
        let cluster = cluster.collect::<Vec<_>>().join(",");
        let command = |((client, peer), node): ((&SocketAddr, &SocketAddr), u32)| {
            let name = format!("node{node}");
            let (client, peer) = (url(client), url(peer));
            let mut command = Command::new(&self.path);
            command.arg("--data-dir").arg(directory.join(&name)).args(["--name", &name]);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &cluster, "--logger", "zap", "--log-level", "error"]);
            command
        };
        clients.iter().zip(peers).zip(1..).map(command).collect()
    }
}

/// A client with a connection of its own.
pub(crate) struct EtcdClient(Channel);

impl Client for EtcdClient {
    async fn connect(address: SocketAddr) -> Result<Self> {
        Ok(Self(Channel::connect(address).await?))
    }

    async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let request = PutRequest { key: key.to_vec(), value: value.to_vec() };
        let PutResponse {} = self.0.call("/etcdserverpb.KV/Put", &request).await?;
        Ok(())
    }

    async fn read(&mut self, key: &[u8]) -> Result<Option<usize>> {
        // A range is linearizable unless it says otherwise.
        let response: RangeResponse =
            self.0.call("/etcdserverpb.KV/Range", &RangeRequest { key: key.to_vec() }).await?;
        ensure!(response.kvs.len() <= 1, "a key has several values");
        Ok(response.kvs.first().map(|found| found.value.len()))
    }

    async fn is_leader(&mut self) -> Result<bool> {
        let status: StatusResponse =
            self.0.call("/etcdserverpb.Maintenance/Status", &StatusRequest {}).await?;
        Ok(status.header.is_some_and(|header| header.member_id == status.leader) && status.leader != 0)
    }
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct PutResponse {}

#[derive(Clone, PartialEq, Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}
