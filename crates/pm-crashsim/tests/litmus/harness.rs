//! Collects the outcomes of a program.

pub(crate) use crate::common::*;
use core::ops::RangeInclusive;

pub(crate) const REGION_BYTES: u64 = 16384;
pub(crate) const X: u64 = 0;
/// On a line (and, for the page domain, a sector) of its own.
pub(crate) const Y: u64 = 4096;
pub(crate) const Z: u64 = 8192;
/// On the line of `X`.
pub(crate) const Y_SAME: u64 = 8;
pub(crate) const Z_OTHER: u64 = 4096;

/// The instructions of one thread in order.
pub(crate) type Program = fn(Cpu) -> Cpu;
pub(crate) type Words = &'static [u64];
pub(crate) const XY: Words = &[X, Y];
pub(crate) const XYZ: Words = &[X, Y, Z];
pub(crate) const XY_SAME: Words = &[X, Y_SAME];
pub(crate) const XY_SAME_Z: Words = &[X, Y_SAME, Z_OTHER];

/// Every outcome of `program`, of crashes anywhere.
pub(crate) fn outcomes(explorer: &Explorer, words: Words, program: impl Fn(Cpu) -> Cpu) -> String {
    joined(seen(explorer, |run: &Run<()>| drop(program(Cpu::of(run))), |crash| Some(digits(words, crash))))
}

/// Every outcome of crashes after `program` returned.
pub(crate) fn outcomes_at_ack(explorer: &Explorer, words: Words, program: impl Fn(Cpu) -> Cpu) -> String {
    let operation = |run: &Run<()>| {
        program(Cpu::of(run));
        run.ack(());
    };
    joined(seen(explorer, operation, |crash| acked_digits(words, crash)))
}

/// Everything that `look` sees after a crash anywhere in the operation.
pub(crate) fn seen<A: Sync, T: Ord + Send>(
    explorer: &Explorer,
    operation: impl Fn(&Run<A>),
    look: impl Fn(&Crash<'_, A>) -> Option<T> + Sync,
) -> BTreeSet<T> {
    let seen = Seen::new();
    let check = |crash: &Crash<'_, A>| look(crash).into_iter().for_each(|found| seen.add(found));
    let coverage = explorer.clone().crashes(1).check(&Image::zeroed(REGION_BYTES), operation, check);
    assert!(coverage.is_exhaustive(), "{coverage}");
    seen.take()
}

pub(crate) fn digits<A>(words: Words, crash: &Crash<'_, A>) -> String {
    words.iter().map(|&word| crash.pmem().load_u64(word).to_string()).collect()
}

/// The words after a crash that followed an acknowledgement.
pub(crate) fn acked_digits(words: Words, crash: &Crash<'_, ()>) -> Option<String> {
    (!crash.acked().is_empty()).then(|| digits(words, crash))
}

pub(crate) fn joined(outcomes: BTreeSet<String>) -> String {
    outcomes.into_iter().collect::<Vec<_>>().join(" ")
}

pub(crate) const LOSSY: [Model; 3] = [Model::Px86Line, Model::Px86Loc, Model::Chunk8];

/// Asserts what is allowed with caches lost (under each of these models), and with caches kept.
#[track_caller]
pub(crate) fn allows(name: &str, words: Words, lossy: &str, eadr: &str, program: Program) {
    for model in LOSSY {
        assert_eq!(outcomes(&Explorer::new(model), words, program), lossy, "{name}: {model}");
    }
    assert_eq!(outcomes(&Explorer::new(Model::Eadr), words, program), eadr, "{name}: eadr");
}

/// Instructions that a method of the region executes: the thread's method, and the region's.
macro_rules! instructions {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) => $method:ident($($value:expr),*);)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub(crate) fn $name(self, $($argument: $type),*) -> Self {
            self.0.$method($($value),*);
            self
        }
    )*};
}

/// A thread of a litmus test. Each instruction returns the thread for the next one. Each call of a flush or a fence is a site of its
/// own: a litmus test is about each one that stands in it.
#[derive(Clone)]
pub(crate) struct Cpu(Arc<SimPmem>);

impl Cpu {
    pub(crate) fn of<A>(run: &Run<A>) -> Self {
        Self(Arc::clone(run.pmem()))
    }

    pub(crate) fn load(&self, word: u64) -> u64 {
        self.0.load_u64(word)
    }

    /// Loads a word and asserts its value.
    pub(crate) fn loads(self, word: u64, expected: RangeInclusive<u64>) -> Self {
        assert!(expected.contains(&self.load(word)));
        self
    }

    /// Executes `program` if the word is 1.
    pub(crate) fn when(self, word: u64, program: Program) -> Self {
        if self.load(word) == 1 { program(self) } else { self }
    }

    /// Compares and exchanges, and asserts the result.
    pub(crate) fn exchange(self, word: u64, [old, new]: [u64; 2], result: Result<u64, u64>) -> Self {
        assert_eq!(self.0.compare_exchange_u64(word, old, new), result);
        self
    }

    #[track_caller]
    pub(crate) fn fence(self) -> Self {
        self.0.fence().expect("the simulated fence never fails");
        self
    }

    instructions! {
        store(word: u64, value: u64) => store_u64(word, value);
        store_bytes(offset: u64, bytes: &[u8]) => store(offset, bytes);
        /// Stores `X` and `Y_SAME` in one piece.
        store_pair(x: u64, y: u64) => store_u128(X, pair(x, y));
        nt(word: u64, value: u64) => store_nt(word, &value.to_le_bytes());
        nt_bytes(offset: u64, bytes: &[u8]) => store_nt(offset, bytes);
        clwb(word: u64) => flush(word, 8);
        clflush(word: u64) => clflush(word, 8);
        mfence() => mfence();
        kill() => kill();
    }
}

/// A pair of words: `x`, then `y`.
const fn pair(x: u64, y: u64) -> u128 {
    (y as u128) << 64 | x as u128
}

/// The bytes of two words that are 1.
pub(crate) const TWO_ONES: [u8; 16] = pair(1, 1).to_le_bytes();

pub(crate) const ALL: &str = "00 01 10 11";
pub(crate) const IN_ORDER: &str = "00 10 11";
