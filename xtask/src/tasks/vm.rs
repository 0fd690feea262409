//! `cargo xtask vm`: boots a real kernel with persistent memory, and runs a command or a shell in it.

use std::io::{IsTerminal, stderr, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use miette::{Result, bail, miette};
use xtask::vm::{Put, Share, TimedOut, Vm};

/// The exit code after a timeout, as of timeout(1).
const TIMED_OUT: u8 = 124;

/// Arguments of `cargo xtask vm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell command [default: an interactive shell]. Its exit code is that of this task.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Mount ext4 on the persistent memory with -o dax at /mnt/pmem; it is created if the memory is empty.
    #[arg(long)]
    dax: bool,
    /// Clear the persistent memory first.
    #[arg(long)]
    fresh: bool,
    /// The size of the persistent memory, a multiple of 128M.
    #[arg(long, default_value = "512M", value_parser = size)]
    size: u64,
    /// The file with the persistent memory [default: one in the cache].
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Copy a file or directory into the guest, programs with their shared objects [default: to /root, which is on PATH].
    #[arg(long, value_name = "HOST[:GUEST]", value_parser = put)]
    put: Vec<Put>,
    /// Mount a directory of the host in the guest, read-only unless :rw follows.
    #[arg(long, value_name = "HOSTDIR:GUESTDIR[:rw]", value_parser = share)]
    share: Vec<Share>,
    /// Load a kernel module first; parameters follow its name: 'brd rd_size=262144'.
    #[arg(long, value_name = "MODULE")]
    module: Vec<String>,
    /// The time limit of the command. After a timeout the exit code is 124.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// The number of processors.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// The size of the volatile memory.
    #[arg(long, default_value = "3G", value_parser = size)]
    memory: u64,
    /// Check for a newer kernel than the cached one.
    #[arg(long)]
    update_kernel: bool,
    /// Print the duration of the boot.
    #[arg(long, short)]
    verbose: bool,
}

/// Boots, runs the command or the shell, and powers off. Returns the command's exit code.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let interactive = args.command.is_empty();
    if interactive && !(stdin().is_terminal() && stdout().is_terminal()) {
        bail!(
            help = "cargo xtask vm -- 'uname -r'",
            "a shell in the guest needs a terminal; pass a command instead"
        );
    }
    let command = args.command.join(" ");
    let verbose = args.verbose;
    let mut vm = builder(args).on_terminal(interactive).start()?;
    if verbose {
        eprintln!(
            "booted in {:.1} s, set up in {:.1} s",
            vm.boot_time.as_secs_f64(),
            vm.setup_time.as_secs_f64()
        );
    }
    let ended = if interactive { vm.shell() } else { vm.run_into(&command, &mut stdout(), &mut stderr()) };
    match ended {
        Ok(code) => {
            vm.shutdown()?;
            Ok(ExitCode::from(code))
        }
        Err(report) if report.downcast_ref::<TimedOut>().is_some() => {
            eprintln!("{report:?}");
            Ok(ExitCode::from(TIMED_OUT))
        }
        Err(report) => Err(report),
    }
}

fn builder(args: Args) -> xtask::vm::Builder {
    let mut builder = Vm::builder()
        .dax(args.dax)
        .fresh(args.fresh)
        .size_bytes(args.size)
        .cpu_count(args.cpus)
        .memory_mib(args.memory / xtask::vm::MIB)
        .update_kernel(args.update_kernel);
    if let Some(image) = args.image {
        builder = builder.image(image);
    }
    if let Some(seconds) = args.timeout {
        builder = builder.timeout(Duration::from_secs(seconds));
    }
    builder = args.share.into_iter().fold(builder.puts(args.put), xtask::vm::Builder::share);
    args.module.into_iter().fold(builder, xtask::vm::Builder::module)
}

/// Bytes from a number with an optional suffix, whose unit is a power of 1,024.
fn size(text: &str) -> Result<u64, parse_size::Error> {
    parse_size::Config::new().with_binary().parse_size(text)
}

fn put(text: &str) -> Result<Put> {
    if let Some((host, guest)) = text.split_once(':') {
        return Ok(Put { host: host.into(), guest: absolute(guest)? });
    }
    let host = PathBuf::from(text);
    let name = host.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| miette!("{text:?} has no file name: write HOST:GUEST"))?;
    Ok(Put { guest: format!("/root/{name}"), host })
}

fn share(text: &str) -> Result<Share> {
    let (text, writable) = text.strip_suffix(":rw").map_or((text, false), |text| (text, true));
    let (host, guest) = text.split_once(':').ok_or_else(|| miette!("write HOSTDIR:GUESTDIR"))?;
    Ok(Share { host: host.into(), guest: absolute(guest)?, writable })
}

fn absolute(guest: &str) -> Result<String> {
    if guest.starts_with('/') {
        Ok(guest.to_owned())
    } else {
        Err(miette!("{guest:?} is not an absolute path"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_defaults_to_root() {
        assert_eq!(put("a/pmbd").expect("valid"), Put { host: "a/pmbd".into(), guest: "/root/pmbd".into() });
        assert_eq!(put("a:/usr/bin/b").expect("valid"), Put { host: "a".into(), guest: "/usr/bin/b".into() });
        assert!(put("a:b").is_err());
        assert!(put("/").is_err());
    }

    #[test]
    fn share_defaults_to_read_only() {
        let expected = |writable| Share { host: "/a".into(), guest: "/b".into(), writable };
        assert_eq!(share("/a:/b").expect("valid"), expected(false));
        assert_eq!(share("/a:/b:rw").expect("valid"), expected(true));
        assert!(share("/a").is_err());
        assert!(share("/a:b").is_err());
    }
}
