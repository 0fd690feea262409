//! `pm store serve` at its edges: many writes that wait, and members that change when something is full, away, or of another cluster.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;

use cluster::{Client, Cluster, PATIENCE, Reply, free_ports, pm, wait_for};
use std::fs;
use std::io::{Write as _, copy};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// 200 clients, each with a long pipeline of writes that take much memory of few bytes. A client that waits for memory must not have any that it does not
/// give back meanwhile.
#[test]
fn writes_of_many_pipelines_are_answered() {
    const CLIENTS: usize = 200;
    const WRITES: usize = 1500;
    let cluster = Cluster::start(&[]);
    let leader = cluster.leader();
    // Through the leader, and through another node.
    for node in [leader, (leader + 1) % 3] {
        let bytes = "DEL a\r\n".repeat(WRITES);
        let barrier = Barrier::new(CLIENTS);
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut client = Client::connect(cluster.ports[node]).unwrap();
                    let mut writer = client.writer.try_clone().unwrap();
                    writer.set_write_timeout(Some(PATIENCE)).unwrap();
                    barrier.wait();
                    thread::scope(|scope| {
                        scope.spawn(|| writer.write_all(bytes.as_bytes()).unwrap());
                        for _ in 0..WRITES {
                            let reply = client.receive().unwrap();
                            // What waits counts as if it were in the store, and a busy machine may not have an answer in time.
                            let is_error = matches!(&reply, Reply::Error(reason) if reason.starts_with("TRYAGAIN") || reason.starts_with("UNKNOWN"));
                            assert!(reply == Reply::Integer(0) || is_error, "{reply:?}");
                        }
                    });
                });
            }
        });
        // And the node takes writes of others.
        wait_for(|| (cluster.client(node).call(&["SET", "b", "1"]).unwrap() == Reply::ok()).then_some(()));
    }
}

/// Each write has its ten seconds from when it came, and not from when those before it had theirs.
#[test]
fn pipelined_writes_without_a_majority_are_answered_together() {
    let mut cluster = Cluster::start(&[]);
    let leader = cluster.leader();
    let mut client = cluster.client(leader);
    assert_eq!(client.call(&["SET", "a", "0"]).unwrap(), Reply::ok());
    (0..3).filter(|node| *node != leader).for_each(|node| cluster.kill(node));
    let start = Instant::now();
    client.send(&vec![vec![&b"SET"[..], b"a", b"1"]; 12]).unwrap();
    for _ in 0..12 {
        assert!(matches!(client.receive().unwrap(), Reply::Error(_)));
    }
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

/// A file whose number was given to it when it was empty does not begin a cluster of its own, whose log would then be taken for that of the cluster.
#[test]
fn file_that_a_cluster_was_told_of_begins_no_other_one() {
    let mut cluster = Cluster::start(&[]);
    let node = cluster.leader();
    let own = cluster.join();
    // Only the first connection, that of the description, comes through.
    let proxy = free_ports(1)[0];
    let listener = TcpListener::bind(("127.0.0.1", proxy)).unwrap();
    let port = cluster.ports[own];
    thread::spawn(move || {
        for (count, stream) in listener.incoming().enumerate() {
            let (Ok(mut near), 0) = (stream, count) else { continue };
            let mut far = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut near2, mut far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || copy(&mut near, &mut far));
            thread::spawn(move || copy(&mut far2, &mut near2));
        }
    });
    let at = format!("127.0.0.1:{}", cluster.ports[node]);
    let mut add = pm();
    add.args(["store", "cluster", "--at", &at, "add", &format!("4=127.0.0.1:{proxy}")]);
    let mut add = add.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for(|| {
        let status = cluster.manage(node, &["status", "--json"]).ok()?;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        (status["nodes"].as_array().unwrap().len() == 4).then_some(())
    });
    cluster.manage(node, &["remove", "4"]).unwrap();
    assert!(!add.wait().unwrap().success());

    // Without --join it would begin one.
    cluster.kill(own);
    let mut alone = pm();
    alone.args(["store", "serve", "--id", "4", "--cluster", &cluster.address(own)]).arg(cluster.path(own));
    cluster.spawn(own, alone);
    let says = |cluster: &Cluster| fs::read_to_string(cluster.messages(own)).unwrap();
    wait_for(|| says(&cluster).contains("waits until the cluster").then_some(()));
    assert_eq!(cluster.info(own, "leader_id"), "none");
    cluster.manage(node, &["add", &cluster.address(own)]).unwrap();
    assert_eq!(cluster.client(own).call(&["SET", "a", "1"]).unwrap(), Reply::ok());
}

/// A leader that was removed and still runs does not say that it leads, and knows that writes at it are not executed.
#[test]
fn removed_leader_does_not_lead() {
    let cluster = Cluster::start(&[]);
    let leader = cluster.leader();
    let other = (leader + 1) % 3;
    let id = (leader + 1).to_string();
    cluster.manage(other, &["remove", &id]).unwrap();
    wait_for(|| {
        let now = cluster.info(other, "leader_id");
        (now != "none" && now != id).then_some(())
    });
    wait_for(|| (cluster.info(leader, "leader_id") != id).then_some(()));
    assert_eq!(cluster.info(leader, "role"), "slave");
    let reply = cluster.client(leader).call(&["SET", "a", "1"]).unwrap();
    assert!(matches!(&reply, Reply::Error(reason) if reason.starts_with("TRYAGAIN")), "{reply:?}");
}

/// The members of a cluster whose stores are full can be changed: nodes with longer files are the way out.
#[test]
fn full_cluster_changes_its_members() {
    let mut cluster = Cluster::start(&[]);
    let leader = cluster.leader();
    let mut client = cluster.client(leader);
    let is_full =
        |reply: &Reply| matches!(reply, Reply::Error(reason) if reason.contains("the store is full"));
    for len_bytes in [200 << 10, 8 << 10, 1] {
        for number in 0.. {
            let key = format!("{len_bytes} {number}");
            client.send(&[vec![b"SET", key.as_bytes(), &vec![b'x'; len_bytes]]]).unwrap();
            let reply = client.receive().unwrap();
            if is_full(&reply) {
                break;
            }
            assert_eq!(reply, Reply::ok());
        }
    }
    let new = cluster.join();
    cluster.kill(new);
    fs::remove_file(cluster.path(new)).unwrap();
    cluster.create_sized(new, "512M");
    cluster.serve(new);
    cluster.manage(leader, &["add", &cluster.address(new)]).unwrap();
    cluster.manage(leader, &["remove", &((leader + 1) % 3 + 1).to_string()]).unwrap();
}
