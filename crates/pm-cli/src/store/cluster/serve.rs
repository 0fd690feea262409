//! `pm store serve`: a node of a cluster.

use super::super::args::{Node, Serve};
use super::password;
use crate::report::say;
use miette::miette;
use pm_redis_server::{ServeError, ServeOptions, serve};
use serde_json::json;
use std::collections::BTreeMap;

/// Serves until a signal.
pub(in super::super) fn run(args: &Serve, json: bool) -> miette::Result<()> {
    let mut cluster = BTreeMap::new();
    for Node { id, address } in &args.cluster {
        if cluster.insert(*id, address.clone()).is_some() {
            return Err(miette!("--cluster has node {id} twice"));
        }
    }
    let options = ServeOptions {
        path: args.file.clone(),
        id: args.id,
        cluster,
        joins: args.join,
        metrics: args.metrics.clone(),
        name: args.name.clone(),
        password: password::read(args.password_file.as_deref())?,
        clients: args.clients,
        log_entries: args.log_entries,
    };
    let (path, id) = (args.file.display(), args.id);
    let ready = |address: &str| {
        if json {
            say(json!({ "path": args.file.to_string_lossy(), "id": id, "address": address }));
        } else {
            say(format_args!(
                "{path}: node {id} serves Redis clients at {address}; ends with SIGINT or SIGTERM"
            ));
        }
    };
    serve(&options, ready).map_err(|error| {
        let help = match &error {
            ServeError::Open { .. } => format!("`pm store create {path} --size 1G` makes a store"),
            ServeError::NoPassword { .. } => {
                "give a --password-file; the connections are not encrypted, for example WireGuard does that"
                    .to_owned()
            }
            ServeError::OtherNode { .. } => {
                "a node keeps its file, its id and the name of its cluster".to_owned()
            }
            ServeError::NoAddress { .. } => "--cluster names all nodes, this one included".to_owned(),
            ServeError::Stopped(_) => {
                format!("if the store is full: `pm store grow {path} --size SIZE`, and serve it again")
            }
            _ => return miette!("{error}"),
        };
        miette!(help = help, "{error}")
    })
}
