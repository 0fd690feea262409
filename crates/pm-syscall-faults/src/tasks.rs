//! The traced tasks: which calls count, which is hit, and what is done at each report of the kernel.

use std::collections::HashMap;
use std::path::Path;

use libc::{c_int, c_long, pid_t};
use rustix::process::{Pid, Signal, kill_process};

use crate::{End, Fault, Hit, Injection, Outcome, calls, marker, ptrace};

/// Where a task is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has not stopped yet.
    New,
    /// It has stopped before its creator reported it, which says whether its calls count.
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
    place: Place,
    /// Whether its calls count.
    counts: bool,
}

/// The program and all that it has started.
pub(crate) struct Tasks {
    injection: Injection,
    /// The call and its first argument that end the counting, until they have ended it.
    last: Option<(c_long, u64)>,
    program: pid_t,
    /// Those whose end has not been taken in.
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
        let alive = HashMap::from([(program, Task { place: Place::New, counts })]);
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

    /// Kills all: they take too long.
    pub(crate) fn hang(&mut self) {
        self.is_hung = true;
        for task in self.alive.keys() {
            kill(*task, Signal::KILL);
        }
    }

    /// What it came to, when no task is left.
    pub(crate) fn outcome(&self) -> Outcome {
        let end = if self.is_hung { End::Hang } else { self.end.expect("the program has ended") };
        Outcome { call_count: self.call_count, hit: self.hit, end }
    }

    /// Takes in what the kernel has to report of a task, and lets it run on.
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
                let place = if self.is_watched() { Place::Held } else { Place::Outside };
                self.alive.insert(id, Task { place, counts: false });
                if place == Place::Held {
                    return;
                }
            }
            Some(task) if task.place == Place::New => {
                task.place = Place::Outside;
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
            None => drop(self.alive.insert(started, Task { place: Place::New, counts })),
            Some(task) if task.place == Place::Held => {
                *task = Task { place: Place::Outside, counts };
                self.resume(started, 0);
            }
            Some(_) => {}
        }
    }

    /// A task enters or leaves a system call.
    fn at_call(&mut self, id: pid_t) {
        let Some(task) = self.alive.get_mut(&id) else { return };
        let place = core::mem::replace(&mut task.place, Place::Outside);
        if place == Place::Inside {
            return;
        }
        let Some(mut registers) = ptrace::registers(id) else { return };
        if let Place::Failing(errno) = place {
            registers.rax = i64::from(-errno).cast_unsigned();
            ptrace::set_registers(id, &registers);
            return;
        }
        task.place = Place::Inside;
        let call = (calls::number(&registers), registers.rdi);
        match call {
            (libc::SYS_getpgid, marker::ON) => task.counts = true,
            (libc::SYS_getpgid, marker::OFF) => task.counts = false,
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
                        task.place = Place::Failing(errno);
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

    /// What comes now need not be counted, so no task is held back for it any more.
    fn record_hit(&mut self, id: pid_t, number: c_long) {
        let is_in_child = !Path::new(&format!("/proc/{}/task/{id}", self.program)).exists();
        self.hit = Some(Hit { number, is_in_child });
        let held: Vec<pid_t> =
            self.alive.iter().filter(|(_, task)| task.place == Place::Held).map(|(id, _)| *id).collect();
        for id in held {
            self.alive.entry(id).and_modify(|task| task.place = Place::Outside);
            self.resume(id, 0);
        }
    }

    /// Whether the tasks' calls matter still.
    fn is_watched(&self) -> bool {
        self.last.is_some() || (self.hit.is_none() && !self.is_over)
    }

    fn resume(&self, id: pid_t, signal: c_int) {
        let is_failing = self.alive.get(&id).is_some_and(|task| matches!(task.place, Place::Failing(_)));
        ptrace::resume(id, is_failing || self.is_watched(), signal);
    }
}

/// Sends a signal to a task that has not been reported as ended, so that its number is no other's.
fn kill(id: pid_t, signal: Signal) {
    let id = Pid::from_raw(id).expect("the number of a task");
    let sent = kill_process(id, signal);
    assert!(matches!(sent, Ok(()) | Err(rustix::io::Errno::SRCH)), "{signal:?}: {sent:?}");
}
