//! `pmbd` in a guest: its build, the repository's sources as test data, and servers and other programs in the background.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, bail, miette};
use serde_json::Value;

use crate::cargo;
use crate::vm::{Put, Vm};

/// The time limit for a report, generous for a busy machine under software emulation.
const PATIENCE: Duration = Duration::from_secs(120);

/// Prints the state of a guest after a timeout: its processes, their kernel stacks, and the kernel's last messages.
const STATE: &str = "for task in /proc/[0-9]*/task/*; do
    grep -q '^Kthread:.1' $task/status && continue
    echo \"$task $(cat $task/comm), $(grep State $task/status): $(head -n 6 $task/stack | tr '\\n' ' ')\"
done 2>/dev/null
dmesg | tail -n 20";

/// Builds `pmbd` with these options of cargo, and returns its path. It is linked dynamically: a guest gets its shared objects too.
pub fn build(options: &[&str]) -> Result<PathBuf> {
    cargo::build("pmbd-ublk", &[&["--bin", "pmbd"], options].concat(), "pmbd")
}

/// This repository's files, to be put below `guest`, without hidden files and build output.
pub fn source_tree(guest: &str) -> Result<Vec<Put>> {
    let root = cargo::root();
    let mut puts = Vec::new();
    let context = || format!("cannot read {}", root.display());
    for entry in root.read_dir().into_diagnostic().wrap_err_with(context)? {
        let entry = entry.into_diagnostic()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A fuzzer builds below its own directory, and changes files there while it runs.
        if !name.starts_with('.') && !["target", "fuzz"].contains(&name.as_str()) {
            puts.push(Put { host: entry.path(), guest: format!("{guest}/{name}") });
        }
    }
    Ok(puts)
}

/// A guest with programs in the background.
///
/// Their reports arrive in any order. Waiting for a report takes it; the others are kept.
#[derive(Debug)]
pub struct Guest {
    /// The virtual machine, for commands in the foreground.
    pub vm: Vm,
    reports: VecDeque<String>,
}

impl Guest {
    /// A guest without reports.
    #[must_use]
    pub fn new(vm: Vm) -> Self {
        Self { vm, reports: VecDeque::new() }
    }

    /// Runs a shell script that must succeed, and returns its standard output.
    pub fn check(&mut self, script: &str) -> Result<String> {
        self.vm.check(script)
    }

    /// Starts a shell script in the background under a unique name. Its output goes to `/tmp/NAME.log`.
    pub fn start(&mut self, name: &str, script: &str) -> Result<()> {
        // The output of the outer shell is redirected too, so that background processes do not hold the agent's pipes.
        self.vm.check(&format!(
            "{{ ( {script}\n) >/tmp/{name}.log 2>&1; echo ended {name} $? >/dev/report; }} >/dev/null 2>&1 &"
        ))?;
        Ok(())
    }

    /// Waits for the end of a script in the background, and returns its exit code.
    pub fn ended(&mut self, name: &str) -> Result<u8> {
        let prefix = format!("ended {name} ");
        let code =
            self.wait_for(&format!("the end of {name}"), |line| line.strip_prefix(&prefix)?.parse().ok());
        code.map_err(|report| report.wrap_err(self.log(name)))
    }

    /// Waits for the end of a script in the background that must succeed, and returns its output.
    pub fn succeeded(&mut self, name: &str) -> Result<String> {
        let code = self.ended(name)?;
        let log = self.log(name);
        if code == 0 { Ok(log) } else { Err(miette!("{name} ended with {code}:\n{log}")) }
    }

