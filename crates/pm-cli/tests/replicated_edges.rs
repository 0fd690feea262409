//! `pm store serve` at its edges: many writes that wait, and members that change when something is full, away, or of another cluster.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;

use cluster::{Client, Cluster, PATIENCE, Reply, free_ports, pm, wait_for};
use std::fs;
use std::io::{Write as _, copy};
use std::iter;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

fn is_full(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(reason) if reason.contains("the store is full"))
}

/// Sets keys to values of a length until the store has no room for one more, also after it was measured again. Returns their number.
fn fill(client: &mut Client, len_bytes: usize) -> usize {
    let value = vec![b'x'; len_bytes];
    let count = if len_bytes > 1000 { 10 } else { 100 };
    let (mut number, mut refused) = (0, 0);
    while refused < 2 {
        let keys: Vec<_> = (number..number + count).map(|number| format!("{len_bytes} {number}")).collect();
        let sets: Vec<_> = keys.iter().map(|key| vec![&b"SET"[..], key.as_bytes(), &value]).collect();
        client.send(&sets).unwrap();
        let replies: Vec<_> = sets.iter().map(|_| client.receive().unwrap()).collect();
        assert!(replies.iter().all(|reply| is_full(reply) || *reply == Reply::ok()), "{replies:?}");
        if replies.iter().any(is_full) {
            refused += 1;
            thread::sleep(Duration::from_millis(500));
        } else {
            (number, refused) = (number + count, 0);
        }
    }
    number
}

/// A full store takes removals, and then writes again, of another length.
#[test]
fn full_cluster_takes_removals() {
    let cluster = Cluster::start(&["--log-entries", "100"]);
    let leader = cluster.leader();
    let mut client = cluster.client(leader);
    let counts = [200 << 10, 8 << 10, 1000, 1].map(|len_bytes| (len_bytes, fill(&mut client, len_bytes)));
    let (_, long) = counts[0];
    assert!(long > 200, "{counts:?}");
    for (len_bytes, count) in counts {
        for number in 0..count / 2 {
            let removed = client.call(&["DEL", &format!("{len_bytes} {number}")]).unwrap();
            assert_eq!(removed, Reply::Integer(1), "{len_bytes} {number} of {counts:?}");
        }
    }
    let more = fill(&mut client, 30_000);
    assert!(more > 500, "{more} after {counts:?}");
    cluster.settle();
    assert_eq!(cluster.alive().len(), 3);
}

/// Each length that a store never had takes a piece of it at first. Many of them that come at once do not take those of the log.
#[test]
fn full_cluster_takes_bursts_of_new_lengths() {
    let cluster = Cluster::start(&[]);
    let leader = cluster.leader();
    let mut client = cluster.client(leader);
    let filled = fill(&mut client, 1000);
    assert!(filled > 50_000, "{filled}");
    // A few pieces of the store.
    let removed: Vec<_> = (0..2000).map(|number| format!("1000 {number}")).collect();
    let request: Vec<_> = iter::once("DEL").chain(removed.iter().map(String::as_str)).collect();
    assert_eq!(client.call(&request).unwrap(), Reply::Integer(2000));
    thread::sleep(Duration::from_millis(500));
    let lengths: Vec<usize> =
        (4..14).flat_map(|bits| (0..8).map(move |step| (8 + step) << bits >> 3)).collect();
    let keys: Vec<_> = lengths.iter().map(|len_bytes| format!("new {len_bytes}")).collect();
    let value = vec![b'x'; 16 << 10];
    let pairs = keys.iter().zip(&lengths);
    let sets: Vec<_> = pairs.map(|(key, len)| vec![&b"SET"[..], key.as_bytes(), &value[..*len]]).collect();
    // Keys that are absent, of as many lengths: their removals take space in the log only.
    let dels: Vec<_> = lengths.iter().map(|len| vec![&b"DEL"[..], &value[..*len]]).collect();
    for burst in [&sets, &dels] {
        for request in burst {
            // Each has an entry of its own.
            client.send(std::slice::from_ref(request)).unwrap();
        }
        let replies: Vec<_> = burst.iter().map(|_| client.receive().unwrap()).collect();
        let is_done = |reply: &&Reply| matches!(reply, Reply::Simple(_) | Reply::Integer(0));
        assert!(replies.iter().all(|reply| is_full(reply) || is_done(&reply)), "{replies:?}");
        assert!(replies.iter().filter(is_done).count() > 10, "{replies:?}");
    }
    cluster.settle();
    assert_eq!(cluster.alive().len(), 3);
}

/// The members of a cluster whose stores are full can be changed: nodes with longer files are the way out.
#[test]
fn full_cluster_changes_its_members() {
    let mut cluster = Cluster::start(&[]);
    let leader = cluster.leader();
    let mut client = cluster.client(leader);
    for len_bytes in [200 << 10, 8 << 10, 1] {
        fill(&mut client, len_bytes);
    }
    let new = cluster.join();
    cluster.kill(new);
    fs::remove_file(cluster.path(new)).unwrap();
    cluster.create_sized(new, "512M");
    cluster.serve(new);
    cluster.manage(leader, &["add", &cluster.address(new)]).unwrap();
    cluster.manage(leader, &["remove", &((leader + 1) % 3 + 1).to_string()]).unwrap();
}

