//! The identity of a node and its file. What the nodes remember of each other: an id is never used by a second file.

use super::known::Known;
use super::wire::{Hello, Introduction, Open, VERSION, Welcome};
use crate::error::ServeError;
use crate::program::Map;
use pm_openraft::{Storage, StorageError};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Notes of the store: the owner of the file, and the number of opens.
const OWNER: &str = "owner";
const OPENS: &str = "opens";
/// The note that a cluster was told of the file, and may give it its log.
const DESCRIBED: &str = "described";

/// The note with what is known of a node.
fn known(id: u64) -> String {
    format!("known {id}")
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    cluster: String,
    id: u64,
}

/// The identity of a node.
pub(crate) struct Identity {
    storage: Arc<Storage<Map>>,
    cluster: String,
    id: u64,
    file: [u8; 16],
    open: Open,
    password: Option<Vec<u8>>,
    /// One change of what is known at a time.
    changes: Mutex<()>,
}

fn note<T: for<'d> Deserialize<'d>>(storage: &Storage<Map>, name: &str) -> Result<Option<T>, StorageError> {
    let Some(bytes) = storage.note(name)? else { return Ok(None) };
    let decoded = postcard::from_bytes(&bytes);
    decoded.map(Some).map_err(|error| StorageError::Decode { what: "note", error })
}

fn set_note(storage: &Storage<Map>, name: &str, value: &impl Serialize) -> Result<(), StorageError> {
    let bytes = postcard::to_stdvec(value).map_err(|error| StorageError::Encode { what: "note", error })?;
    storage.set_note(name, &bytes)
}

impl Identity {
    /// Notes that the file is open once more, and on the first open which node it belongs to.
    pub(crate) fn open(
        path: &Path,
        storage: Arc<Storage<Map>>,
        cluster: &str,
        id: u64,
        password: Option<Vec<u8>>,
    ) -> Result<Self, ServeError> {
        let failed = |error| ServeError::Storage { path: path.to_path_buf(), error };
        let owner = Owner { cluster: cluster.to_owned(), id };
        match note::<Owner>(&storage, OWNER).map_err(failed)? {
            None => set_note(&storage, OWNER, &owner).map_err(failed)?,
            Some(found) if found == owner => {}
            Some(found) => {
                return Err(ServeError::OtherNode {
                    path: path.to_path_buf(),
                    found_id: found.id,
                    found_cluster: found.cluster,
                    id,
                    cluster: owner.cluster,
                });
            }
        }
        let opens = note::<u64>(&storage, OPENS).map_err(failed)?.unwrap_or(0) + 1;
        set_note(&storage, OPENS, &opens).map_err(failed)?;
        let mut nonce = [0; 8];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        let file = *storage.store().heap().pool().uuid().as_bytes();
        let open = Open { number: opens, nonce: u64::from_le_bytes(nonce) };
        Ok(Self { storage, cluster: owner.cluster, id, file, open, password, changes: Mutex::new(()) })
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// The identity of this node's file.
    pub(crate) const fn file(&self) -> [u8; 16] {
        self.file
    }

    /// Notes that a cluster is told of the file.
    ///
    /// # Durability
    /// Durable when this returns.
    pub(crate) fn note_described(&self) -> Result<(), StorageError> {
        if self.is_described()? { Ok(()) } else { set_note(&self.storage, DESCRIBED, &true) }
    }

    /// Whether a cluster was told of the file. A log that the file began by itself would be taken for that cluster's.
    pub(crate) fn is_described(&self) -> Result<bool, StorageError> {
        Ok(note::<bool>(&self.storage, DESCRIBED)?.unwrap_or(false))
    }

    /// The identity of the file of a node, if this node has met it.
    pub(crate) fn file_of(&self, id: u64) -> Result<Option<[u8; 16]>, StorageError> {
        if id == self.id {
            return Ok(Some(self.file));
        }
        Ok(self.known(id)?.file())
    }

    fn known(&self, id: u64) -> Result<Known, StorageError> {
        Ok(note(&self.storage, &known(id))?.unwrap_or_default())
    }

    /// This node, as it tells another one.
    ///
    /// # Durability
    /// That the other one is told is durable when this returns.
    fn introduction(&self, to: u64) -> Result<Introduction, StorageError> {
        let _change = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut other = self.known(to)?;
        if other.tell(self.open) {
            set_note(&self.storage, &known(to), &other)?;
        }
        let told = other.told().to_vec();
        Ok(Introduction { id: self.id, file: self.file, open: self.open, told, met: other.met() })
    }

    /// Whether a client has the password.
    pub(crate) fn is_password(&self, given: &[u8]) -> bool {
        self.password.as_deref().is_some_and(|password| is_equal(password, given))
    }

    pub(crate) const fn needs_password(&self) -> bool {
        self.password.is_some()
    }

    /// The first message to a node.
    pub(crate) fn hello(&self, to: u64) -> Result<Hello, StorageError> {
        Ok(Hello {
            version: VERSION,
            cluster: self.cluster.clone(),
            from: self.introduction(to)?,
            to,
            password: self.password.clone(),
        })
    }

    /// The answer to the first message of a node.
    pub(crate) fn welcome(&self, hello: &Hello) -> Welcome {
        let refusal = match hello {
            Hello { version, .. } if *version != VERSION => Some(format!(
                "this node speaks version {VERSION} of the protocol, and the other one {version}"
            )),
            Hello { cluster, .. } if *cluster != self.cluster => {
                Some(format!("this node is of cluster {:?}, and the other one of {cluster:?}", self.cluster))
            }
            Hello { to, .. } if *to != self.id => {
                Some(format!("this is node {}, and not {to}: check the addresses of the cluster", self.id))
            }
            Hello { password, .. }
                if self.needs_password()
                    && !password.as_deref().is_some_and(|given| self.is_password(given)) =>
            {
                Some("the password is wrong".to_owned())
            }
            Hello { from, .. } => self.check(from).err(),
        };
        let accepted = || match self.introduction(hello.from.id) {
            Ok(own) => Welcome::Accepted(own),
            Err(error) => Welcome::Refused(error.to_string()),
        };
        refusal.map_or_else(accepted, Welcome::Refused)
    }

    /// Compares a node with what is known of it, and remembers it.
    ///
    /// # Durability
    /// What is remembered is durable when this returns.
    pub(crate) fn check(&self, other: &Introduction) -> Result<(), String> {
        let _change = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let id = other.id;
        if id == self.id {
            return Err(format!(
                "two nodes have the id {id}: start one of them with another id and a new file"
            ));
        }
        let mut node = self.known(id).map_err(|error| error.to_string())?;
        if node.meet(other)? {
            set_note(&self.storage, &known(id), &node).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Compares in a time that depends on the length of the given bytes only.
fn is_equal(password: &[u8], given: &[u8]) -> bool {
    let mut difference = u8::from(password.len() != given.len());
    for (place, byte) in given.iter().enumerate() {
        difference |= byte ^ password.get(place).copied().unwrap_or(0);
    }
    difference == 0
}
