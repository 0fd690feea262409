//! `pm store serve`: three processes, clients, and kills.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;

use cluster::{Client, Cluster, PATIENCE, Reply, pm, wait_for};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const LINES: usize = 20_000;
const PIPELINED: usize = 100;

fn key(line: usize) -> Vec<u8> {
    format!("line {line}").into_bytes()
}

fn value(line: usize) -> Vec<u8> {
    format!("value {}", line * 7).into_bytes()
}

/// Sets all lines, through any node that answers, and returns which were acknowledged. A line without an answer is not sent again.
fn load(ports: &[u16], progress: &AtomicUsize) -> Vec<bool> {
    let mut acknowledged = vec![false; LINES];
    let mut connection: Option<Client> = None;
    let mut turn = 0;
    for first in (0..LINES).step_by(PIPELINED) {
        let client = loop {
            match &mut connection {
                Some(client) => break client,
                None => {
                    turn += 1;
                    connection = Client::connect(ports[turn % ports.len()]).ok();
                }
            }
        };
        let lines: Vec<_> = (first..first + PIPELINED).map(|line| (key(line), value(line))).collect();
        let requests: Vec<_> = lines.iter().map(|(key, value)| vec![&b"SET"[..], key, value]).collect();
        let mut replies = || -> io::Result<()> {
            client.send(&requests)?;
            for is_acknowledged in &mut acknowledged[first..first + PIPELINED] {
                match client.receive()? {
                    Reply::Error(_) => {}
                    reply => {
                        assert_eq!(reply, Reply::ok());
                        *is_acknowledged = true;
                        progress.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Ok(())
        };
        if replies().is_err() {
            connection = None;
        }
        // Until there is another leader, an error comes at once.
        if !acknowledged[first + PIPELINED - 1] {
            thread::sleep(Duration::from_millis(100));
        }
    }
    acknowledged
}

/// The main job: the leader is killed in the middle of a load; what was acknowledged is on all nodes.
#[test]
fn acknowledged_lines_survive_the_kill_of_the_leader() {
    let mut cluster = Cluster::start(&[]);
    let leader = cluster.leader();
    let progress = AtomicUsize::new(0);
    let ports = cluster.ports.clone();
    let acknowledged = thread::scope(|scope| {
        let loader = scope.spawn(|| load(&ports, &progress));
        wait_for(|| (progress.load(Ordering::Relaxed) >= LINES / 2).then_some(()));
        cluster.kill(leader);
        loader.join().unwrap()
    });
    let count = acknowledged.iter().filter(|line| **line).count();
    assert!(count > LINES / 2, "only {count} lines were acknowledged");
    assert_ne!(cluster.leader(), leader);
    cluster.serve(leader);
    cluster.settle();
    let contents = [0, 1, 2].map(|node| cluster.contents(node));
    for (line, _) in acknowledged.iter().enumerate().filter(|(_, acknowledged)| **acknowledged) {
        for contents in &contents {
            assert_eq!(contents.get(&key(line)), Some(&value(line)), "line {line}");
        }
    }
    assert!(contents[0] == contents[1] && contents[1] == contents[2]);
    // A second load completes the first one.
    assert_eq!(load(&ports, &progress), [true; LINES]);
    cluster.settle();
    for node in 0..3 {
        assert_eq!(cluster.contents(node).len(), LINES);
        assert_eq!(cluster.local(node).call(&["DBSIZE"]).unwrap(), Reply::Integer(20_000));
    }
}

/// A node that was away for longer than the log reaches back receives the state.
#[test]
fn node_behind_the_log_receives_the_state() {
    let mut cluster = Cluster::start(&["--log-entries", "3"]);
    let follower = (cluster.leader() + 1) % 3;
    let mut client = cluster.client(cluster.leader());
    assert_eq!(client.call(&["SET", "old", "1"]).unwrap(), Reply::ok());
    cluster.settle();
    let last: u64 = cluster.info(follower, "last_log_index").parse().unwrap();
    cluster.kill(follower);
    assert_eq!(client.call(&["DEL", "old"]).unwrap(), Reply::Integer(1));
    for number in 0..3000 {
        let (key, value) = (format!("key {}", number % 1000), number.to_string().repeat(20));
        client.send(&[vec![b"SET", key.as_bytes(), value.as_bytes()]]).unwrap();
    }
    for _ in 0..3000 {
        assert_eq!(client.receive().unwrap(), Reply::ok());
    }
    wait_for(|| {
        (cluster.info(cluster.leader(), "purged_index").parse::<u64>().unwrap() > last + 3).then_some(())
    });
    cluster.serve(follower);
    cluster.settle();
    let contents = [0, 1, 2].map(|node| cluster.contents(node));
    assert_eq!(contents[0].len(), 1000);
    assert!(contents[0] == contents[1] && contents[1] == contents[2]);
    // It is a member like the others, also after another kill.
    cluster.kill(follower);
    cluster.serve(follower);
    assert_eq!(cluster.client(follower).call(&["SET", "new", "2"]).unwrap(), Reply::ok());
    cluster.settle();
    assert_eq!(cluster.local(follower).call(&["GET", "new"]).unwrap(), Reply::bulk(b"2"));
}

/// An empty file and an old copy are refused: they do not have what the node has promised.
#[test]
fn files_that_are_not_the_nodes_are_refused() {
    let mut cluster = Cluster::start(&[]);
    let node = (cluster.leader() + 1) % 3;
    let other = (node + 1) % 3;
    assert_eq!(cluster.client(node).call(&["SET", "a", "1"]).unwrap(), Reply::ok());
    cluster.settle();
    let refusals = |cluster: &Cluster| fs::read_to_string(cluster.messages(other)).unwrap();
    let copy = cluster.dir.path().join("copy.pm");
    cluster.kill(node);
    fs::copy(cluster.path(node), &copy).unwrap();
    cluster.serve(node);
    cluster.settle();
    cluster.kill(node);

    // An old copy.
    let kept = cluster.dir.path().join("kept.pm");
    fs::rename(cluster.path(node), &kept).unwrap();
    fs::copy(&copy, cluster.path(node)).unwrap();
    cluster.serve(node);
    wait_for(|| refusals(&cluster).contains("an id is never used twice").then_some(()));
    assert!(matches!(cluster.local(node).call(&["GET", "a"]).unwrap(), Reply::Bulk(Some(_))));
    cluster.kill(node);

    // An old copy that was opened more often than the file, when the other nodes were away.
    let others = [other, (other + 1) % 3];
    others.iter().for_each(|&other| cluster.kill(other));
    fs::copy(&copy, cluster.path(node)).unwrap();
    for _ in 0..3 {
        cluster.serve(node);
        cluster.kill(node);
    }
    others.iter().for_each(|&other| cluster.serve(other));
    cluster.serve(node);
    wait_for(|| refusals(&cluster).contains("is not the one that was opened as number").then_some(()));
    assert!(matches!(cluster.local(node).call(&["GET", "a"]).unwrap(), Reply::Bulk(Some(_))));
    cluster.kill(node);

    // An empty file.
    fs::remove_file(cluster.path(node)).unwrap();
    cluster.create(node);
    cluster.serve(node);
    wait_for(|| refusals(&cluster).contains("had another file").then_some(()));
    cluster.kill(node);

    // The rest goes on, and so does the node with its file.
    assert_eq!(cluster.client(other).call(&["SET", "a", "2"]).unwrap(), Reply::ok());
    fs::rename(&kept, cluster.path(node)).unwrap();
    cluster.serve(node);
    cluster.settle();
    assert_eq!(cluster.local(node).call(&["GET", "a"]).unwrap(), Reply::bulk(b"2"));
}

#[test]
fn commands_have_redis_replies_on_every_node() {
    let cluster = Cluster::start(&[]);
    cluster.leader();
    for node in 0..3 {
        let mut client = cluster.client(node);
        let name = |name: &str| format!("{name}{node}");
        let (a, b) = (name("a"), name("b"));
        let mut call = |request: &[&str]| client.call(request).unwrap();
        assert_eq!(call(&["PING"]), Reply::Simple("PONG".to_owned()));
        assert_eq!(call(&["SET", &a, "1", "XX"]), Reply::Bulk(None));
        assert_eq!(call(&["SET", &a, "1", "NX"]), Reply::ok());
        assert_eq!(call(&["SET", &a, "2", "NX"]), Reply::Bulk(None));
        assert_eq!(call(&["INCRBY", &a, "-8"]), Reply::Integer(-7));
        assert_eq!(call(&["GET", &a]), Reply::bulk(b"-7"));
        assert_eq!(call(&["PM.CAS", &a, "0", "5"]), Reply::Integer(0));
        assert_eq!(call(&["PM.CAS", &a, "-7", "5"]), Reply::Integer(1));
        assert_eq!(call(&["MSET", &a, "x", &b, ""]), Reply::ok());
        assert!(
            matches!(call(&["INCRBY", &a, "1"]), Reply::Error(message) if message.starts_with("ERR value is not"))
        );
        assert_eq!(call(&["SET", &b, "9223372036854775807"]), Reply::ok());
        assert!(matches!(call(&["INCRBY", &b, "1"]), Reply::Error(message) if message.contains("overflow")));
        assert_eq!(call(&["EXISTS", &a, &b, &a, "none"]), Reply::Integer(3));
        assert_eq!(call(&["DEL", &b, &b, "none"]), Reply::Integer(1));
        assert_eq!(call(&["MGET", &a, &b]), Reply::Array(vec![Reply::bulk(b"x"), Reply::Bulk(None)]));
        assert_eq!(
            call(&["PM.RANGE", &a, &b, "9"]),
            Reply::Array(vec![Reply::bulk(a.as_bytes()), Reply::bulk(b"x")])
        );
        assert_eq!(call(&["PM.RANGE", &b, &a, "9"]), Reply::Array(Vec::new()));
        assert!(matches!(call(&["SET", &a, "x", "EX", "10"]), Reply::Error(_)));
        assert_eq!(call(&["DEL", &a]), Reply::Integer(1));
        assert_eq!(call(&["DBSIZE"]), Reply::Integer(0));
        // A read sees the writes before it, also without waiting for their answers.
        client
            .send(&[vec![b"SET", b"k", b"1"], vec![b"GET", b"k"], vec![b"DEL", b"k"], vec![b"GET", b"k"]])
            .unwrap();
        let replies = [(); 4].map(|()| client.receive().unwrap());
        assert_eq!(replies, [Reply::ok(), Reply::bulk(b"1"), Reply::Integer(1), Reply::Bulk(None)]);
        // The longest entries.
        let long = vec![b'v'; (256 << 10) - 100];
        client.send(&[vec![b"SET", b"long", &long], vec![b"GET", b"long"], vec![b"DEL", b"long"]]).unwrap();
        let replies = [(); 3].map(|()| client.receive().unwrap());
        assert_eq!(replies, [Reply::ok(), Reply::bulk(&long), Reply::Integer(1)]);
    }
}

#[test]
fn wrong_bytes_and_other_clusters_are_refused() {
    let cluster = Cluster::start(&[]);
    let mut sent =
        vec![b"*1\r\n*1\r\n*1\r\n".to_vec(), b"*1\r\n$999999999\r\n".to_vec(), vec![b'x'; 100 << 10]];
    // To other nodes: a length above the bound, a short message, garbage, a greeting that is cut off.
    sent.extend([
        vec![0, 255, 255, 255],
        vec![0, 0, 0, 1, 7],
        vec![0, 0, 0, 40],
        [&[0, 0, 1, 0], &[255; 256][..]].concat(),
    ]);
    for bytes in sent {
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.ports[0])).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The node may end the connection before it has everything.
        drop(stream.write_all(&bytes));
        drop(stream.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        assert!(answer.is_empty() || answer.starts_with(b"-ERR Protocol error"), "{answer:?}");
    }
    // A store that belongs to a node is not that of another node or cluster.
    let mut cluster = cluster;
    cluster.kill(1);
    for arguments in [["--name", "other"], ["--id", "3"]] {
        let mut command = pm();
        command
            .args(["store", "serve"])
            .arg(cluster.path(1))
            .args(["--cluster", "2=127.0.0.1:0,3=127.0.0.1:0"]);
        if arguments[0] == "--name" {
            command.args(["--id", "2"]);
        }
        let refused = command.args(arguments).output().unwrap();
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && message.contains("belongs to node 2"), "{message}");
    }
    cluster.serve(1);
    cluster.settle();
}

#[test]
fn password_is_needed_for_clients_nodes_and_open_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    fs::write(&file, "secret\n").unwrap();
    let cluster = Cluster::start(&["--password-file", file.to_str().unwrap()]);
    let node = 0;
    let mut client = cluster.client(node);
    for request in [&["GET", "a"][..], &["SET", "a", "1"], &["INFO"], &["PING"], &["HELLO", "2"]] {
        let reply = client.call(request).unwrap();
        assert!(
            matches!(&reply, Reply::Error(message) if message.starts_with("NOAUTH")),
            "{request:?}: {reply:?}"
        );
    }
    assert!(
        matches!(client.call(&["AUTH", "secre"]).unwrap(), Reply::Error(message) if message.starts_with("WRONGPASS"))
    );
    assert!(matches!(client.call(&["GET", "a"]).unwrap(), Reply::Error(_)));
    assert_eq!(client.call(&["AUTH", "secret"]).unwrap(), Reply::ok());
    assert_eq!(client.call(&["SET", "a", "1"]).unwrap(), Reply::ok());
    let mut client = cluster.client(1);
    assert!(matches!(client.call(&["HELLO", "2", "AUTH", "default", "secret"]).unwrap(), Reply::Array(_)));
    assert_eq!(client.call(&["GET", "a"]).unwrap(), Reply::bulk(b"1"));

    let path = dir.path().join("open.pm");
    let created = pm().args(["store", "create", "--size", "64M"]).arg(&path).output().unwrap();
    assert!(created.status.success());
    let open =
        pm().args(["store", "serve", "--id", "1", "--cluster", "1=0.0.0.0:0"]).arg(&path).output().unwrap();
    let message = String::from_utf8_lossy(&open.stderr).into_owned();
    assert!(!open.status.success() && message.contains("no password"), "{message}");
}

