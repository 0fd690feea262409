//! Counts words in a store. Starts itself as a child, which counts and reports, kills the child, and opens the store: no reported count is lost.
//!
//! `cargo run -p pm-btree --example counts`

use pm_btree::{Store, StoreOptions};
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

const WORDS: [&str; 5] = ["ada", "grace", "barbara", "frances", "radia"];

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        return count(Path::new(&path));
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("counts.pm");
    drop(Store::create(&path, 16 << 20, &StoreOptions::new())?);
    let mut child = Command::new(std::env::current_exe()?).arg(&path).stdout(Stdio::piped()).spawn()?;
    let reports = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let mut reported = 0;
    for line in reports.take(1000) {
        reported = line?.parse()?;
    }
    child.kill()?;
    child.wait()?;

    let store = Store::open(&path, &StoreOptions::new())?;
    let counts = store.table::<&str, u64>("counts")?;
    let mut sum = 0;
    for entry in counts.range(..) {
        let (word, count) = entry?;
        println!("{:8} {}", word.value(), count.value());
        sum += count.value();
    }
    println!("killed after it reported {reported}; found {sum}");
    if sum < reported { Err("a reported count is lost".into()) } else { Ok(()) }
}

/// Counts one word after another, and prints the sum of all counts after each.
fn count(path: &Path) -> Result<(), Box<dyn Error>> {
    let store = Store::open(path, &StoreOptions::new())?;
    let counts = store.table::<&str, u64>("counts")?;
    for number in 0_u64.. {
        let word = WORDS[usize::try_from(number % 5)?];
        let count = counts.get(word)?.map_or(0, |count| count.value());
        counts.insert(word, count + 1)?; // durable when it returns
        println!("{}", number + 1);
        std::io::stdout().flush()?;
    }
    Ok(())
}
