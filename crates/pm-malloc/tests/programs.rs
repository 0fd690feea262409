//! Real programs, with the library and without: their output is the same, and their heaps are sound.
//!
//! They must be installed: `cargo xtask test` does that. A missing program fails its test, which names its package.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{assert_silent, compiled, library, sound, wait_for};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The directories of a program and of its heaps.
struct Workspace {
    work: TempDir,
    heaps: TempDir,
    is_preloaded: bool,
}

impl Workspace {
    fn new(is_preloaded: bool) -> Self {
        // In memory, if possible: the test is not about disks.
        let memory = Path::new("/dev/shm");
        let directory =
            || if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        Self { work: directory(), heaps: directory(), is_preloaded }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// A program of a package, in this workspace.
    fn command(&self, program: &str, package: &str) -> Command {
        let directories = ["/usr/bin", "/usr/sbin", "/bin", "/usr/local/bin"];
        let found = directories.iter().map(|directory| Path::new(directory).join(program));
        let found = found.into_iter().find(|path| path.is_file());
        let path = found.unwrap_or_else(|| panic!("{program} is missing: apt-get install {package}"));
        let mut command = Command::new(path);
        command.current_dir(self.work.path()).env("LC_ALL", "C").env("HOME", self.work.path());
        if self.is_preloaded {
            command.env("LD_PRELOAD", library()).env("PM_MALLOC_FILE", self.heaps.path().join("%p"));
            command.env("PM_MALLOC_SIZE", "256M").env("PM_MALLOC_KEEP", "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Checks that the heaps of all processes are sound, and have blocks.
    fn check(&self) {
        if !self.is_preloaded {
            return;
        }
        let mut blocks = 0;
        for entry in std::fs::read_dir(self.heaps.path()).unwrap() {
            let path = entry.unwrap().path();
            blocks += sound(&path).blocks().len();
            std::fs::remove_file(path).unwrap();
        }
        assert!(blocks > 0, "nothing was allocated in a heap");
    }
}

/// Compares the output of a program with the library and without.
fn compare(run: impl Fn(&Workspace) -> String) {
    let [expected, found] = [false, true].map(|is_preloaded| {
        let place = Workspace::new(is_preloaded);
        let output = run(&place);
        place.check();
        output
    });
    assert!(expected.len() > 10, "too little to compare: {expected:?}");
    assert!(expected == found, "with glibc: {expected}\nwith the heap: {found}");
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_silent(&format!("{command:?}"), &output);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_output_is_unchanged() {
    compare(|place| output(place.command("bash", "bash").args(["-c", include_str!("scripts/bash.sh")])));
}

#[test]
fn perl_output_is_unchanged() {
    compare(|place| {
        output(
            place
                .command("perl", "perl")
                .env("PERL_HASH_SEED", "0")
                .args(["-e", include_str!("scripts/perl.pl")]),
        )
    });
}

#[test]
fn python_output_is_unchanged() {
    compare(|place| {
        // Allocates every object by malloc, instead of by Python's own allocator.
        output(
            place
                .command("python3", "python3")
                .env("PYTHONMALLOC", "malloc")
                .args(["-c", include_str!("scripts/python.py")]),
        )
    });
}

#[test]
fn sqlite_output_is_unchanged() {
    compare(|place| {
        output(place.command("sqlite3", "sqlite3").args([":memory:", include_str!("scripts/sqlite.sql")]))
    });
}

#[test]
fn git_output_is_unchanged() {
    compare(|place| {
        let mut command = place.command("sh", "dash");
        place.command("git", "git");
        for (role, date) in [("AUTHOR", "2001-01-01T00:00:00Z"), ("COMMITTER", "2001-01-02T00:00:00Z")] {
            command.env(format!("GIT_{role}_NAME"), "name").env(format!("GIT_{role}_EMAIL"), "e@example.com");
            command.env(format!("GIT_{role}_DATE"), date);
        }
        output(command.args(["-c", include_str!("scripts/git.sh")]))
    });
}

/// A server that is killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            let killed = self.0.kill().and_then(|()| self.0.wait());
            assert!(killed.is_ok() || std::thread::panicking(), "{killed:?}");
        }
    }
}

impl Server {
    fn wait_for_success(mut self) {
        let status = wait_for("the server does not end", || self.0.try_wait().unwrap());
        assert!(status.success());
        let mut messages = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        assert_eq!(messages, "");
    }
}

/// A connection to redis, in its own protocol, by lines.
struct Redis(UnixStream);

impl Redis {
    fn start(place: &Workspace) -> (Server, Self) {
        let mut command = place.command("redis-server", "redis-server");
        command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", ""]);
        command.args(["--enable-debug-command", "yes"]);
        command.args(["--logfile", "redis.log", "--activerehashing", "no"]);
        let server = Server(command.spawn().unwrap());
        let connected = || {
            let mut redis = Self(UnixStream::connect(place.path("redis.sock")).ok()?);
            (redis.ask("PING").as_str() == "+PONG").then_some(redis)
        };
        let redis = wait_for("redis does not answer", connected);
        (server, redis)
    }

    fn answer(&mut self) -> String {
        let mut line = self.line();
        if let Some(length) = line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) {
            let mut bytes = vec![0; length + 2];
            self.0.read_exact(&mut bytes).unwrap();
            line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        }
        line
    }

    fn line(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while byte != *b"\n" && self.0.read(&mut byte).unwrap() == 1 {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.0.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        self.answer()
    }

    /// Many commands at once.
    fn tell(&mut self, commands: impl Iterator<Item = String>) {
        let commands: Vec<_> = commands.collect();
        for some in commands.chunks(500) {
            self.0.write_all((some.join("\r\n") + "\r\n").as_bytes()).unwrap();
            some.iter().for_each(|command| assert!(!self.answer().starts_with('-'), "{command}"));
        }
    }
}

/// The child of a BGSAVE writes its parent's data as of the fork, while the parent changes them; and redis is linked with jemalloc.
#[test]
fn redis_saves_state_of_fork_in_background() {
    compare(|place| {
        let (server, mut redis) = Redis::start(place);
        redis.tell((0..30_000).map(|i| match i % 4 {
            0 => format!("SET key:{i} {}", "v".repeat(i % 700 + 1)),
            1 => format!("RPUSH list:{} {i} {i}{i} a{i}", i % 100),
            2 => format!("HSET hash:{} field{i} {i}", i % 50),
            _ => format!("APPEND text:{} {i},", i % 10),
        }));
        let saved = redis.ask("DEBUG DIGEST");
        assert_eq!(redis.ask("BGSAVE"), "+Background saving started");
        redis.tell((0..20_000).map(|i| match i % 3 {
            0 => format!("DEL key:{} list:{}", i * 4, i % 300),
            1 => format!("SET key:{i} {}", "w".repeat(i % 900 + 1)),
            _ => format!("APPEND text:{} more", i % 10),
        }));
        let changed = redis.ask("DEBUG DIGEST");
        let status = wait_for("BGSAVE does not end", || {
            let info = redis.ask("INFO persistence");
            info.contains("rdb_bgsave_in_progress:0").then_some(info)
        });
        assert!(status.contains("rdb_last_bgsave_status:ok"), "{status}");
        redis.0.write_all(b"SHUTDOWN NOSAVE\r\n").unwrap();
        server.wait_for_success();
        assert!(saved != changed && saved.starts_with('+'), "{saved} {changed}");

        let (server, mut redis) = Redis::start(place);
        assert_eq!(redis.ask("DEBUG DIGEST"), saved, "the saved state is that of the fork");
        redis.0.write_all(b"SHUTDOWN NOSAVE\r\n").unwrap();
        server.wait_for_success();
        format!("{saved} {changed}")
    });
}

/// Sends a request to a server at a socket. Returns the answer without its headers.
fn get(socket: &Path, target: &str) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!(
        "GET {target} HTTP/1.0\r\nHost: h\r\nAccept-Encoding: gzip\r\nX-Long: {}\r\n\r\n",
        "y".repeat(target.len() * 40)
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let start = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let status = answer.iter().position(|byte| *byte == b'\r').unwrap();
    [&answer[..status], &answer[start..]].concat()
}

#[test]
fn nginx_output_is_unchanged_under_load() {
    compare(|place| {
        for n in 0..20 {
            let text: String = (0..n * 500 + 10).map(|line| format!("line {line} of {n}\n")).collect();
            std::fs::write(place.path(&format!("{n}.txt")), text).unwrap();
        }
        let root = place.work.path().display();
        let user = if is_root() { "user root;" } else { "" };
        let configuration = format!(
            "{user} daemon off; worker_processes 2; pid nginx.pid; error_log stderr error;
             events {{ worker_connections 64; }}
             http {{ types {{ text/plain txt; }} access_log off; gzip on; gzip_types text/plain; gzip_min_length 1;
               client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
               scgi_temp_path scgi;
               server {{ listen unix:{root}/front.sock; location / {{ proxy_pass http://unix:{root}/back.sock; }} }}
               server {{ listen unix:{root}/back.sock; root {root}; autoindex on; }} }}"
        );
        std::fs::write(place.path("nginx.conf"), configuration).unwrap();
        let mut command = place.command("nginx", "nginx-light");
        let prefix = format!("{root}/");
        let server = command.args(["-p", &prefix, "-e", "stderr", "-c", "nginx.conf"]).spawn().unwrap();
        let mut server = Server(server);
        let socket = place.path("front.sock");
        wait_for("nginx does not listen", || {
            assert!(server.0.try_wait().unwrap().is_none(), "nginx ended");
            UnixStream::connect(&socket).ok()
        });
        let clients = (0..4).map(|client| {
            let socket = socket.clone();
            std::thread::spawn(move || {
                let requests = (0..150).map(|n| (n * 7 + client) % 21);
                requests.map(|n| get(&socket, &format!("/{n}.txt"))).collect::<Vec<_>>()
            })
        });
        let clients: Vec<_> = clients.collect();
        let answers: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        let reload = |signal: &str| {
            let status = Command::new("kill").args([signal, &server.0.id().to_string()]).status().unwrap();
            assert!(status.success());
        };
        reload("-HUP");
        let after = get(&socket, "/19.txt");
        reload("-QUIT");
        let errors = {
            let mut errors = String::new();
            server.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            errors
        };
        assert!(server.0.wait().unwrap().success());
        let errors: Vec<_> =
            errors.lines().filter(|line| !line.contains("20.txt\" failed (2: No such file")).collect();
        assert!(errors.is_empty(), "{errors:?}");
        format!("{answers:?} {after:?}")
    });
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

#[test]
fn program_linked_with_jemalloc_may_mix_names() {
    assert!(Path::new("/usr/include/jemalloc/jemalloc.h").exists(), "apt-get install libjemalloc-dev");
    let program = compiled("linked.c", &["-ljemalloc"]);
    for order in [true, false] {
        let place = Workspace::new(order);
        let mut command = place.command("env", "coreutils");
        assert_eq!(output(command.arg(&program)), "linked\n");
        place.check();
    }
}
