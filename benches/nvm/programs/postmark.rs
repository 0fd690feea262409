//! Postmark: transactions on a pool of small files, with direct I/O in blocks of 4 KiB.

use super::rates::Workload;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, ensure};
use pm_bench::Conversation;
use pm_bench::nvm::figures;
use pm_bench::postmark::{FILES, Operation, Pool};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const SEED: u64 = 42;
/// The least that direct I/O reads and writes on zram.
const BLOCK_BYTES: usize = 4096;
/// The part of a block that says which it is.
const HEAD_BYTES: usize = 16;

/// The program.
pub(crate) struct Postmark;

impl Workload for Postmark {
    fn title(&self) -> String {
        "Postmark".into()
    }

    fn cell(&self, technology: &str) -> String {
        figures::files("postmark", technology)
    }

    fn start(&self, at: &Path) -> Result<Conversation> {
        let executable = std::env::current_exe().into_diagnostic()?;
        Conversation::start(Command::new(executable).args(["--serve", "postmark"]).arg(at))
    }
}

/// What direct I/O reads and writes.
#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// A directory with files. The last block of each is written whole.
struct Files {
    directory: PathBuf,
    /// Its contents are random, so that no device compresses them, but for its head.
    block: Box<Block>,
}

/// Is that program: makes the pool; then for each line `MILLISECONDS` of its input a line `SECONDS TRANSACTIONS`; at the end of the input compares all files
/// with its own list.
pub(crate) fn serve(directory: &Path) -> Result<ExitCode> {
    let mut files = Files { directory: directory.to_owned(), block: Box::new(Block([0; BLOCK_BYTES])) };
    let mut pool = Pool::new(SEED);
    for _ in 0..FILES {
        pool.create().map_or(Ok(()), |operation| files.apply(operation))?;
    }
    files.sync()?;
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.into_diagnostic()?;
        let time = Duration::from_millis(line.parse().into_diagnostic().wrap_err(line)?);
        let begin = Instant::now();
        let mut count = 0;
        while count == 0 || begin.elapsed() < time {
            pool.transaction().into_iter().flatten().try_for_each(|operation| files.apply(operation))?;
            count += 1;
        }
        files.sync()?;
        println!("{} {count}", begin.elapsed().as_secs_f64());
    }
    files.compare(&pool)?;
    println!("exact");
    Ok(ExitCode::SUCCESS)
}

impl Files {
    fn apply(&mut self, operation: Operation) -> Result<()> {
        let (Operation::Create { file, .. }
        | Operation::Delete { file }
        | Operation::Read { file, .. }
        | Operation::Append { file, .. }) = operation;
        let path = self.directory.join(file.to_string());
        self.apply_to(&path, operation).wrap_err_with(|| format!("{operation:?} of {}", path.display()))
    }

    fn apply_to(&mut self, path: &Path, operation: Operation) -> Result<()> {
        match operation {
            Operation::Create { file, bytes } => {
                let opened = direct(OpenOptions::new().write(true).create_new(true), path)?;
                self.write(&opened, file, 0..blocks(bytes))
            }
            Operation::Delete { .. } => fs::remove_file(path).into_diagnostic(),
            Operation::Read { file, bytes } => {
                let opened = direct(OpenOptions::new().read(true), path)?;
                (0..blocks(bytes)).try_for_each(|number| self.read(&opened, file, number))
            }
            Operation::Append { file, from, bytes } => {
                let opened = direct(OpenOptions::new().read(true).write(true), path)?;
                let begin = u64::from(from) / BLOCK_BYTES as u64;
                if begin < blocks(from) {
                    // What is appended shares this block with what is there.
                    self.read(&opened, file, begin)?;
                }
                self.write(&opened, file, begin..blocks(from + bytes))
            }
        }
    }

    /// Writes blocks of a file, one after the other.
    fn write(&mut self, opened: &File, file: u64, numbers: std::ops::Range<u64>) -> Result<()> {
        for number in numbers {
            let block = &mut self.block.0;
            fastrand::Rng::with_seed(file << 8 | number).fill(&mut block[HEAD_BYTES..]);
            block[..HEAD_BYTES].copy_from_slice(&head(file, number));
            opened.write_all_at(block, number * BLOCK_BYTES as u64).into_diagnostic()?;
        }
        Ok(())
    }

    /// Reads a block, which must be the one that was written.
    fn read(&mut self, opened: &File, file: u64, number: u64) -> Result<()> {
        let block = &mut self.block.0;
        opened.read_exact_at(block, number * BLOCK_BYTES as u64).into_diagnostic()?;
        ensure!(block[..HEAD_BYTES] == head(file, number), "block {number} of file {file} is another one");
        Ok(())
    }

    /// Makes what was done durable.
    fn sync(&self) -> Result<()> {
        let directory = File::open(&self.directory).into_diagnostic()?;
        rustix::fs::syncfs(&directory).into_diagnostic()
    }

    /// Compares the files that are there with those of the pool.
    fn compare(&self, pool: &Pool) -> Result<()> {
        let mut found = HashMap::new();
        for entry in fs::read_dir(&self.directory).into_diagnostic()? {
            let entry = entry.into_diagnostic()?;
            let length = entry.metadata().into_diagnostic()?.len();
            found.insert(entry.file_name().to_string_lossy().into_owned(), length);
        }
        let length = |bytes| blocks(bytes) * BLOCK_BYTES as u64;
        let expected: HashMap<_, _> =
            pool.files().map(|(file, bytes)| (file.to_string(), length(bytes))).collect();
        ensure!(found == expected, "{} files are not the {} of the pool", found.len(), expected.len());
        Ok(())
    }
}

/// Opens a file for direct I/O.
fn direct(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).into_diagnostic()?;
    options.custom_flags(flags).open(path).into_diagnostic()
}

/// The number of blocks of this length.
fn blocks(bytes: u32) -> u64 {
    u64::from(bytes).div_ceil(BLOCK_BYTES as u64)
}

/// The head of a block.
fn head(file: u64, number: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&file.to_le_bytes());
    head[8..].copy_from_slice(&number.to_le_bytes());
    head
}
