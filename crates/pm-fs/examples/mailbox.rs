//! Delivers messages to a directory. Starts itself as a child, which delivers and reports, kills the child, and opens the file system: each reported message is there, and none
//! is there in part.
//!
//! `cargo run -p pm-fs --example mailbox`

use pm_fs::{Fs, FsOptions, NewFile};
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        return deliver(Path::new(&path));
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("mail.pm");
    let fs = Fs::create(&path, 32 << 20, &FsOptions::new())?;
    fs.root().mkdir("mailbox", NewFile { mode: 0o700, ..NewFile::default() })?;
    fs.close()?;
    let mut child = Command::new(std::env::current_exe()?).arg(&path).stdout(Stdio::piped()).spawn()?;
    let reports = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let mut reported = 0;
    for line in reports.take(1000) {
        reported = line?.parse()?;
    }
    child.kill()?;
    child.wait()?;

    let fs = Fs::open(&path, &FsOptions::new())?;
    let mailbox = fs.lookup("mailbox")?;
    let found = mailbox.entries(0)?.len();
    for number in 1..=found {
        let message = mailbox.lookup(number.to_string())?;
        let mut text = vec![0; usize::try_from(message.attributes()?.size)?];
        message.read_at(0, &mut text)?;
        if text != text_of(number) {
            return Err(format!("message {number} is there in part").into());
        }
    }
    println!("killed after it reported {reported} messages; found {found}, all of them whole");
    if found < reported { Err("a reported message is lost".into()) } else { Ok(()) }
}

/// Delivers one message after another, and reports each.
fn deliver(path: &Path) -> Result<(), Box<dyn Error>> {
    let fs = Fs::open(path, &FsOptions::new())?;
    let mailbox = fs.lookup("mailbox")?;
    for number in 1.. {
        // Not seen, and gone after a crash, until it has a name.
        let message = mailbox.create_unnamed(NewFile { mode: 0o600, ..NewFile::default() })?;
        for line in text_of(number).split_inclusive(|byte| *byte == b'\n') {
            message.append(line)?;
        }
        mailbox.link(&message, number.to_string())?; // durable when it returns
        println!("{number}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn text_of(number: usize) -> Vec<u8> {
    format!("Subject: {number}\n\nThe message with the number {number}.\n").into_bytes()
}
