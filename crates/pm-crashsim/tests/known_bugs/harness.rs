//! What every case is: an image, an operation and a check, in a buggy and in a corrected form; and what both must fulfil.

pub(crate) use crate::common::*;
use pm_crashsim::{InjectionKind, PendingStore, SourceLocation};
use std::fmt::Debug;

/// As published, or as corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Bug,
    Fixed,
}

type Operation = dyn Fn(&Run<()>) -> Done;
/// A step of a program whose steps differ.
pub(crate) type Step = fn(&SimPmem, Form) -> Done;
/// `Sync`, as the explorer asks: it may run checks on several threads.
type Check = dyn Fn(&Crash<'_, ()>) -> Done + Sync;

/// One program in one form.
pub(crate) struct Case {
    image: Image,
    operation: Box<Operation>,
    check: Box<Check>,
    models: &'static [Model],
}

impl Case {
    /// A program whose corrected form shall hold under every model, however weakly that orders stores to one line.
    pub(crate) fn new(
        image: Image,
        operation: impl Fn(&Run<()>) -> Done + 'static,
        check: impl Fn(&Crash<'_, ()>) -> Done + Sync + 'static,
    ) -> Self {
        let models = &Model::ALL;
        Self { image, operation: Box::new(operation), check: Box::new(check), models }
    }

    /// The program's design needs stores to one line to become durable in order, and says why where this is called. It
    /// is not tried under the models that let them overtake each other.
    pub(crate) const fn relying_on_order_in_a_line(mut self) -> Self {
        self.models = &[Model::Eadr, Model::Px86Line, Model::Page];
        self
    }

    /// A program of steps, each acknowledged. After a crash, `found` recovers and returns the state: that after the acknowledged
    /// steps, or after one more. `states` begins with the state before the first step.
    pub(crate) fn steps<T: Clone + 'static, S: Debug + PartialEq + Sync + 'static>(
        image: Image,
        steps: impl IntoIterator<Item = T>,
        step: impl Fn(&SimPmem, T) -> Done + 'static,
        states: impl IntoIterator<Item = S>,
        found: impl Fn(&SimPmem) -> Result<S, FenceError> + Sync + 'static,
    ) -> Self {
        let (steps, states): (Vec<T>, Vec<S>) = (steps.into_iter().collect(), states.into_iter().collect());
        Self::new(
            image,
            move |run| {
                for argument in &steps {
                    step(run.pmem(), argument.clone())?;
                    run.ack(());
                }
                Ok(())
            },
            move |crash| {
                assert_before_or_after(&states, crash, &found(crash.pmem())?);
                Ok(())
            },
        )
    }
}

/// A case with its name, and with the source that holds its marks.
#[derive(Clone, Copy)]
pub(crate) struct Bug {
    pub(crate) id: &'static str,
    pub(crate) system: &'static str,
    pub(crate) source: Source,
    pub(crate) case: fn(Form) -> Case,
}

/// A file of cases.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    /// Its name in the directory of these tests.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// What the report of the failure must say of a marked line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// What the line stored is lost, and nothing else is. This put in would repair it, if one flush or fence can.
    Lost { missing: Option<InjectionKind> },
    /// What the line stored has reached the medium already, and the failure needs no other store to have.
    Kept,
    /// The same of a crash inside recovery.
    KeptInRecovery,
}

impl Named {
    fn parse(mark: &str) -> Self {
        match mark {
            "lost" => Self::Lost { missing: None },
            "lost: fence missing" => Self::Lost { missing: Some(InjectionKind::FenceAfterFlush) },
            "lost: flush missing" => Self::Lost { missing: Some(InjectionKind::FlushAfterStore) },
            "lost: flush and fence missing" => Self::Lost { missing: Some(InjectionKind::PersistAfterStore) },
            "kept" => Self::Kept,
            "kept in recovery" => Self::KeptInRecovery,
            other => panic!("{other:?} is not a mark"),
        }
    }

    /// Of the failure's last crash, the stores that must all be at marked lines: those lost, or those kept that matter.
    fn stores(self, failure: &Failure) -> Vec<&PendingStore> {
        match (self, &failure.crashes[..]) {
            (Self::Lost { .. }, [crash]) => crash.lost.iter().collect(),
            (Self::Kept, [crash]) | (Self::KeptInRecovery, [_, crash]) => {
                crash.kept.iter().filter(|store| store.is_essential).collect()
            }
            (_, crashes) => panic!("{self:?} is not about {} crashes: {failure}", crashes.len()),
        }
    }
}

impl Bug {
    /// Asserts that the buggy form is found at its mark, and that the corrected form is clean. Returns the story of both in one line.
    pub(crate) fn verify(&self) -> String {
        let found_at = self.found();
        let coverage = self.clean();
        format!("{} {}: {found_at}; corrected: {coverage}", self.id, self.system)
    }

    /// Asserts that exploring the buggy form fails, and that the failure names the marked place and no other.
    fn found(&self) -> String {
        let Case { image, operation, check, .. } = (self.case)(Form::Bug);
        let explorer = Explorer::default();
        let found = explorer.explore(&image, &operation, &check).expect_err("the bug is found");
        // Recovery can have the same bug, and be crashed first: one crash tells the simpler story, if it is enough.
        let failure = explorer.crashes(1).explore(&image, operation, check).err().unwrap_or(found);
        let (named, lines) = self.marks();
        let stores = named.stores(&failure);
        assert!(!stores.is_empty(), "{}: nothing is {named:?} in {failure}", self.id);
        for PendingStore { location, .. } in &stores {
            let marked = self.is_in_source(location) && lines.contains(&location.line());
            assert!(marked, "{}: {named:?} {location}, but marked are {lines:?}: {failure}", self.id);
        }
        let missing = if let Named::Lost { missing } = named { missing } else { None };
        let repair = failure.repair.as_ref().map(|repair| &repair.injection);
        assert_eq!(repair.map(|injection| injection.kind), missing, "{}: {failure}", self.id);
        if let Some(injection) = repair {
            assert!(self.is_in_source(&injection.location), "{}: {failure}", self.id);
        }
        format!("{named:?} {}", stores[0].location)
    }

    /// Asserts that the corrected form passes every legal choice under every model that it is made for, and that each
    /// of its flushes and fences is needed, which shows the check to notice their loss.
    fn clean(&self) -> Coverage {
        let Case { image, operation, check, models } = (self.case)(Form::Fixed);
        for &model in models {
            let explored = Explorer::new(model).explore(&image, &operation, &check);
            let coverage = explored.unwrap_or_else(|failure| panic!("{}, corrected: {failure}", self.id));
            assert!(coverage.is_exhaustive(), "{}, corrected: {coverage}", self.id);
        }
        let explorer = Explorer::new(Model::Px86Line);
        let redundant = explorer.redundant_sites(&image, &operation, &check).expect("passed a moment ago");
        let redundant: Vec<String> = redundant.iter().map(ToString::to_string).collect();
        assert!(redundant.is_empty(), "{}, corrected, does not need {redundant:#?}", self.id);
        explorer.explore(&image, operation, check).expect("passed a moment ago")
    }

    /// The lines with a mark of this case, and what they are marked as: all as the same.
    fn marks(&self) -> (Named, Vec<u32>) {
        let marks = (1..).zip(self.source.text.lines()).filter_map(|(line, text)| {
            let (id, mark) = text.split_once("//~ ")?.1.split_once(' ')?;
            (id == self.id).then(|| (Named::parse(mark), line))
        });
        let marks: Vec<(Named, u32)> = marks.collect();
        let named = marks.first().unwrap_or_else(|| panic!("{} has no mark", self.id)).0;
        assert!(marks.iter().all(|mark| mark.0 == named), "{} has marks of several kinds", self.id);
        (named, marks.into_iter().map(|(_, line)| line).collect())
    }

    fn is_in_source(&self, location: &SourceLocation) -> bool {
        location.file().rsplit(['/', '\\']).next() == Some(self.source.name)
    }
}

/// A region of 4 KiB as `prepare` leaves it, all durable.
pub(crate) fn image<V: Verdict>(prepare: impl FnOnce(&SimPmem) -> V) -> Image {
    let pmem = SimPmem::new(4096);
    assert_eq!(prepare(&pmem).failure(), None, "outside the page domain, fences do not fail");
    pmem.to_image()
}

/// A copy to try on what comes after recovery: no crash of that is explored, and its flushes do not count.
pub(crate) fn copy(pmem: &SimPmem) -> SimPmem {
    SimPmem::from_image(&pmem.to_image(), pmem.model())
}

/// The oracle of operations in sequence: `found` is the state after those that were acknowledged, or after the one more
/// that the crash interrupted. `states` begins with the state before the first.
#[track_caller]
pub(crate) fn assert_before_or_after<S: Debug + PartialEq>(states: &[S], crash: &Crash<'_, ()>, found: &S) {
    let acked = crash.acked().len();
    let legal = &states[acked..states.len().min(acked + 2)];
    assert!(legal.contains(found), "found {found:?} where {legal:?} are legal");
}

/// Words as one store takes them.
pub(crate) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn load_words<const N: usize>(pmem: &SimPmem, offset: u64) -> [u64; N] {
    std::array::from_fn(|number| pmem.load_u64(offset + 8 * number as u64))
}
