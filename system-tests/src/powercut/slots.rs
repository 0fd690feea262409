//! Slots: the blocks of a device, or the files of a directory.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::block::{BLOCK_BYTES, Block, BlockState, Sequence};

/// `O_DIRECT | O_DSYNC` on x86-64, the guest's architecture. The kernel sends FUA to a device that reports a write-back cache, and nothing more to any other.
const DIRECT: i32 = 0o50000;

/// The maximum size of a file, in blocks.
const FILE_BLOCKS_MAX: u64 = 16;

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Nothing: never written.
    Nothing,
    /// This write, completely.
    Write(Sequence),
    /// Parts of one or several writes.
    Torn,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Write(sequence) => write!(f, "{sequence}"),
            Self::Torn => f.write_str("torn"),
        }
    }
}

impl FromStr for Held {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "nothing" => Ok(Self::Nothing),
            "torn" => Ok(Self::Torn),
            number => number.parse().map(Self::Write),
        }
    }
}

/// Slots whose writes are acknowledged when they are durable.
pub trait Slots: Send + Sync {
    /// The number of slots.
    fn count(&self) -> u64;

    /// Overwrites a slot.
    ///
    /// # Durability
    /// The write survives a power cut after this has returned.
    fn write(&self, slot: u64, sequence: Sequence) -> io::Result<()>;

    /// Reads a slot.
    fn read(&self, slot: u64) -> io::Result<Held>;
}

/// The 4 KiB blocks of a block device without a volatile cache, written by direct I/O.
#[derive(Debug)]
pub struct DeviceSlots {
    device: File,
    count: u64,
}

impl DeviceSlots {
    /// The blocks of `device`.
    pub fn open(device: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(DIRECT).open(device)?;
        let count = io::Seek::seek(&mut file, io::SeekFrom::End(0))? / BLOCK_BYTES as u64;
        Ok(Self { device: file, count })
    }
}

impl Slots for DeviceSlots {
    fn count(&self) -> u64 {
        self.count
    }

    fn write(&self, slot: u64, sequence: Sequence) -> io::Result<()> {
        self.device.write_all_at(&Block::of_write(slot, sequence).0, slot * BLOCK_BYTES as u64)
    }

    fn read(&self, slot: u64) -> io::Result<Held> {
        let mut block = Block::blank();
        self.device.read_exact_at(&mut block.0, slot * BLOCK_BYTES as u64)?;
        Ok(match block.state() {
            BlockState::Blank => Held::Nothing,
            BlockState::Whole { place, sequence } if place == slot => Held::Write(sequence),
            // Cannot be the result of a torn write.
            BlockState::Whole { place, sequence } => {
                let what = format!("block {slot} holds write {sequence} of block {place}");
                return Err(io::Error::other(what));
            }
            BlockState::Torn => Held::Torn,
        })
    }
}

/// The files of a directory, each replaced atomically: a new file is written, synced, and renamed over it.
#[derive(Debug)]
pub struct FileSlots {
    directory: PathBuf,
    count: u64,
}

impl FileSlots {
    /// `count` files in `directory`.
    #[must_use]
    pub fn new(directory: &Path, count: u64) -> Self {
        Self { directory: directory.to_owned(), count }
    }

    fn path(&self, slot: u64) -> PathBuf {
        self.directory.join(slot.to_string())
    }
}

impl Slots for FileSlots {
    fn count(&self) -> u64 {
        self.count
    }

    fn write(&self, slot: u64, sequence: Sequence) -> io::Result<()> {
        let path = self.path(slot);
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        for index in 0..file_blocks(sequence) {
            file.write_all(&Block::of_write(place(slot, index), sequence).0)?;
        }
        file.sync_all()?;
        fs::rename(new, path)?;
        File::open(&self.directory)?.sync_all()
    }

    fn read(&self, slot: u64) -> io::Result<Held> {
        let mut bytes = Vec::new();
        match File::open(self.path(slot)) {
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Held::Nothing),
            Err(error) => return Err(error),
        };
        Ok(file_content(slot, &bytes).map_or(Held::Torn, Held::Write))
    }
}

/// The number of blocks of a file after write `sequence`.
const fn file_blocks(sequence: Sequence) -> u64 {
    1 + sequence % FILE_BLOCKS_MAX
}

const fn place(slot: u64, index: u64) -> u64 {
    slot * FILE_BLOCKS_MAX + index
}

/// The write of a complete file.
fn file_content(slot: u64, bytes: &[u8]) -> Option<Sequence> {
    let state = |chunk: &[u8]| chunk.try_into().ok().map(|bytes| Block(bytes).state());
    let Some(BlockState::Whole { sequence, .. }) = bytes.chunks(BLOCK_BYTES).next().and_then(state) else {
        return None;
    };
    let expected =
        (0..file_blocks(sequence)).map(|index| BlockState::Whole { place: place(slot, index), sequence });
    bytes.chunks(BLOCK_BYTES).map(state).eq(expected.map(Some)).then_some(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_holds_its_last_write() {
        let directory = tempfile::tempdir().expect("a directory");
        let slots = FileSlots::new(directory.path(), 4);
        assert_eq!(slots.read(2).expect("readable"), Held::Nothing);
        for sequence in [31, 32, 1 << 40] {
            slots.write(2, sequence).expect("written");
            assert_eq!(slots.read(2).expect("readable"), Held::Write(sequence));
        }
        fs::rename(directory.path().join("2"), directory.path().join("3")).expect("renamed");
        assert_eq!(slots.read(3).expect("readable"), Held::Torn, "another slot's file");
    }

    #[test]
    fn truncated_or_mixed_file_is_torn() {
        let directory = tempfile::tempdir().expect("a directory");
        let slots = FileSlots::new(directory.path(), 1);
        slots.write(0, 15).expect("written");
        let path = directory.path().join("0");
        let whole = fs::read(&path).expect("readable");
        assert_eq!(whole.len(), 16 * BLOCK_BYTES);
        for length in [0, 1, BLOCK_BYTES, whole.len() - 1] {
            fs::write(&path, &whole[..length]).expect("written");
            assert_eq!(slots.read(0).expect("readable"), Held::Torn, "{length} bytes");
        }
        let mut mixed = whole;
        mixed[15 * BLOCK_BYTES..].copy_from_slice(&Block::of_write(15, 31).0);
        fs::write(&path, &mixed).expect("written");
        assert_eq!(slots.read(0).expect("readable"), Held::Torn);
    }

    #[test]
    fn held_states_round_trip() {
        for held in [Held::Nothing, Held::Torn, Held::Write(12)] {
            assert_eq!(held.to_string().parse(), Ok(held));
        }
        assert!("misplaced".parse::<Held>().is_err());
    }
}