/// A node that is started for the first time when the others have begun does not end the term of their leader.
#[test]
fn node_that_starts_last_does_not_stand_for_election() {
    let mut cluster = Cluster::create_all(&[]);
    cluster.serve(0);
    cluster.serve(1);
    let leader = cluster.leader();
    let term = cluster.info(leader, "term");
    cluster.serve(2);
    assert_eq!(cluster.client(2).call(&["SET", "a", "1"]).unwrap(), Reply::ok());
    cluster.settle();
    assert_eq!((cluster.leader(), cluster.info(2, "term")), (leader, term));
    assert_eq!(cluster.local(2).call(&["GET", "a"]).unwrap(), Reply::bulk(b"1"));
}

/// Nodes are added and removed, the leader too, while clients go on. A number belongs to a file for good.
#[test]
fn nodes_come_and_go() {
    let mut cluster = Cluster::start(&["--log-entries", "3"]);
    let mut client = cluster.client(cluster.leader());
    for number in 0..1000 {
        let key = format!("key {number}");
        client.send(&[vec![b"SET", key.as_bytes(), b"value"]]).unwrap();
    }
    (0..1000).for_each(|_| assert_eq!(client.receive().unwrap(), Reply::ok()));

    // A new node receives what is no longer in the log.
    let follower = (cluster.leader() + 1) % 3;
    let fourth = cluster.join();
    let address = cluster.address(fourth);
    let added = cluster.manage(follower, &["add", &address]).unwrap();
    assert!(added.contains("node 4") && added.contains("votes"), "{added}");
    cluster.manage(follower, &["add", &address]).unwrap();
    let moved = cluster.manage(follower, &["add", "4=127.0.0.1:1"]).unwrap_err();
    assert!(moved.contains("remove it first"), "{moved}");
    cluster.settle();
    let contents = cluster.contents(fourth);
    assert_eq!(contents.len(), 1000, "and nothing that clients did not store");
    assert_eq!(contents, cluster.contents(follower));
    assert_eq!(cluster.client(fourth).call(&["DBSIZE"]).unwrap(), Reply::Integer(1000));
    let status: serde_json::Value =
        serde_json::from_str(&cluster.manage(fourth, &["status", "--json"]).unwrap()).unwrap();
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(status["leader"], cluster.leader() + 1);
    assert!(nodes.len() == 4 && nodes.iter().all(|node| node["is_voter"] == true), "{status}");
    assert!(nodes.iter().all(|node| node["lag"].is_u64()), "{status}");

    // The leader leaves. The others go on.
    let leader = cluster.leader();
    let id = (leader + 1).to_string();
    let removed = cluster.manage(fourth, &["remove", &id]).unwrap();
    assert!(removed.contains("no longer a member"), "{removed}");
    cluster.kill(leader);
    assert_ne!(cluster.leader(), leader);
    assert_eq!(cluster.client(fourth).call(&["SET", "after", "1"]).unwrap(), Reply::ok());
    let twice = cluster.manage(fourth, &["remove", &id]).unwrap_err();
    assert!(twice.contains("has no node"), "{twice}");

    // Its number does not come back with another file, and comes back with its own.
    let kept = cluster.dir.path().join("kept.pm");
    fs::rename(cluster.path(leader), &kept).unwrap();
    cluster.create(leader);
    cluster.joins[leader] = true;
    cluster.serve(leader);
    let other = cluster.manage(fourth, &["add", &cluster.address(leader)]).unwrap_err();
    assert!(other.contains("had another file"), "{other}");
    cluster.kill(leader);
    fs::rename(&kept, cluster.path(leader)).unwrap();
    cluster.serve(leader);
    cluster.manage(fourth, &["add", &cluster.address(leader)]).unwrap();
    cluster.settle();
    assert_eq!(cluster.local(leader).call(&["GET", "after"]).unwrap(), Reply::bulk(b"1"));

    // It votes: without it, there would be no majority of the four.
    let others: Vec<usize> = cluster.alive().into_iter().filter(|node| *node != leader).collect();
    cluster.kill(others[0]);
    cluster.leader();
    assert_eq!(cluster.client(leader).call(&["SET", "after", "2"]).unwrap(), Reply::ok());
    cluster.settle();
}

