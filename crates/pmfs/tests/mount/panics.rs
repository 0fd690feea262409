//! A panic of a server: it ends the process, so that no request waits for a thread that has ended.

use crate::mounted::{Mount, PATIENCE};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The signal of abort(3).
const SIGABRT: i32 = 6;

/// The kernel refuses to store beyond the end of a file that was truncated, of which the call that stores can tell nothing: it panics. In a thread of the
/// server that serves requests, and in the one of long calls.
#[test]
fn panic_ends_the_server_and_its_requests() {
    for write in
        [&["dd", "if=/dev/zero", "bs=1M", "count=8", "of=new"][..], &["fallocate", "-l", "8M", "new"]]
    {
        let mut mount = Mount::with_options("64M", &["--protect", "unmapped"]);
        mount.stop();
        let errors = mount.dir.path().join("errors");
        mount.start_with(Stdio::from(File::create(&errors).unwrap()));
        fs::write(mount.path("kept"), "kept").unwrap();
        let whole = fs::read(mount.file()).unwrap();
        // Behind the metadata, an eighth.
        File::options().write(true).open(mount.file()).unwrap().set_len(9 << 20).unwrap();
        let output = Command::new("timeout").arg("60").args(write).current_dir(mount.path("")).output();
        let output = output.unwrap();
        // 124 if it hangs.
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let (begin, mut server) = (Instant::now(), mount.server.take().unwrap());
        let status = loop {
            if let Some(status) = server.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > PATIENCE {
                mount.server = Some(server);
                panic!("the server goes on: {}", fs::read_to_string(&errors).unwrap());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let said = fs::read_to_string(&errors).unwrap();
        assert_eq!(status.signal(), Some(SIGABRT), "{status}: {said}");
        assert!(said.starts_with("pmfs: ") && said.contains("the file was truncated"), "{said}");
        let error = fs::read_dir(mount.path("")).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NOTCONN));
        // As after a kill.
        fs::write(mount.file(), whole).unwrap();
        mount.start();
        assert_eq!(fs::read(mount.path("kept")).unwrap(), b"kept");
        mount.stop();
        mount.check();
    }
}
