//! Servers in PID namespaces of their own, and the files of dead ones.

use super::nbd_common::PATIENCE;
use super::scratch::{Scratch, assert_has, names, text, unshare};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A child that is killed with its children.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Runs a program as process 1 of a PID namespace of its own. /proc stays that of this namespace.
fn as_process_1(scratch: &Scratch, program: &Path, args: &[&str]) -> Command {
    let mut command = unshare(scratch, &["--pid", "--fork", "--kill-child"]);
    command.arg(program).args(args);
    command
}

/// Serves a new disk as process 1 of a PID namespace.
#[track_caller]
fn serve_as_process_1(scratch: &Scratch, disk: &str) -> Killed {
    let args = ["--json", "serve", disk, "--size", "1M", "--transport", "nbd"];
    let mut command = as_process_1(scratch, &scratch.path("pmbd"), &args);
    let mut server = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let stdout = server.0.stdout.take().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        tell.send(line)
    });
    let line = told.recv_timeout(PATIENCE).expect("the server serves");
    assert!(line.contains(r#""event":"serving""#), "{line:?}");
    server
}

#[test]
fn servers_in_two_pid_namespaces_may_share_number() {
    let scratch = Scratch::new();
    let servers = ["a.pm", "b.pm"].map(|disk| serve_as_process_1(&scratch, disk));
    let listed = scratch.good(&["list"]);
    for disk in ["a.pm", "b.pm"] {
        let words = format!("{disk}.sock by process 1 of another PID namespace");
        assert!(listed.contains(&words), "{words:?}: {listed}");
        assert!(UnixStream::connect(scratch.path(&format!("{disk}.sock"))).is_ok());
    }
    drop(servers);
}

#[test]
fn stop_signals_no_process_of_another_pid_namespace() {
    let scratch = Scratch::new();
    let server = serve_as_process_1(&scratch, "disk.pm");
    // In its own namespace, the shell has the server's number.
    let script = r#"trap 'echo signalled' TERM QUIT
timeout 2 "$0" stop disk.pm; timeout 2 "$0" stop disk.pm --force; timeout 2 "$0" stop 1; exit 0"#;
    let program = scratch.path("pmbd");
    let args = ["-c", script, program.to_str().unwrap()];
    let output = as_process_1(&scratch, Path::new("/bin/sh"), &args).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(stdout, "", "{stderr}");
    assert_eq!(stderr.matches("is served by process 1 of another PID namespace").count(), 2, "{stderr}");
    assert_has(&stderr, &["no server has the name 1"]);
    drop(server);
}

#[test]
fn list_removes_only_files_of_dead_servers() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let of_others = ["1--3.json", "1-2-3-4.json", "1-2-x.json", "1-2.json", "package.json"];
    let of_dead_server = "1-2-3.json";
    for name in of_others.iter().chain([&of_dead_server]) {
        fs::write(run.join(name), "{}").unwrap();
    }
    assert_eq!(scratch.good(&["list", "--json"]), "");
    assert_eq!(names(&run), of_others);
}
