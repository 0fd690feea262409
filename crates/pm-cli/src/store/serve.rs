//! `pm store serve`: a node of a cluster.

use super::args::{Node, Serve};
use crate::report::say;
use miette::{Context as _, IntoDiagnostic as _, miette};
use pm_redis_server::{ServeError, ServeOptions, serve};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;

/// Serves until a signal.
pub(super) fn run(args: &Serve, json: bool) -> miette::Result<()> {
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
        name: args.name.clone(),
        password: password(args)?,
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

/// The first line of the file with the password.
fn password(args: &Serve) -> miette::Result<Option<Vec<u8>>> {
    let Some(file) = &args.password_file else { return Ok(None) };
    let bytes = fs::read(file).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let password = line.strip_suffix(b"\r").unwrap_or(line);
    if password.is_empty() {
        return Err(miette!("{}: the password is empty", file.display()));
    }
    Ok(Some(password.to_vec()))
}