/// Writes that come together wait together for a leader, too.
#[test]
fn pipelined_writes_without_a_leader_are_answered_together() {
    let mut cluster = Cluster::start(&[]);
    let left = (cluster.leader() + 1) % 3;
    let mut client = cluster.client(left);
    (0..3).filter(|node| *node != left).for_each(|node| cluster.kill(node));
    wait_for(|| (cluster.info(left, "leader_id") == "none").then_some(()));
    let start = Instant::now();
    client.send(&vec![vec![&b"SET"[..], b"a", b"1"]; 20]).unwrap();
    for _ in 0..20 {
        let reply = client.receive().unwrap();
        assert!(matches!(&reply, Reply::Error(reason) if reason.starts_with("TRYAGAIN")), "{reply:?}");
    }
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

/// Entries of the log are bounded by their length, too: a short state that changes for ever never fills the store.
#[test]
fn long_values_that_replace_each_other_do_not_fill_the_store() {
    let mut cluster = Cluster::start(&[]);
    let leader = cluster.leader();
    let lagging = (leader + 1) % 3;
    let mut client = cluster.client(leader);
    let mut set = |number: u32| {
        let value = vec![b'x'; 200 << 10];
        client.send(&[vec![b"SET", format!("long {}", number % 2).as_bytes(), &value]]).unwrap();
        assert_eq!(client.receive().unwrap(), Reply::ok(), "{number}");
    };
    (0..300).for_each(&mut set);
    cluster.kill(lagging);
    (0..900).for_each(&mut set);
    assert_eq!(cluster.info(leader, "store_full"), "0");
    cluster.serve(lagging);
    cluster.settle();
    for node in 0..3 {
        assert_eq!(cluster.local(node).call(&["DBSIZE"]).unwrap(), Reply::Integer(2));
    }
}

/// A node that needs the state catches up beside writes that fill the log faster than the state is sent.
#[test]
fn lagging_node_catches_up_beside_writes() {
    let mut cluster = Cluster::start(&["--log-entries", "5"]);
    let leader = cluster.leader();
    let lagging = (leader + 1) % 3;
    let value = vec![b'x'; 200 << 10];
    let mut client = cluster.client(leader);
    let mut set = |number: u32| {
        let key = format!("long {}", number % 150);
        client.send(&[vec![b"SET", key.as_bytes(), &value]]).unwrap();
        assert_eq!(client.receive().unwrap(), Reply::ok(), "{number}");
    };
    (0..150).for_each(&mut set);
    cluster.kill(lagging);
    (0..150).for_each(&mut set);
    cluster.serve(lagging);
    let start = Instant::now();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = 0..;
            while !is_done.load(Ordering::Relaxed) && start.elapsed() < 2 * PATIENCE {
                numbers.next().into_iter().for_each(&mut set);
            }
        });
        wait_for(|| {
            let applied = |node| cluster.info(node, "applied_index").parse::<u64>().unwrap();
            let end = applied(leader);
            (applied(lagging) + 10 >= end).then_some(())
        });
        is_done.store(true, Ordering::Relaxed);
    });
    cluster.settle();
}

/// What a single request can ask for is bounded by what the node can send.
#[test]
fn long_replies_are_refused() {
    let cluster = Cluster::start(&[]);
    let mut client = cluster.client(cluster.leader());
    client.send(&[vec![b"SET", b"a", &[b'x'; 200 << 10]]]).unwrap();
    assert_eq!(client.receive().unwrap(), Reply::ok());
    let many = |command: &'static [u8], count: usize| {
        let mut request = vec![command];
        request.resize(count + 1, &b"a"[..]);
        [request]
    };
    client.send(&many(b"MGET", 10_000)).unwrap();
    let reply = client.receive().unwrap();
    assert!(matches!(&reply, Reply::Error(reason) if reason.contains("bytes")), "{reply:?}");
    client.send(&many(b"MGET", 30)).unwrap();
    assert!(matches!(client.receive().unwrap(), Reply::Array(values) if values.len() == 30));
    client.send(&many(b"EXISTS", 10_000)).unwrap();
    assert_eq!(client.receive().unwrap(), Reply::Integer(10_000));
}

/// A node that lags, and whose file is too short for a second state beside its own, says what to do.
#[test]
fn node_without_room_for_the_state_says_so() {
    let mut cluster = Cluster::start(&["--log-entries", "3"]);
    let leader = cluster.leader();
    let small = cluster.join();
    cluster.kill(small);
    fs::remove_file(cluster.path(small)).unwrap();
    cluster.create_sized(small, "32M");
    cluster.serve(small);
    cluster.manage(leader, &["add", &cluster.address(small)]).unwrap();
    let mut client = cluster.client(leader);
    let mut set = |number: u32| {
        let value = vec![b'x'; 200 << 10];
        client.send(&[vec![b"SET", format!("long {number}").as_bytes(), &value]]).unwrap();
        assert_eq!(client.receive().unwrap(), Reply::ok(), "{number}");
    };
    for number in 0..100 {
        set(number);
        cluster.settle();
    }
    let last: u64 = cluster.info(small, "last_log_index").parse().unwrap();
    cluster.kill(small);
    (0..20).for_each(&mut set);
    wait_for(|| (cluster.info(leader, "purged_index").parse::<u64>().unwrap() > last).then_some(()));
    cluster.serve(small);
    let says = |cluster: &Cluster| fs::read_to_string(cluster.messages(small)).unwrap();
    wait_for(|| says(&cluster).contains("give this node a longer file").then_some(()));
    // It stays, and says it once.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(says(&cluster).matches("give this node a longer file").count(), 1, "{}", says(&cluster));
    cluster.kill(small);
    let grown = pm().args(["store", "grow", "--size", "128M"]).arg(cluster.path(small)).output().unwrap();
    assert!(grown.status.success(), "{grown:?}");
    cluster.serve(small);
    cluster.settle();
    assert_eq!(cluster.local(small).call(&["DBSIZE"]).unwrap(), Reply::Integer(100));
}
