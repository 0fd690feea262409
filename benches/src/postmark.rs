//! The operations of Postmark, which models a mail server: a pool of small files, and transactions that each read or append to one, and create or
//! delete one.
//!
//! # Source
//! Katcher, "PostMark: A New File System Benchmark", Network Appliance TR-3022, 1997; the biases and the order of choices are those of version 1.51.

use fastrand::Rng;

/// The files of the pool at the start, as in the paper.
pub const FILES: usize = 10_000;
/// The length of a new file is at least this, and below [`MOST_BYTES`].
pub const LEAST_BYTES: u32 = 1 << 10;
/// Files are not appended to beyond this length. The paper has 64 MB, of which 10,000 files are not its 0.5 GB.
pub const MOST_BYTES: u32 = 64 << 10;

/// What is done to a file. Files have numbers, in the order of their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes a file of this length.
    Create {
        /// The file.
        file: u64,
        /// Its length.
        bytes: u32,
    },
    /// Removes a file.
    Delete {
        /// The file.
        file: u64,
    },
    /// Reads a whole file.
    Read {
        /// The file.
        file: u64,
        /// Its length.
        bytes: u32,
    },
    /// Writes at the end of a file.
    Append {
        /// The file.
        file: u64,
        /// Its length before.
        from: u32,
        /// The length of what is written.
        bytes: u32,
    },
}

/// How many operations there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files made.
    pub created: u64,
    /// Files removed.
    pub deleted: u64,
    /// Files read.
    pub read: u64,
    /// Files appended to.
    pub appended: u64,
    /// Of the files read.
    pub bytes_read: u64,
    /// Of the files made and appended to.
    pub bytes_written: u64,
}

/// A file of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    number: u64,
    bytes: u32,
}

/// The state of the pool.
#[derive(Clone, Debug)]
pub struct Pool {
    random: Rng,
    /// Twice as many places as files at the start. A transaction that would create one more does not.
    places: Vec<Option<File>>,
    /// Where the search for a free place begins.
    next: usize,
    counts: Counts,
}

impl Pool {
    /// An empty one. The seed determines all operations.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let places = vec![None; 2 * FILES];
        Self { random: Rng::with_seed(seed), places, next: 0, counts: Counts::default() }
    }

    /// Makes one more file, unless twice as many as at the start are there.
    pub fn create(&mut self) -> Option<Operation> {
        let is_free = |place: &usize| self.places.get(*place).is_some_and(Option::is_none);
        let free = Some(self.next).filter(is_free).or_else(|| (0..self.places.len()).find(is_free))?;
        self.next = free + 1;
        let bytes = self.random.u32(LEAST_BYTES..MOST_BYTES);
        self.counts.created += 1;
        self.counts.bytes_written += u64::from(bytes);
        let file = self.counts.created;
        self.places[free] = Some(File { number: file, bytes });
        Some(Operation::Create { file, bytes })
    }

    /// The operations of one transaction. None are left of a pool without files.
    pub fn transaction(&mut self) -> [Option<Operation>; 2] {
        if self.counts.created == self.counts.deleted {
            return [None; 2];
        }
        let of_file = if self.random.bool() { Some(self.read()) } else { self.append() };
        let of_pool = if self.random.bool() { self.create() } else { Some(self.delete()) };
        [of_file, of_pool]
    }

    /// The numbers and lengths of all files.
    pub fn files(&self) -> impl Iterator<Item = (u64, u32)> {
        self.places.iter().flatten().map(|file| (file.number, file.bytes))
    }

    /// The operations so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    fn read(&mut self) -> Operation {
        let (_, File { number: file, bytes }) = self.any();
        self.counts.read += 1;
        self.counts.bytes_read += u64::from(bytes);
        Operation::Read { file, bytes }
    }

    /// None if the file is full.
    fn append(&mut self) -> Option<Operation> {
        let (place, File { number: file, bytes: from }) = self.any();
        if from >= MOST_BYTES {
            return None;
        }
        let bytes = self.random.u32(1..=MOST_BYTES - from);
        self.places[place] = Some(File { number: file, bytes: from + bytes });
        self.counts.appended += 1;
        self.counts.bytes_written += u64::from(bytes);
        Some(Operation::Append { file, from, bytes })
    }

    fn delete(&mut self) -> Operation {
        let (place, File { number: file, .. }) = self.any();
        self.places[place] = None;
        self.counts.deleted += 1;
        Operation::Delete { file }
    }

    /// A random file, and its place. There must be one.
    fn any(&mut self) -> (usize, File) {
        loop {
            let place = self.random.usize(..self.places.len());
            if let Some(file) = self.places[place] {
                return (place, file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64, transactions: usize) -> Pool {
        let mut pool = Pool::new(seed);
        for _ in 0..FILES {
            pool.create().unwrap();
        }
        for _ in 0..transactions {
            pool.transaction();
        }
        pool
    }

    /// Postmark 1.51 of Debian, 10,000 files of 1,024 to 65,536 bytes, 100,000 transactions, seed 42. It removes all files at the end, which are not
    /// among those deleted here.
    #[test]
    fn counts_are_those_of_postmark() {
        const MIB: f64 = 1024.0 * 1024.0;
        let counts = run(1, 100_000).counts();
        for (name, ours, theirs) in [
            ("created", counts.created as f64, 60_160.0),
            ("deleted", counts.deleted as f64, 49_840.0),
            ("read", counts.read as f64, 49_989.0),
            ("appended", counts.appended as f64, 49_920.0),
            ("bytes read", counts.bytes_read as f64, 2031.02 * MIB),
            ("bytes written", counts.bytes_written as f64, 2456.88 * MIB),
        ] {
            assert!((ours / theirs - 1.0).abs() < 0.02, "{name}: {ours}, {theirs} of Postmark");
        }
    }

    #[test]
    fn files_are_those_that_the_operations_leave() {
        let mut pool = Pool::new(3);
        let mut files = std::collections::HashMap::new();
        let apply = |files: &mut std::collections::HashMap<u64, u32>, operation| match operation {
            Operation::Create { file, bytes } => assert_eq!(files.insert(file, bytes), None),
            Operation::Delete { file } => assert!(files.remove(&file).is_some()),
            Operation::Read { file, bytes } => assert_eq!(files[&file], bytes),
            Operation::Append { file, from, bytes } => {
                assert_eq!(files.insert(file, from + bytes), Some(from));
                assert!(from + bytes <= MOST_BYTES);
            }
        };
        for _ in 0..FILES {
            apply(&mut files, pool.create().unwrap());
        }
        for _ in 0..50_000 {
            pool.transaction().into_iter().flatten().for_each(|operation| apply(&mut files, operation));
        }
        assert_eq!(pool.files().collect::<std::collections::HashMap<_, _>>(), files);
    }

    #[test]
    fn pool_is_neither_larger_than_its_places_nor_smaller_than_empty() {
        let mut pool = Pool::new(5);
        assert_eq!(pool.transaction(), [None; 2]);
        while pool.create().is_some() {}
        assert_eq!(pool.files().count(), 2 * FILES);
        while pool.files().count() > 0 {
            pool.delete();
        }
        assert_eq!(pool.transaction(), [None; 2]);
        assert!(pool.create().is_some());
    }
}
