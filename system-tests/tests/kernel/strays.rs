//! Protection keys, which the guest's CPU has: stray stores and loads are caught, and a window costs few instructions. Strays reach no file of a protected
//! file system.

use crate::lab::{Running, from_env};
use miette::Result;
use xtask::cargo;

/// The default of PM_STRAYS, the strays of each method.
const STRAYS: u32 = 50;

#[test]
fn protection_keys_catch_strays() -> Result<()> {
    let program = cargo::build_test("pm-core", "strays")?;
    let of_files = cargo::build_test("pm-fs", "strays")?;
    let mut guest =
        Running::boot(|machine| machine.put(program, "/root/strays").put(of_files, "/root/file-strays"))?;
    guest.check("mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm")?;
    let strays = from_env("PM_STRAYS", STRAYS);
    // One test of the program needs more memory than the guest has.
    let tests = "promised_strays key_window stray_is stray_load stray_ends";
    let run = format!("cd /tmp && PM_STRAYS={strays} strays {tests} --nocapture --test-threads=1 2>&1");
    let output = guest.check(&run)?;
    println!("{output}");
    for caught in [
        format!("pkey, reads guarded true: {strays} strays caught"),
        "instructions in a window with a key".to_owned(),
    ] {
        assert!(output.contains(&caught), "{caught}: {output}");
    }
    let run = format!("cd /tmp && PM_STRAYS={strays} file-strays --nocapture --test-threads=1 2>&1");
    let output = guest.check(&run)?;
    println!("{output}");
    for caught in
        [format!("pkey: {strays} strays caught while idle, "), format!("of {strays} strays changed a file")]
    {
        assert!(output.contains(&caught), "{caught}: {output}");
    }
    guest.shutdown()
}
