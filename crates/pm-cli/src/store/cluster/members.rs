//! `pm store cluster`: shows and changes the members of a cluster.

use super::super::args::{Cluster, ClusterCommand};
use super::connection::Connection;
use super::password;
use crate::report::{field, say};
use miette::{IntoDiagnostic as _, miette};
use serde_json::{Value, json};

/// Runs a command at a node.
pub(in super::super) fn run(args: &Cluster, json: bool) -> miette::Result<()> {
    let password = password::read(args.password_file.as_deref())?;
    let mut connection = Connection::open(&args.at, password.as_deref())?;
    match &args.command {
        ClusterCommand::Status => {
            let status = connection.call(&[b"PM.CLUSTER", b"STATUS"])?;
            let status: Value = serde_json::from_slice(&status).into_diagnostic()?;
            if json {
                say(&status);
                Ok(())
            } else {
                show(&status)
            }
        }
        ClusterCommand::Add { node } => {
            let id = node.id.to_string();
            connection.call(&[b"PM.CLUSTER", b"ADD", id.as_bytes(), node.address.as_bytes()])?;
            if json {
                say(json!({ "added": node.id, "address": node.address }));
            } else {
                say(format_args!("node {id} at {} is a member, and votes", node.address));
            }
            Ok(())
        }
        ClusterCommand::Remove { id } => {
            connection.call(&[b"PM.CLUSTER", b"REMOVE", id.to_string().as_bytes()])?;
            if json {
                say(json!({ "removed": id }));
            } else {
                say(format_args!(
                    "node {id} is no longer a member: stop it; it can be added again with its file only"
                ));
            }
            Ok(())
        }
    }
}

fn show(status: &Value) -> miette::Result<()> {
    let unknown = || miette!("the node's answer is none of this version");
    let number = |value: &Value, name: &str| value[name].as_u64();
    match number(status, "leader") {
        Some(leader) => say(format_args!("leader: node {leader}")),
        None => say("leader: none"),
    }
    field("term", number(status, "term").ok_or_else(unknown)?);
    field("entries", number(status, "last_log_index").ok_or_else(unknown)?);
    field("applied", number(status, "applied_index").ok_or_else(unknown)?);
    if status["is_changing"].as_bool().ok_or_else(unknown)? {
        say("  a change of the members has begun and is not complete: give the command again");
    }
    for node in status["nodes"].as_array().ok_or_else(unknown)? {
        let id = number(node, "id").ok_or_else(unknown)?;
        let address = node["address"].as_str().ok_or_else(unknown)?;
        let role = if node["is_voter"].as_bool().ok_or_else(unknown)? { "votes" } else { "receives the log" };
        let lag = match number(node, "lag") {
            Some(0) => "has all entries".to_owned(),
            Some(lag) => format!("lacks {lag} entries"),
            None => "lag unknown".to_owned(),
        };
        say(format_args!("node {id} at {address}: {role}, {lag}"));
    }
    Ok(())
}
