//! Crashes of every call at small scale: each is whole or undone, and everything in use belongs to an object.

use pm_alloc::HeapOptions;
use pm_btree::StoreOptions;
use pm_core::{PoolOptions, Uuid};
use pm_crashsim::{Crash, Explorer, Model, Oracle, Run, Sequences, SimPmem, Subject};
use pm_objects::{CheckReport, Contents, ObjectError, Objects, ObjectsOptions, OpenError, Problem, Tier};
use pm_testkit::{AnyPmem, Half, any, seeds};
use std::collections::BTreeMap;
use std::sync::Arc;

const REGION_BYTES: u64 = 256 << 10;

/// The length of a pool that a few chunks fill.
const FULL_BYTES: u64 = 96 << 10;

/// A call on an object with bytes as elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Creates an object of so many bytes of this value.
    Create(&'static str, usize, u8),
    /// As before, from a source that is read.
    CreateFrom(&'static str, usize, u8),
    /// Creates an object from a source that ends too early.
    CreateShort(&'static str, usize),
    Replace(&'static str, usize, u8),
    Delete(&'static str),
    Rename(&'static str, &'static str),
    /// Stores so many bytes of this value.
    Write(&'static str, usize, usize, u8),
    /// Adds so many bytes of this value.
    Append(&'static str, usize, u8),
    Resize(&'static str, usize),
    /// Stores so many bytes of this value to `a`, and five of it to `b`, in one transaction.
    Both(usize, usize, u8),
    Pin(&'static str, Tier),
    /// Loads all of it, so often that it moves up.
    Load(&'static str),
    /// Closes the pool, and opens it again.
    Reopen,
}
use Op::{
    Append, Both, Create, CreateFrom, CreateShort, Delete, Load, Pin, Rename, Reopen, Replace, Resize, Write,
};

/// A pool with an object `a` of so many bytes, and an object `b` of 10.
#[derive(Clone, Copy, Debug)]
struct Small {
    len: usize,
    /// The length of the pool. The rest of the region is the file with the lower tier, if there is a rest.
    pool_bytes: u64,
}

impl Small {
    const fn new(len: usize) -> Self {
        Self { len, pool_bytes: REGION_BYTES }
    }

    /// The pool and the file.
    fn media(self, pmem: &Arc<SimPmem>) -> (AnyPmem<'static>, Option<AnyPmem<'static>>) {
        match self.pool_bytes {
            REGION_BYTES => (any(Arc::clone(pmem)), None),
            pool => (any(Half::new(pmem, 0..pool)), Some(any(Half::new(pmem, FULL_BYTES..REGION_BYTES)))),
        }
    }
}

type SimObjects = Objects<AnyPmem<'static>>;

/// An open pool. `None` if it could not be opened again.
struct Pool {
    pmem: Arc<SimPmem>,
    objects: Option<SimObjects>,
}

impl Pool {
    fn objects(&self) -> &SimObjects {
        self.objects.as_ref().expect("it is open")
    }
}

/// The contents by name.
type State = BTreeMap<String, Vec<u8>>;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("{0:?}")]
    Unsound(Vec<Problem>),
}

/// Chunks of 64 bytes, in slabs of a few slots.
pub(crate) fn options() -> ObjectsOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let heap = HeapOptions::new().seed(7).pool(pool).lanes(1).lane_entries(254);
    let names = StoreOptions::new().node_slots(4).extent_bytes(4096);
    ObjectsOptions::new().heap(heap).names(names).chunk_bytes(64).slab_bytes(512).seed(7).dram_bytes(4096)
}

fn apply(objects: &SimObjects, op: &Op) -> Result<(), ObjectError> {
    match *op {
        Create(name, len, byte) => objects.create(name, Contents::Slice(&vec![byte; len])).map(drop),
        CreateFrom(name, len, byte) => {
            objects.create::<u8>(name, Contents::Read(len as u64, &mut &vec![byte; len][..])).map(drop)
        }
        CreateShort(name, len) => {
            let created = objects.create::<u8>(name, Contents::Read(len as u64, &mut &vec![1; len - 1][..]));
            match created {
                Err(ObjectError::Input(_)) => Ok(()),
                Err(error) => Err(error),
                Ok(_) => panic!("there was a byte too few"),
            }
        }
        Replace(name, len, byte) => objects.replace(name, Contents::Slice(&vec![byte; len])).map(drop),
        Delete(name) => objects.delete(name),
        Rename(from, to) => objects.rename(from, to),
        Write(name, start, len, byte) => objects.open::<u8>(name)?.write(start as u64, &vec![byte; len]),
        Append(name, len, byte) => objects.open::<u8>(name)?.append(&vec![byte; len]),
        Resize(name, len) => objects.open::<u8>(name)?.resize(len as u64),
        Both(start, len, byte) => {
            let (a, b) = (objects.open::<u8>("a")?, objects.open::<u8>("b")?);
            objects.transaction(&[&a, &b], |tx| {
                tx.write(&a, start as u64, &vec![byte; len])?;
                tx.write(&b, 0, &[byte.wrapping_add(1); 7])?;
                tx.write(&b, 0, &[byte; 5])
            })
        }
        Pin(name, tier) => objects.open::<u8>(name)?.pin(tier),
        Load(name) => {
            let object = objects.open::<u8>(name)?;
            let mut bytes = vec![0; usize::try_from(object.len()).unwrap()];
            (0..20).try_for_each(|_| object.read(0, &mut bytes))
        }
        Reopen => unreachable!("needs the region"),
    }
}

/// Whether a call changes nothing because of the state that it finds: a sequence is continued after a crash, too.
const fn is_refusal(error: &ObjectError) -> bool {
    matches!(error, ObjectError::NotFound | ObjectError::Exists | ObjectError::Range { .. })
}

impl Subject for Small {
    type Op = Op;
    type State = State;
    type Store = Pool;
    type Error = Failure;

    fn create(&self, pmem: Arc<SimPmem>) -> Result<Pool, Failure> {
        let objects = match self.media(&pmem) {
            (pool, None) => Objects::format(pool, &options())?,
            (pool, Some(file)) => Objects::format_with_file(pool, file, &options())?,
        };
        for op in [Create("a", self.len, 1), Create("b", 10, 2)] {
            apply(&objects, &op)?;
        }
        Ok(Pool { pmem, objects: Some(objects) })
    }

    fn open(&self, pmem: Arc<SimPmem>) -> Result<Pool, Failure> {
        let objects = match self.media(&pmem) {
            (pool, None) => Objects::attach(pool, &options())?,
            (pool, Some(file)) => Objects::attach_with_file(pool, file, &options())?,
        };
        Ok(Pool { pmem, objects: Some(objects) })
    }

    fn apply(&self, pool: &mut Pool, op: &Op) -> Result<(), Failure> {
        if *op == Reopen {
            pool.objects.take().expect("it is open").close()?;
            pool.objects = self.open(Arc::clone(&pool.pmem))?.objects;
            return Ok(());
        }
        match apply(pool.objects(), op) {
            Err(error) if !is_refusal(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn observe(&self, pool: &Pool) -> Result<State, Failure> {
        let objects = pool.objects();
        let mut state = State::new();
        for name in objects.list("") {
            let name = name?;
            let object = objects.open::<u8>(&name)?;
            let mut bytes = vec![0; usize::try_from(object.len()).unwrap()];
            object.read(0, &mut bytes)?;
            state.insert(name, bytes);
        }
        let CheckReport { problems, .. } = objects.check()?;
        if problems.is_empty() { Ok(state) } else { Err(Failure::Unsound(problems)) }
    }
}

impl Oracle for Small {
    fn initial(&self) -> State {
        [("a".to_owned(), vec![1; self.len]), ("b".to_owned(), vec![2; 10])].into()
    }

    fn expect(&self, state: &mut State, op: &Op) {
        match *op {
            Create(name, len, byte) | CreateFrom(name, len, byte) => {
                state.entry(name.to_owned()).or_insert_with(|| vec![byte; len]);
            }
            Replace(name, len, byte) => {
                state.insert(name.to_owned(), vec![byte; len]);
            }
            Delete(name) => {
                state.remove(name);
            }
            Rename(from, to) => {
                if !state.contains_key(to)
                    && let Some(bytes) = state.remove(from)
                {
                    state.insert(to.to_owned(), bytes);
                }
            }
            Write(name, start, len, byte) => {
                if let Some(bytes) = state.get_mut(name).and_then(|bytes| bytes.get_mut(start..start + len)) {
                    bytes.fill(byte);
                }
            }
            Append(name, len, byte) => {
                if let Some(bytes) = state.get_mut(name) {
                    bytes.extend(vec![byte; len]);
                }
            }
            Resize(name, len) => {
                if let Some(bytes) = state.get_mut(name) {
                    bytes.resize(len, 0);
                }
            }
            Both(start, len, byte) => {
                if state.get("b").is_some_and(|b| b.len() >= 7)
                    && let Some(bytes) = state.get_mut("a").and_then(|a| a.get_mut(start..start + len))
                {
                    bytes.fill(byte);
                    let b = state.get_mut("b").expect("it exists");
                    b[5..7].fill(byte.wrapping_add(1));
                    b[..5].fill(byte);
                }
            }
            CreateShort(..) | Pin(..) | Load(_) | Reopen => {}
        }
    }
}

fn choices() -> u64 {
    std::env::var("PM_CRASH_CHOICES").map_or(8, |count| count.parse().expect("a number"))
}

fn explore(explorer: Explorer, len: usize, ops: &[Op]) {
    explore_in(Small::new(len), explorer, ops);
}

fn explore_in(subject: Small, explorer: Explorer, ops: &[Op]) {
    Sequences::new(subject, REGION_BYTES).unwrap().explorer(explorer).crash_onward(0).check(ops);
}

/// An object of one chunk, of several in one table, and of more than one transaction creates.
const LENGTHS: [usize; 3] = [50, 64 * 5 + 7, 64 * 40];

const CALLS: [Op; 11] = [
    Create("new", 0, 7),
    Create("new", 50, 7),
    Create("new", 64 * 3, 7),
    CreateShort("new", 50),
    Replace("a", 70, 7),
    Delete("a"),
    Delete("b"),
    Rename("a", "new"),
    Write("a", 3, 9, 7),
    Write("a", 3, 40, 7),
    Write("a", 60, 70, 7),
];

/// Calls that change the lengths of objects, or several objects, or their places.
const LATER_CALLS: [Op; 10] = [
    Append("a", 9, 7),
    Append("a", 64 * 3, 7),
    Append("b", 40, 7),
    Resize("a", 3),
    Resize("a", 64 * 7 + 3),
    Resize("b", 0),
    Resize("b", 64 * 300),
    Both(3, 9, 7),
    Both(0, 50, 7),
    Pin("a", Tier::Dram),
];

#[test]
fn later_calls_are_atomic() {
    for model in &[Model::Px86Line, Model::Page, Model::Eadr][..if crate::is_deep() { 3 } else { 2 }] {
        for len in &LENGTHS[..2] {
            for op in LATER_CALLS {
                let explorer =
                    Explorer::new(*model).crashes(1).choices_per_point(choices()).nested_choices_per_point(1);
                explore(explorer, *len, &[op]);
            }
        }
    }
}

#[test]
fn later_calls_of_killed_processes_are_atomic() {
    for op in LATER_CALLS {
        let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(1);
        explore(explorer, LENGTHS[1], &[op]);
    }
}

/// Objects that grow and shrink use each other's slots, and tables of each kind.
#[test]
fn lengths_after_others_are_atomic() {
    let sequences: [&[Op]; 6] = [
        &[Resize("a", 10), Append("a", 100, 7), Append("b", 20, 8)],
        &[Append("b", 60, 7), Append("b", 64 * 4, 8), Resize("b", 64 * 2), Write("b", 0, 128, 9)],
        &[Resize("b", 64 * 600), Write("b", 64 * 520, 64, 7), Resize("b", 64 * 580), Resize("b", 64 * 600)],
        &[Load("a"), Write("a", 0, 9, 7), Append("a", 9, 8), Load("a"), Resize("a", 20), Both(1, 8, 9)],
        &[Load("a"), Both(0, 50, 7), Resize("a", 3), Append("a", 64, 8), Reopen, Both(0, 50, 9)],
        &[Append("a", 64 * 20, 7), Resize("a", 64 * 3), Delete("a"), Append("b", 64 * 3, 8)],
    ];
    for ops in sequences {
        let explorer =
            Explorer::new(Model::Px86Line).crashes(1).choices_per_point(3).nested_choices_per_point(1);
        explore(explorer, LENGTHS[0], ops);
    }
}

/// Calls that take several transactions, under the name of an incomplete object.
const LONG_CALLS: [Op; 4] = [
    Create("new", 64 * 34 + 1, 7),
    CreateFrom("new", 64 * 34, 7),
    CreateShort("new", 64 * 34),
    Replace("b", 64 * 34, 7),
];

#[test]
fn calls_are_atomic() {
    for model in [Model::Px86Line, Model::Eadr, Model::Page] {
        for len in LENGTHS {
            for op in CALLS {
                let explorer =
                    Explorer::new(model).crashes(1).choices_per_point(choices()).nested_choices_per_point(1);
                explore(explorer, len, &[op]);
            }
        }
    }
}

#[test]
fn calls_in_steps_are_atomic() {
    let models = [Model::Px86Line, Model::Eadr, Model::Page];
    for model in &models[..if crate::is_deep() { 3 } else { 1 }] {
        for op in LONG_CALLS {
            let explorer =
                Explorer::new(*model).crashes(1).choices_per_point(choices()).nested_choices_per_point(1);
            explore(explorer, LENGTHS[0], &[op]);
        }
    }
}

/// The process is killed at each point, another one opens the pool, and is crashed.
#[test]
fn calls_of_killed_processes_are_atomic() {
    for len in &LENGTHS[..if crate::is_deep() { 3 } else { 2 }] {
        for op in CALLS {
            let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(1);
            explore(explorer, *len, &[op]);
        }
    }
    if crate::is_deep() {
        for op in LONG_CALLS {
            explore(
                Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(1),
                LENGTHS[0],
                &[op],
            );
        }
    }
}

/// Crashes inside the recovery from a crash.
#[test]
fn recovery_is_atomic() {
    for op in [Create("new", 64 * 3, 7), Replace("a", 70, 7), Delete("a")] {
        let explorer =
            Explorer::new(Model::Px86Line).crashes(2).choices_per_point(4).nested_choices_per_point(2);
        explore(explorer, LENGTHS[1], &[op]);
    }
}

/// Calls that use what others have left: the intent of an earlier change, slots and blocks that were freed, emptied slabs.
#[test]
fn calls_after_others_are_atomic() {
    let sequences: [&[Op]; 9] = [
        &[Create("new", 50, 7), Rename("new", "other")],
        &[Create("new", 50, 7), Rename("new", "other"), Rename("other", "new"), Delete("new")],
        &[Delete("a"), Create("a", 100, 7), Write("a", 0, 100, 8)],
        &[Rename("a", "c"), Create("a", 60, 8), Delete("c")],
        &[Write("a", 1, 40, 7), Write("a", 0, 50, 8), Write("a", 2, 9, 9), Write("a", 5, 45, 3)],
        &[Replace("a", 10, 7), Replace("a", 20, 8), Replace("b", 30, 9)],
        &[Create("new", 50, 7), Reopen, Rename("new", "other"), Reopen, Delete("other")],
        &[Create("new", 600, 7), Delete("new"), Create("new", 600, 8), Delete("a")],
        &[Delete("a"), Delete("b"), Reopen, Create("a", 0, 7), Replace("a", 128, 8)],
    ];
    for ops in sequences {
        for len in &LENGTHS[..2] {
            let explorer =
                Explorer::new(Model::Px86Line).crashes(1).choices_per_point(4).nested_choices_per_point(1);
            explore(explorer, *len, ops);
        }
    }
}

/// Calls in a pool that is full, and has a file: chunks move down to make room, and are replaced, freed and read there.
#[test]
fn moves_are_atomic() {
    let sequences: [&[Op]; 9] = [
        &[Create("new", 64 * 20, 7)],
        &[Write("a", 0, 64 * 3, 7)],
        &[Append("a", 64 * 3, 7), Load("a")],
        // A chunk in the file that becomes shorter gets another checksum.
        &[Create("new", 64 * 20, 7), Pin("new", Tier::File), Resize("new", 64 * 7 + 9), Append("new", 9, 8)],
        &[Replace("b", 64 * 20, 7), Write("b", 10, 64, 9)],
        &[Write("a", 64 * 19, 100, 8), Delete("a"), Create("new", 64 * 20, 7)],
        &[Create("new", 64 * 20, 7), Reopen, Create("newer", 64 * 20, 9), Delete("new")],
        &[Create("new", 64 * 20, 7), Pin("new", Tier::File), Load("new"), Pin("new", Tier::Pool)],
        &[Create("new", 64 * 20, 7), Delete("b"), Load("a"), Both(0, 64 * 3, 7), Append("new", 30, 8)],
    ];
    for ops in &sequences[..if crate::is_deep() { 9 } else { 5 }] {
        let subject = full_for(&ops[0]);
        for model in [Model::Px86Line, Model::Page] {
            let explorer = Explorer::new(model).crashes(1).choices_per_point(2).nested_choices_per_point(1);
            explore_in(subject, explorer, ops);
        }
        if ops.len() == 1 || crate::is_deep() && ops.len() == 2 {
            let explorer = Explorer::new(Model::Px86Line).kills(1).crashes(1).choices_per_point(1);
            explore_in(subject, explorer, ops);
        }
    }
}

/// A pool so full that chunks move down in this call.
fn full_for(op: &Op) -> Small {
    let moves_in = |subject: &Small| {
        let pmem = Arc::new(SimPmem::new(REGION_BYTES));
        let Ok(pool) = subject.create(pmem) else { return false };
        let in_file = || pool.objects().check().unwrap().chunks_in_file;
        let before = in_file();
        apply(pool.objects(), op).is_ok() && in_file() > before
    };
    // The length of the object is what makes it full.
    let pools = (20..120).map(|chunks| (FULL_BYTES, 64 * 2 * chunks));
    let small = |(pool_bytes, len)| Small { len, pool_bytes };
    pools.map(small).find(moves_in).expect("a pool that is full")
}

/// A pool with a file is created, and the power fails: there is no pool, or one that opens with its file, and works.
#[test]
fn creation_is_atomic() {
    let subject = Small { len: 0, pool_bytes: FULL_BYTES };
    let operation = |run: &Run<()>| {
        let (pool, file) = subject.media(run.pmem());
        let objects = Objects::format_with_file(pool, file.unwrap(), &options()).unwrap();
        run.ack(());
        objects.create("a", Contents::Slice(&[7_u8; 200])).unwrap();
    };
    let check = |crash: &Crash<()>| {
        let (pool, file) = subject.media(crash.pmem());
        let objects = match Objects::attach_with_file(pool, file.unwrap(), &options()) {
            // There is no heap yet, no store in it, or none of these objects.
            Err(OpenError::Store(_) | OpenError::NoObjects) if crash.acked().is_empty() => return Ok(()),
            Err(error) => return Err(error.to_string()),
            Ok(objects) => objects,
        };
        objects.create("b", Contents::Slice(&[1_u8; 64 * 20])).map_err(|error| error.to_string())?;
        let problems = objects.check().map_err(|error| error.to_string())?.problems;
        if problems.is_empty() { Ok(()) } else { Err(format!("{problems:?}")) }
    };
    for model in [Model::Px86Line, Model::Page] {
        let explorer = Explorer::new(model).crashes(1).choices_per_point(choices());
        explorer.check(&SimPmem::new(REGION_BYTES).to_image(), operation, check);
    }
}

/// Random calls, as many sequences as `PM_CRASH_SEQUENCES` says.
#[test]
fn random_calls_are_atomic() {
    let names = ["a", "b", "c", "d"];
    for seed in seeds(if crate::is_deep() { 200 } else { 12 }) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ops = Vec::new();
        for _ in 0..random.usize(2..8) {
            let name = random.choice(names).unwrap();
            let (len, byte) = ([0, 1, 40, 64, 65, 200, 700][random.usize(..7)], random.u8(3..));
            ops.push(match random.u32(..16) {
                0 | 1 => Create(name, len, byte),
                2 | 3 => Replace(name, len, byte),
                4 => Delete(name),
                5 => Rename(name, random.choice(names).unwrap()),
                6 => Reopen,
                7 | 8 => Append(name, len, byte),
                9 | 10 => Resize(name, len),
                11 => Load(name),
                12 => Both(random.usize(..60), len, byte),
                13 => Pin(name, [Tier::Dram, Tier::Pool][random.usize(..2)]),
                _ => Write(name, random.usize(..60), len, byte),
            });
        }
        let model = [Model::Px86Line, Model::Page][random.usize(..2)];
        println!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: {model:?} {ops:?}");
        let kills = usize::from(random.u32(..4) == 0);
        let explorer =
            Explorer::new(model).kills(kills).crashes(1).choices_per_point(2).nested_choices_per_point(1);
        explore(explorer, [50, 300][random.usize(..2)], &ops);
    }
}
