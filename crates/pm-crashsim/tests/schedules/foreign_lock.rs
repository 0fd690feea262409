//! A lock that the scheduler does not know, held over an access to the region, blocks all threads of the scheduler. The watchdog says so.

use loom::model::Builder;
use pm_core::Pmem;
use pm_crashsim::{Explorer, Image, Run};
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Set in the process that hangs.
const VARIABLE: &str = "PM_CRASHSIM_TEST_HANGS";

#[test]
fn operation_that_does_not_return_is_reported() {
    if env::var_os(VARIABLE).is_some() {
        hang();
    }
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "foreign_lock::operation_that_does_not_return_is_reported", "--nocapture"])
        .env(VARIABLE, "1")
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let reported = lines.find_map(|line| line.ok().filter(|line| line.starts_with("pm-crashsim: ")));
    child.kill().unwrap();
    child.wait().unwrap();
    let reported = reported.unwrap();
    assert!(reported.contains("perhaps it holds a lock of std"), "{reported}");
    assert!(reported.contains("has not returned for"), "{reported}");
}

/// Does not return: a schedule switches threads inside the lock.
fn hang() {
    let operation = |run: &Arc<Run<()>>| {
        let lock = Arc::new(Mutex::new(()));
        let store = |run: &Run<()>, lock: &Mutex<()>, offset| {
            let _held = lock.lock().unwrap_or_else(PoisonError::into_inner);
            run.pmem().store_u64(offset, 1);
        };
        let (other, others_lock) = (Arc::clone(run), Arc::clone(&lock));
        let thread = loom::thread::spawn(move || store(&other, &others_lock, 0));
        store(run, &lock, 64);
        thread.join().unwrap();
    };
    let explored = pm_crashsim::under_loom::explore(
        &Explorer::default(),
        &Builder::new(),
        Image::zeroed(128),
        operation,
        |_| (),
    );
    panic!("it has returned: {:?}", explored.map(|_| ()));
}
