//! The traced tasks: the counting of calls, the call that is hit, and the reaction to each report of the kernel.

use std::collections::HashMap;
use std::path::Path;

use libc::{c_int, c_long, pid_t};
use rustix::process::{Pid, Signal, kill_process};

use crate::{End, Fault, Hit, Injection, Outcome, calls, ptrace};

/// The state of a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has not stopped yet.
    New,
    /// It has stopped before the report of its creator, which decides whether its calls count.
    Held,
    /// Between two system calls.
    Outside,
    /// In a system call.
    Inside,
    /// In a system call that returns this error.
    Failing(i32),
}

#[derive(Clone, Copy)]
struct Task {
    state: State,
    /// Whether its calls count.
    counts: bool,
}

/// The program and all that it has started.
pub(crate) struct Tasks {
    injection: Injection,
    /// The call and its first argument that end the counting, until they have ended it.
    last: Option<(c_long, u64)>,
    program: pid_t,
    /// The tasks whose end has not been reported.
    alive: HashMap<pid_t, Task>,
    call_count: usize,
    hit: Option<Hit>,
    /// Whether `last` has ended the counting.
    is_over: bool,
    is_hung: bool,
    /// How the program ended.
    end: Option<End>,
}

impl Tasks {
    /// The program alone, before its first report.
    pub(crate) fn new(
        program: pid_t,
        injection: Injection,
        counts: bool,
        last: Option<(c_long, u64)>,
    ) -> Self {
        let alive = HashMap::from([(program, Task { state: State::New, counts })]);
        Self {
            injection,
            last,
            program,
            alive,
            call_count: 0,
            hit: None,
            is_over: false,
            is_hung: false,
            end: None,
        }
    }

    /// Kills all tasks after a timeout.
    pub(crate) fn hang(&mut self) {
        self.is_hung = true;
        for task in self.alive.keys() {
            kill(*task, Signal::KILL);
        }
    }

    /// The outcome, when no task is left.
    pub(crate) fn outcome(&self) -> Outcome {
        let end = if self.is_hung { End::Hang } else { self.end.expect("the program has ended") };
        Outcome { call_count: self.call_count, hit: self.hit, end }
    }

    /// Handles the kernel's report of a task, and resumes it.
    pub(crate) fn advance(&mut self, id: pid_t) {
        let Some(status) = ptrace::report(id) else { return };
        if libc::WIFSTOPPED(status) {
            self.stopped(id, libc::WSTOPSIG(status), status >> 16);
            return;
        }
        self.alive.remove(&id);
        if id == self.program {
            self.end = Some(if libc::WIFEXITED(status) {
                End::Exit(libc::WEXITSTATUS(status))
            } else {
                End::Signal(libc::WTERMSIG(status))
            });
        }
    }

    fn stopped(&mut self, id: pid_t, signal: c_int, event: c_int) {
        if self.is_hung {
            // It may have started after the others were killed.
            kill(id, Signal::KILL);
            return;
        }
        let mut delivered = 0;
        match self.alive.get_mut(&id) {
            None => {
                let state = if self.is_watched() { State::Held } else { State::Outside };
                self.alive.insert(id, Task { state, counts: false });
                if state == State::Held {
                    return;
                }
            }
            Some(task) if task.state == State::New => {
                task.state = State::Outside;
                if id == self.program {
                    ptrace::follow(id);
                }
            }
            Some(_) if signal == libc::SIGTRAP | 0x80 => self.at_call(id),
            Some(task) if event != 0 => {
                let counts = task.counts;
                if event != libc::PTRACE_EVENT_EXEC {
                    self.starts(id, counts);
                }
            }
            Some(_) => delivered = signal,
        }
        self.resume(id, delivered);
    }

    /// A task reports that it has started another, which inherits whether its calls count.
    fn starts(&mut self, id: pid_t, counts: bool) {
        let Some(started) = ptrace::started(id) else { return };
        match self.alive.get_mut(&started) {
            None => drop(self.alive.insert(started, Task { state: State::New, counts })),
            Some(task) if task.state == State::Held => {
                *task = Task { state: State::Outside, counts };
                self.resume(started, 0);
            }
            Some(_) => {}
        }
    }

    /// A task enters or leaves a system call.
    fn at_call(&mut self, id: pid_t) {
        let Some(task) = self.alive.get_mut(&id) else { return };
        let state = core::mem::replace(&mut task.state, State::Outside);
        if state == State::Inside {
            return;
        }
        let Some(mut registers) = ptrace::registers(id) else { return };
        if let State::Failing(errno) = state {
            registers.rax = i64::from(-errno).cast_unsigned();
            ptrace::set_registers(id, &registers);
            return;
        }
        task.state = State::Inside;
        let call = (calls::number(&registers), registers.rdi);
        match call {
            (libc::SYS_getpgid, calls::ON) => task.counts = true,
            (libc::SYS_getpgid, calls::OFF) => task.counts = false,
            _ if task.counts && self.last == Some(call) => {
                (self.last, self.is_over) = (None, true);
                kill(self.program, Signal::TERM);
            }
            _ if task.counts && self.hit.is_none() && !self.is_over => {
                let fault = self.injection.fault;
                if fault != Fault::Kill && !calls::is_fallible(&registers) {
                    return;
                }
                self.call_count += 1;
                if self.call_count <= self.injection.call {
                    return;
                }
                match fault {
                    Fault::Kill => kill(id, Signal::KILL),
                    Fault::Error(errno) => {
                        task.state = State::Failing(errno);
                        // There is no such call, so it is not executed.
                        registers.orig_rax = u64::MAX;
                        ptrace::set_registers(id, &registers);
                    }
                }
                self.record_hit(id, call.0);
            }
            _ => {}
        }
    }

    /// Later calls need not be counted, so no task is held back any more.
    fn record_hit(&mut self, id: pid_t, number: c_long) {
        let is_in_child = !Path::new(&format!("/proc/{}/task/{id}", self.program)).exists();
        self.hit = Some(Hit { number, is_in_child });
        let held: Vec<pid_t> =
            self.alive.iter().filter(|(_, task)| task.state == State::Held).map(|(id, _)| *id).collect();
        for id in held {
            self.alive.entry(id).and_modify(|task| task.state = State::Outside);
            self.resume(id, 0);
        }
    }

    /// Whether the tasks' calls still matter.
    fn is_watched(&self) -> bool {
        self.last.is_some() || (self.hit.is_none() && !self.is_over)
    }

    fn resume(&self, id: pid_t, signal: c_int) {
        let is_failing = self.alive.get(&id).is_some_and(|task| matches!(task.state, State::Failing(_)));
        ptrace::resume(id, is_failing || self.is_watched(), signal);
    }
}

/// Sends a signal to a task whose end has not been reported, so its number has not been reused.
fn kill(id: pid_t, signal: Signal) {
    let id = Pid::from_raw(id).expect("the number of a task");
    let sent = kill_process(id, signal);
    assert!(matches!(sent, Ok(()) | Err(rustix::io::Errno::SRCH)), "{signal:?}: {sent:?}");
}