/// A node that has a cluster of its own, one that nothing serves, and the last one.
#[test]
fn members_that_cannot_be_changed_are_errors() {
    let mut cluster = Cluster::start(&[]);
    let node = cluster.leader();
    let refused = cluster.manage(node, &["add", "9=127.0.0.1:1"]).unwrap_err();
    assert!(refused.contains("node 9 at 127.0.0.1:1"), "{refused}");
    let refused = cluster.manage(node, &["remove", "9"]).unwrap_err();
    assert!(refused.contains("has no node 9"), "{refused}");

    let own = cluster.join();
    let file = cluster.path(own);
    cluster.kill(own);
    let mut alone = pm();
    alone.args(["store", "serve", "--id", "4", "--cluster", &cluster.address(own)]).arg(&file);
    cluster.spawn(own, alone);
    wait_for(|| (cluster.info(own, "leader_id") == "4").then_some(()));
    let refused = cluster.manage(node, &["add", &cluster.address(own)]).unwrap_err();
    assert!(refused.contains("the log of another cluster"), "{refused}");
    let refused = cluster.manage(own, &["remove", "4"]).unwrap_err();
    assert!(refused.contains("the last one"), "{refused}");
    assert_eq!(cluster.client(own).call(&["SET", "a", "1"]).unwrap(), Reply::ok());
    cluster.kill(own);
    assert_eq!(cluster.client(node).call(&["SET", "a", "2"]).unwrap(), Reply::ok());
    cluster.settle();

    // What clients send is no way to the numbers of the nodes.
    let mut client = cluster.client(node);
    for request in
        [&["GET", "\0pm.nodes"][..], &["DEL", "\0pm.nodes"], &["MSET", "a", "1", "\0pm.nodes", "1"]]
    {
        assert!(
            matches!(client.call(request).unwrap(), Reply::Error(message) if message.contains("reserved"))
        );
    }
}

