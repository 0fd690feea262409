//! Programs in a guest's background, `pmbd serve` first of all, and waiting for what they report.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use miette::{Result, bail, miette};
use serde_json::Value;

use crate::vm::Vm;

/// How long anything may take that is waited for: long enough for a busy machine under software emulation.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a guest is busy with, when something does not come to its end: its processes, where in the kernel they are,
/// and what the kernel said last.
const STATE: &str = "for task in /proc/[0-9]*/task/*; do
    grep -q '^Kthread:.1' $task/status && continue
    echo \"$task $(cat $task/comm), $(grep State $task/status): $(head -n 6 $task/stack | tr '\\n' ' ')\"
done 2>/dev/null
dmesg | tail -n 20";

/// A guest in which programs run in the background and report.
///
/// Their reports come in any order among each other; what is waited for is taken from among them, and the
/// others stay until they are waited for.
#[derive(Debug)]
pub struct Guest {
    /// The machine, for commands in the foreground.
    pub vm: Vm,
    reports: VecDeque<String>,
}

impl Guest {
    /// A guest on this machine, in which nothing has reported yet.
    #[must_use]
    pub fn new(vm: Vm) -> Self {
        Self { vm, reports: VecDeque::new() }
    }

    /// Runs a shell script that must succeed; its standard output.
    ///
    /// # Errors
    /// Those of [`Vm::check`].
    pub fn check(&mut self, script: &str) -> Result<String> {
        self.vm.check(script)
    }

    /// Starts a shell script in the background under a name of its own. Its output goes to `/tmp/NAME.log`.
    ///
    /// # Errors
    /// Those of [`Vm::check`].
    pub fn start(&mut self, name: &str, script: &str) -> Result<()> {
        // Both streams of the outer shell are closed: what runs in the background holds nothing of the agent's.
        self.vm.check(&format!(
            "{{ ( {script}\n) >/tmp/{name}.log 2>&1; echo ended {name} $? >/dev/report; }} >/dev/null 2>&1 &"
        ))?;
        Ok(())
    }

    /// Waits for the end of what [`start`](Self::start) started; its exit code.
    ///
    /// # Errors
    /// When it does not end, or the guest is gone.
    pub fn ended(&mut self, name: &str) -> Result<u8> {
        let prefix = format!("ended {name} ");
        let code =
            self.wait_for(&format!("the end of {name}"), |line| line.strip_prefix(&prefix)?.parse().ok());
        code.map_err(|report| report.wrap_err(self.log(name)))
    }

    /// As [`ended`](Self::ended), for what must succeed; what it wrote.
    ///
    /// # Errors
    /// Those of [`ended`](Self::ended), and an exit code other than zero.
    pub fn succeeded(&mut self, name: &str) -> Result<String> {
        let code = self.ended(name)?;
        let log = self.log(name);
        if code == 0 { Ok(log) } else { Err(miette!("{name} ended with {code}:\n{log}")) }
    }

    /// The first report, from now or before, of which `wanted` makes something.
    ///
    /// # Errors
    /// When none comes in time; `what` says what was waited for.
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
            "waited for {what} in vain; reported instead: {:?}; the guest's state:\n{state}",
            self.reports
        ))
    }

    /// What a program in the background wrote, for errors and to be shown.
    pub fn log(&mut self, name: &str) -> String {
        self.vm
            .check(&format!("cat /tmp/{name}.log"))
            .unwrap_or_else(|report| format!("(no log of {name}: {report})"))
    }

    /// Starts `pmbd serve PATH OPTIONS` in the background, and returns when it serves.
    ///
    /// # Errors
    /// When it ends instead, with what it said.
    pub fn serve(&mut self, path: &str, options: &str) -> Result<Server> {
        // One name for each disk: a server's successor reports under the same.
        let name = format!("pmbd{}", path.replace('/', "-"));
        self.start(
            &name,
            &format!("pmbd serve {path} {options} --json >/dev/report & echo $! >/tmp/{name}.pid; wait $!"),
        )?;
        let mut server = Server { name, path: path.to_owned(), up: Value::Null };
        server.up = server.next_event(self, "serving")?;
        Ok(server)
    }

    /// Cuts the power: see [`Vm::power_cut`]. All lines that were not waited for.
    ///
    /// # Errors
    /// Those of [`Vm::power_cut`].
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
    /// What it said when it began to serve: `disk` and `detail` of its JSON.
    pub up: Value,
}

impl Server {
    /// Waits for the next `event` of this server; all that it says of it.
    ///
    /// # Errors
    /// When it ends, or goes on without such an event.
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
            None => bail!("{line}, where it was to say {event:?}:\n{}", guest.log(&self.name)),
        }
    }

    /// Sends it a signal, such as `KILL`.
    ///
    /// # Errors
    /// When there is no such process any more.
    pub fn signal(&self, guest: &mut Guest, signal: &str) -> Result<()> {
        guest.check(&format!("kill -{signal} $(cat /tmp/{}.pid)", self.name))?;
        Ok(())
    }

    /// Waits for its end; its exit code.
    ///
    /// # Errors
    /// When it does not end.
    pub fn ended(self, guest: &mut Guest) -> Result<u8> {
        guest.ended(&self.name)
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    ///
    /// # Errors
    /// When it was not there to be killed.
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
