//! A program that runs traced.

use core::convert::Infallible;
use core::fmt;
use core::time::Duration;
use std::io;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use libc::{c_long, pid_t};

use crate::tasks::Tasks;
use crate::{Injection, Outcome, ptrace};

/// The default time limit of a program, set by [`Traced::within`]: much more than a program under test takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A program that runs once, with one fault.
pub struct Traced {
    command: Command,
    injection: Injection,
    counts_from_start: bool,
    last: Option<(c_long, u64)>,
    patience: Duration,
}

impl fmt::Debug for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traced").field("command", &self.command).field("injection", &self.injection).finish()
    }
}

impl Traced {
    /// Counts every call of the program. The command's output must go to files or to null: a pipe is never
    /// read, so the program would block when it is full.
    #[must_use]
    pub fn new(command: Command, injection: Injection) -> Self {
        Self { command, injection, counts_from_start: true, last: None, patience: PATIENCE }
    }

    /// Counts only the calls between the program's own calls of [`counting`](crate::counting).
    #[must_use]
    pub fn between_marks(mut self) -> Self {
        self.counts_from_start = false;
        self
    }

    /// The first counted `call` with this first argument ends the counting, and the program gets SIGTERM: for a server that writes
    /// a line to its standard output when it is ready.
    #[must_use]
    pub fn terminated_at(mut self, call: c_long, first_argument: u64) -> Self {
        self.last = Some((call, first_argument));
        self
    }

    /// Sets the time limit, after which the program counts as hanging.
    #[must_use]
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Runs the program until it and all its children have ended.
    ///
    /// # Panics
    /// When it cannot be started or traced.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        // In a thread of its own, whose children are the program and its children only.
        thread::scope(|threads| {
            let traced = threads.spawn(move || {
                let program =
                    start(&mut self.command).unwrap_or_else(|error| panic!("{:?}: {error}", self.command));
                let tasks = Tasks::new(program, self.injection, self.counts_from_start, self.last);
                trace(&Mutex::new(tasks), self.patience)
            });
            traced.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Starts the program, traced by the calling thread, and returns its number. The tracer waits for it and for its children.
fn start(command: &mut Command) -> io::Result<pid_t> {
    ptrace::be_traced(command);
    let program = command.spawn()?;
    Ok(pid_t::try_from(program.id()).expect("the number of a process"))
}

/// Waits for the tasks, and kills them after the time limit.
fn trace(tasks: &Mutex<Tasks>, patience: Duration) -> Outcome {
    thread::scope(|threads| {
        let (ended, is_ended) = mpsc::channel::<Infallible>();
        threads.spawn(move || {
            if is_ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                lock(tasks).hang();
            }
        });
        // Dropped at the end of this closure, also by a panic: then the thread above ends.
        let _ended = ended;
        // A task's end is handled under the lock, so that `hang` kills no other process with its number.
        while let Some(task) = ptrace::wait() {
            lock(tasks).advance(task);
        }
        lock(tasks).outcome()
    })
}

fn lock(tasks: &Mutex<Tasks>) -> MutexGuard<'_, Tasks> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}
