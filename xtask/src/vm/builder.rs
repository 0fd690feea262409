//! The configuration of a guest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use miette::{IntoDiagnostic, Result};
use tempfile::TempDir;

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// A file or directory of the host that is copied into the guest at boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The path on the host. Programs are copied with their shared objects.
    pub host: PathBuf,
    /// The absolute path in the guest.
    pub guest: String,
}

/// A directory of the host that the guest mounts over 9p.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The path on the host.
    pub host: PathBuf,
    /// The absolute path of the mount point in the guest.
    pub guest: String,
    /// Whether the guest may write to it.
    pub writable: bool,
}

/// One end of a network cable between two guests, for [`Builder::network`].
///
/// The guest is called `node1` or `node2`, and its interface `eth0` has the address 10.0.0.1 or 10.0.0.2. `ip link set eth0 down` cuts the cable.
#[derive(Debug, Clone)]
pub struct Plug {
    /// 1 or 2.
    pub(super) node: u8,
    /// Holds a datagram socket of each guest's QEMU while it runs, named after the node.
    pub(super) sockets: Arc<TempDir>,
}

impl Plug {
    /// Both ends of a new cable. A guest without a running peer sends into the void, and a guest that boots again can use its end again.
    ///
    /// # Errors
    /// If there can be no temporary directory.
    pub fn pair() -> Result<[Self; 2]> {
        let sockets = Arc::new(TempDir::with_prefix("pm-vm-cable-").into_diagnostic()?);
        Ok([1, 2].map(|node| Self { node, sockets: Arc::clone(&sockets) }))
    }

    /// The socket of node 1 or 2.
    pub(super) fn socket(&self, node: u8) -> PathBuf {
        self.sockets.path().join(format!("node{node}"))
    }
}

/// The configuration of a guest: created by [`Vm::builder`](super::Vm::builder), booted by [`start`](Self::start).
#[derive(Debug, Clone)]
pub struct Builder {
    pub(super) image: Option<PathBuf>,
    pub(super) size_bytes: u64,
    pub(super) fresh: bool,
    pub(super) dax: bool,
    pub(super) cpu_count: u32,
    pub(super) memory_mib: u64,
    pub(super) puts: Vec<Put>,
    pub(super) shares: Vec<Share>,
    pub(super) modules: Vec<String>,
    pub(super) network: Option<Plug>,
    pub(super) timeout: Option<Duration>,
    pub(super) on_terminal: bool,
    pub(super) update_kernel: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            image: None,
            size_bytes: 512 * MIB,
            fresh: false,
            dax: false,
            cpu_count: 2,
            memory_mib: 3072,
            puts: Vec::new(),
            shares: Vec::new(),
            modules: Vec::new(),
            network: None,
            timeout: None,
            on_terminal: false,
            update_kernel: false,
        }
    }
}

/// Methods that set a field to their argument.
macro_rules! setters {
    ($($(#[$doc:meta])+ $field:ident: $type:ty;)+) => {$(
        $(#[$doc])+
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )+};
}

impl Builder {
    setters! {
        /// The size of the persistent memory, a multiple of 128 MiB; 512 MiB by default.
        size_bytes: u64;
        /// Whether to empty the persistent memory first.
        fresh: bool;
        /// Whether to mount ext4 on `/dev/pmem0` with `-o dax` at `/mnt/pmem`. The file system is created if the memory is empty.
        dax: bool;
        /// The number of processors; 2 by default.
        cpu_count: u32;
        /// The volatile memory in MiB; 3072 by default.
        memory_mib: u64;
        /// Whether the terminal of this process is the guest's console, for [`Vm::shell`](super::Vm::shell).
        on_terminal: bool;
        /// Whether to check for a newer kernel than the cached one.
        update_kernel: bool;
    }

    /// The file that is the guest's persistent memory, by default one in the cache. It outlives the guest. One guest at a time can use it.
    #[must_use]
    pub fn image(mut self, path: impl Into<PathBuf>) -> Self {
        self.image = Some(path.into());
        self
    }

    /// Copies a file or directory of the host into the guest.
    #[must_use]
    pub fn put(mut self, host: impl Into<PathBuf>, guest: impl Into<String>) -> Self {
        self.puts.push(Put { host: host.into(), guest: guest.into() });
        self
    }

    /// Copies several files or directories of the host into the guest.
    #[must_use]
    pub fn puts(mut self, puts: impl IntoIterator<Item = Put>) -> Self {
        self.puts.extend(puts);
        self
    }

    /// Mounts a directory of the host in the guest.
    #[must_use]
    pub fn share(mut self, share: Share) -> Self {
        self.shares.push(share);
        self
    }

    /// Loads a module before the first command; parameters may follow its name, as in `brd rd_size=262144`.
    #[must_use]
    pub fn module(mut self, module: impl Into<String>) -> Self {
        self.modules.push(module.into());
        self
    }

    /// Connects the guest to another one. By default it has no network.
    #[must_use]
    pub fn network(mut self, plug: Plug) -> Self {
        self.network = Some(plug);
        self
    }

    /// The time limit of one command; none by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}