    /// Waits for the first report, past ones included, for which `wanted` returns a value, and returns that value.
    pub fn wait_for<T>(&mut self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> Result<T> {
        if let Some((index, found)) =
            self.reports.iter().enumerate().find_map(|(index, line)| Some((index, wanted(line)?)))
        {
            self.reports.remove(index);
            return Ok(found);
        }
        let end = Instant::now() + PATIENCE;
        while let Some(line) = self.vm.next_report(end.saturating_duration_since(Instant::now())) {
            if let Some(found) = wanted(&line) {
                return Ok(found);
            }
            self.reports.push_back(line);
        }
        let state = self.vm.check(STATE).unwrap_or_else(|report| format!("(unknown: {report})"));
        Err(miette!(
            "timeout waiting for {what}; other reports: {:?}; the guest's state:\n{state}",
            self.reports
        ))
    }

    /// The output of a script in the background, for messages.
    pub fn log(&mut self, name: &str) -> String {
        self.vm
            .check(&format!("cat /tmp/{name}.log"))
            .unwrap_or_else(|report| format!("(no log of {name}: {report})"))
    }

    /// Starts `pmbd serve PATH OPTIONS` in the background, and waits until it serves.
    pub fn serve(&mut self, path: &str, options: &str) -> Result<Server> {
        // The name depends on the disk only: a later server of the disk reports under the same name.
        let name = format!("pmbd{}", path.replace('/', "-"));
        self.start(
            &name,
            &format!("pmbd serve {path} {options} --json >/dev/report & echo $! >/tmp/{name}.pid; wait $!"),
        )?;
        let mut server = Server { name, path: path.to_owned(), up: Value::Null };
        server.up = server.next_event(self, "serving")?;
        Ok(server)
    }

    /// Cuts the power by [`Vm::power_cut`], and returns all reports not yet taken.
    pub fn power_cut(mut self) -> Result<Vec<String>> {
        let rest = self.vm.power_cut()?;
        self.reports.extend(rest);
        Ok(self.reports.into())
    }
}

/// A `pmbd serve` in a guest.
#[derive(Debug)]
pub struct Server {
    name: String,
    path: String,
    /// Its `serving` event, with `disk` and `detail`.
    pub up: Value,
}

impl Server {
    /// Waits for the next `event` of this server, and returns its JSON.
    pub fn next_event(&self, guest: &mut Guest, event: &str) -> Result<Value> {
        let ended = format!("ended {} ", self.name);
        let line = guest.wait_for(&format!("{event:?} of {}", self.path), |line| {
            let ours = line.starts_with(&ended)
                || parse(line)
                    .is_some_and(|said| said["event"] == event && said["disk"]["path"] == *self.path);
            ours.then(|| line.to_owned())
        })?;
        match parse(&line) {
            Some(said) => Ok(said),
            None => bail!("{line}, where the event {event:?} was expected:\n{}", guest.log(&self.name)),
        }
    }

    /// Sends the server a signal, such as `KILL`.
    pub fn signal(&self, guest: &mut Guest, signal: &str) -> Result<()> {
        guest.check(&format!("kill -{signal} $(cat /tmp/{}.pid)", self.name))?;
        Ok(())
    }

    /// Waits for the server's end, and returns its exit code.
    pub fn ended(self, guest: &mut Guest) -> Result<u8> {
        guest.ended(&self.name)
    }

    /// Stops the server by this signal, and waits for an exit code of zero.
    pub fn stop(self, guest: &mut Guest, signal: &str) -> Result<()> {
        self.signal(guest, signal)?;
        let name = self.name.clone();
        guest.succeeded(&name).map(drop)
    }

    /// Kills the server by SIGKILL, and waits for its end.
    pub fn kill(self, guest: &mut Guest) -> Result<()> {
        self.signal(guest, "KILL")?;
        let name = self.name.clone();
        match self.ended(guest)? {
            137 => Ok(()),
            code => Err(miette!("{name} was killed, but ended with {code}:\n{}", guest.log(&name))),
        }
    }
}

fn parse(line: &str) -> Option<Value> {
    serde_json::from_str(line).ok().filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_tree_has_no_build_output() {
        let puts = source_tree("/src").expect("readable");
        let has = |guest: &str| puts.iter().any(|put| put.guest == guest);
        assert!(has("/src/crates") && has("/src/Cargo.toml"), "{puts:?}");
        assert!(!has("/src/target") && !has("/src/fuzz") && !has("/src/.git"), "{puts:?}");
    }
}