/// Prometheus reads what a node counts. A request for anything else is an error of HTTP.
#[test]
fn metrics_count_what_clients_do() {
    let cluster = Cluster::start(&["--metrics", "127.0.0.1:0"]);
    let node = cluster.leader();
    let mut client = cluster.client(node);
    for number in 0..5 {
        assert_eq!(client.call(&["SET", "a", &number.to_string()]).unwrap(), Reply::ok());
    }
    assert_eq!(client.call(&["GET", "a"]).unwrap(), Reply::bulk(b"4"));
    assert_eq!(client.call(&["READONLY"]).unwrap(), Reply::ok());
    let messages = fs::read_to_string(cluster.messages(node)).unwrap();
    let address = messages.lines().find_map(|line| line.strip_prefix("metrics at http://")).unwrap();
    let (address, path) = address.split_once('/').unwrap();
    let get = |request: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(format!("{request}\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    };
    let page = get(&format!("GET /{path} HTTP/1.1"));
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let id = node + 1;
    let lines = [
        format!("pm_node {id}"),
        format!("pm_leader {id}"),
        "pm_is_leader 1".to_owned(),
        "pm_voters 3".to_owned(),
        "pm_reads_total 1".to_owned(),
        "pm_writes_total{outcome=\"executed\"} 5".to_owned(),
        "pm_writes_total{outcome=\"unknown\"} 0".to_owned(),
        format!("pm_lag{{node=\"{id}\"}} 0"),
        "# EOF".to_owned(),
    ];
    for line in lines {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    assert!(get("GET /other HTTP/1.1").starts_with("HTTP/1.1 404"));
    assert!(get("POST /metrics HTTP/1.1").starts_with("HTTP/1.1 404"));
    assert!(get("nonsense").starts_with("HTTP/1.1 400"));
}

/// Sets a value of 200 KB under a number, and returns the reply.
fn set_long(client: &mut Client, number: u32) -> Reply {
    let key = format!("long {number}");
    client.send(&[vec![b"SET", key.as_bytes(), &[b'x'; 200 << 10]]]).unwrap();
    client.receive().unwrap()
}

/// A follower whose store is full ends, and the others go on; with a longer file it has everything again. A leader refuses writes before its store is full, and takes
/// removals, which make room.
#[test]
fn full_follower_ends_alone_and_full_leader_refuses_writes() {
    let mut cluster = Cluster::start(&["--log-entries", "50"]);
    let leader = cluster.leader();
    let small = cluster.join();
    cluster.kill(small);
    fs::remove_file(cluster.path(small)).unwrap();
    cluster.create_sized(small, "16M");
    cluster.serve(small);
    cluster.manage(leader, &["add", &cluster.address(small)]).unwrap();
    let mut client = cluster.client(leader);
    for number in 0..100 {
        assert_eq!(set_long(&mut client, number), Reply::ok(), "{number}");
    }
    let ended = wait_for(|| cluster.nodes[small].as_mut().unwrap().try_wait().unwrap());
    let messages = fs::read_to_string(cluster.messages(small)).unwrap();
    assert!(!ended.success() && messages.contains("full") && messages.contains("store grow"), "{messages}");
    cluster.nodes[small] = None;
    assert_eq!(set_long(&mut client, 100), Reply::ok());
    let grown = pm().args(["store", "grow", "--size", "128M"]).arg(cluster.path(small)).output().unwrap();
    assert!(grown.status.success(), "{grown:?}");
    cluster.serve(small);
    cluster.settle();
    assert_eq!(cluster.local(small).call(&["DBSIZE"]).unwrap(), Reply::Integer(101));

    let mut count = 101;
    let refused = loop {
        match set_long(&mut client, count) {
            Reply::Error(reason) => break reason,
            reply => assert_eq!(reply, Reply::ok()),
        }
        count += 1;
    };
    assert!(refused.contains("the store is full"), "{refused}");
    assert!((150..640).contains(&count), "{count} values of 200 KB in 128 MiB");
    cluster.settle();
    for number in 0..count / 2 {
        assert_eq!(client.call(&["DEL", &format!("long {number}")]).unwrap(), Reply::Integer(1));
    }
    wait_for(|| (set_long(&mut client, 0) == Reply::ok()).then_some(()));
    cluster.settle();
    let expected = Reply::Integer(i64::from(count - count / 2 + 1));
    for node in cluster.alive() {
        assert_eq!(cluster.local(node).call(&["DBSIZE"]).unwrap(), expected);
    }
}
