//! Copies of chunks in DRAM. A frame has one of the lengths of slots, and lies in a page with others of that length.

use super::chunks::Place;
use super::control::Control;
use crate::error::OpenError;
use crate::format::{SLOT_BYTES, short};
use crate::volume::slabs::class_of;
use core::fmt;
use pm_core::{Pmem, Region};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The greatest length of a page, and the unit of their lengths.
const PAGE_BYTES: u64 = 64 << 10;
const PAGE_UNIT: u64 = 4096;

/// The number of frames that are looked at to find one that is worth little.
const CANDIDATES: usize = 16;

/// What a frame has.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) control: Arc<Control>,
    pub(crate) index: u64,
    /// The chunk's place on another tier. Changed by the thread that has the object's lock.
    pub(crate) home: Place,
}

/// A page.
struct Page {
    class: usize,
    held: Vec<Option<Held>>,
}

/// The frames of one length.
#[derive(Default)]
struct Class {
    pages: Vec<usize>,
    free: Vec<u64>,
}

struct State {
    page_bytes: u64,
    pages: Vec<Page>,
    classes: [Class; SLOT_BYTES.len()],
}

/// The frames, and what they have.
pub(crate) struct Frames {
    memory: Region,
    state: Mutex<State>,
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// A frame that has a chunk.
pub(crate) struct Candidate {
    pub(crate) frame: u64,
    pub(crate) held: Held,
    /// What the chunk's loads save there.
    pub(crate) value: u64,
}

impl Frames {
    /// Frames in so many bytes of memory.
    pub(crate) fn new(bytes: u64) -> Result<Self, OpenError> {
        let page_bytes = bytes.clamp(PAGE_UNIT, PAGE_BYTES) / PAGE_UNIT * PAGE_UNIT;
        let rounded = bytes.max(page_bytes) / page_bytes * page_bytes;
        let memory = Region::anonymous(rounded).map_err(|source| OpenError::Dram { bytes, source })?;
        let classes = core::array::from_fn(|_| Class::default());
        let state = State { page_bytes, pages: Vec::new(), classes };
        Ok(Self { memory, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of bytes in pages that have frames, and of all.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let state = self.lock();
        (state.pages.len() as u64 * state.page_bytes, self.memory.len_bytes())
    }

    /// Takes a free frame for so many bytes.
    pub(crate) fn take(&self, len_bytes: u64) -> Option<u64> {
        let class = class_of(len_bytes);
        let mut state = self.lock();
        if let Some(frame) = state.classes[class].free.pop() {
            return Some(frame);
        }
        let page = state.pages.len();
        if (page as u64 + 1) * state.page_bytes > self.memory.len_bytes() {
            return None;
        }
        state.pages.push(Page { class, held: Vec::new() });
        state.begin_page(page, class);
        state.classes[class].free.pop()
    }

    /// The chunk that is worth least in its frame, of some at random with frames for so many bytes.
    pub(crate) fn least(
        &self,
        len_bytes: u64,
        random: impl Fn() -> u64,
        value: impl Fn(&Held) -> u64,
    ) -> Option<Candidate> {
        let state = self.lock();
        let pages = &state.classes[class_of(len_bytes)].pages;
        let candidate = |_| {
            let random = short(random());
            let page = *pages.get(random % pages.len().max(1))?;
            let held = &state.pages[page].held;
            let at = random / 7919 % held.len();
            let found = held[at].as_ref()?;
            Some(Candidate { frame: state.frame_of(page, at), held: found.clone(), value: value(found) })
        };
        (0..CANDIDATES).filter_map(candidate).min_by_key(|candidate| candidate.value)
    }

    /// What a page with frames of another length has, one at random.
    pub(crate) fn other_page(&self, len_bytes: u64, random: u64) -> Option<(usize, Vec<(u64, Held)>)> {
        let class = class_of(len_bytes);
        let state = self.lock();
        let start = short(random) % state.pages.len().max(1);
        let all = (start..state.pages.len()).chain(0..start);
        let page = all.into_iter().find(|page| state.pages[*page].class != class)?;
        let held = &state.pages[page].held;
        let frames = held.iter().enumerate();
        let held = frames.filter_map(|(at, held)| Some((state.frame_of(page, at), held.clone()?)));
        Some((page, held.collect()))
    }

    /// Gives a page to frames for so many bytes, if all of its frames are free.
    pub(crate) fn convert(&self, page: usize, len_bytes: u64) {
        let mut state = self.lock();
        let old = state.pages[page].class;
        let range = page as u64 * state.page_bytes..(page as u64 + 1) * state.page_bytes;
        let free = state.classes[old].free.iter().filter(|frame| range.contains(frame)).count();
        if free == state.pages[page].held.len() {
            state.classes[old].free.retain(|frame| !range.contains(frame));
            state.classes[old].pages.retain(|other| *other != page);
            state.begin_page(page, class_of(len_bytes));
        }
    }

    /// A frame that was taken has a chunk from now on.
    pub(crate) fn hold(&self, frame: u64, held: Held) {
        self.lock().change(frame, |slot| *slot = Some(held));
    }

    /// The home of the chunk in a frame. The caller has the object's lock.
    pub(crate) fn home(&self, frame: u64) -> Place {
        let mut home = None;
        self.lock().change(frame, |held| home = held.as_ref().map(|held| held.home));
        home.expect("the frame of a chunk in DRAM")
    }

    /// The chunk in a frame has another home. The caller has the object's lock.
    pub(crate) fn set_home(&self, frame: u64, home: Place) {
        self.lock().change(frame, |held| held.as_mut().expect("the frame of a chunk in DRAM").home = home);
    }

    /// A frame has no chunk any more, and is still taken.
    pub(crate) fn clear(&self, frame: u64) {
        self.lock().change(frame, |held| *held = None);
    }

    /// A frame without a chunk is free.
    pub(crate) fn give_back(&self, frame: u64) {
        let mut state = self.lock();
        let class = state.pages[state.page_of(frame)].class;
        state.classes[class].free.push(frame);
    }

    /// Copies out of a frame, perhaps while it changes. Returns whether it may have so many bytes: a shorter one may be the last.
    #[inline]
    pub(crate) fn load(&self, frame: u64, within: u64, out: &mut [u8]) -> bool {
        let start = frame + within;
        let fits = start + out.len() as u64 <= self.memory.len_bytes();
        if fits {
            self.memory.load(start, out);
        }
        fits
    }

    /// Copies to a frame.
    pub(crate) fn store(&self, frame: u64, within: u64, bytes: &[u8]) {
        self.memory.store(frame + within, bytes);
    }
}

impl State {
    /// A page has free frames of a length.
    fn begin_page(&mut self, page: usize, class: usize) {
        let count = short(self.page_bytes / SLOT_BYTES[class]);
        self.pages[page] = Page { class, held: vec![None; count] };
        self.classes[class].pages.push(page);
        let frames: Vec<u64> = (0..count).rev().map(|at| self.frame_of(page, at)).collect();
        self.classes[class].free.extend(frames);
    }

    fn change(&mut self, frame: u64, change: impl FnOnce(&mut Option<Held>)) {
        let (at, page) = (self.page_of(frame), frame % self.page_bytes);
        let Page { class, held } = &mut self.pages[at];
        change(&mut held[short(page / SLOT_BYTES[*class])]);
    }

    fn page_of(&self, frame: u64) -> usize {
        short(frame / self.page_bytes)
    }

    fn frame_of(&self, page: usize, at: usize) -> u64 {
        page as u64 * self.page_bytes + at as u64 * SLOT_BYTES[self.pages[page].class]
    }
}
