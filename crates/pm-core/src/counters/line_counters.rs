//! The wrapper that counts lines.

use super::actions::Actions;
use super::current::Current;
use super::groups::{Ended, Group, Groups};
use super::options::CounterOptions;
use crate::fault::MediumFault;
use crate::line::LINE_BYTES;
use crate::{FenceError, Pmem, forward_pmem};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A wrapper of an implementation of [`Pmem`] that counts the lines of groups of stores that may not be durable. [The module](super) explains them.
///
/// What a call promises does not change: a program that flushes and fences its stores is right as before, and its groups are durable when they end. What a group has
/// stored around the cache and not fenced is fenced when it ends: a program that is to profit from counters stores through the cache, and neither flushes nor
/// fences.
///
/// The group of a thread that ends has ended with it, fenced as above, and is written back with others; there is no handle to it. If that fence fails, no later group
/// becomes durable. What the destructors of thread-local values store after that is durable at once.
///
/// # Costs
/// Two bytes of DRAM for each line of the region. A store looks at the tag of each of its lines; the first one of a group to a line also notes the line.
#[derive(Debug)]
pub struct LineCounters<P> {
    /// Shared with threads that [end with a group](Groups::fence_for_thread).
    inner: Arc<P>,
    options: CounterOptions,
    groups: Arc<Groups>,
    /// The counter of the last group that has stored to a line, plus one, until the line is written back. A hint for that group alone: a line with its tag is in its
    /// list.
    tags: Box<[AtomicU16]>,
    /// Held by the thread that writes groups back.
    writer: Mutex<()>,
    actions: Actions,
}

impl<P: Pmem + Send + Sync + 'static> LineCounters<P> {
    /// Wraps `inner`.
    pub fn new(inner: P, options: &CounterOptions) -> Self {
        let inner = Arc::new(inner);
        let memory: Weak<P> = Arc::downgrade(&inner);
        let tags = (0..inner.len_bytes().div_ceil(LINE_BYTES)).map(|_| AtomicU16::new(0)).collect();
        Self {
            inner,
            options: *options,
            groups: Arc::new(Groups::new(options.counter_count, options.is_in_order).with_memory(memory)),
            tags,
            writer: Mutex::new(()),
            actions: Actions::default(),
        }
    }
}

impl<P: Pmem> LineCounters<P> {
    /// The wrapped implementation. Its stores are not counted.
    pub fn get_ref(&self) -> &P {
        &self.inner
    }

    /// Ends this thread's group, and returns it. The next store begins another one. When more groups wait than the [lag](CounterOptions::lag), writes all of
    /// them back. Calls the [actions](Self::on_durable) of groups that are durable.
    ///
    /// # Errors
    /// When a fence fails. The group goes on waiting.
    ///
    /// # Durability
    /// The group is durable when [`scheck`](Self::scheck) returns 0. Costs no fence, unless the group is written back, no counter was free for it, it has too
    /// many lines, or it has stores around the cache that were not fenced.
    pub fn sgroup(&self) -> Result<Group, FenceError> {
        if Current::with(&self.groups, |current| current.needs_fence) {
            self.fence()?;
        }
        let (counter, mut lines) = Current::with(&self.groups, Current::end);
        lines.sort_unstable();
        lines.dedup();
        // A group without a counter has no lines: the fence above has made it durable.
        let group = self.groups.end(counter, lines);
        if self.groups.waiting() > self.options.lag {
            self.write_back()?;
        } else {
            self.poll();
        }
        Ok(group)
    }

    /// An upper bound of the number of lines of an ended group that may not be durable. Zero once the group is durable, for good.
    pub fn scheck(&self, group: Group) -> u32 {
        self.groups.count(group)
    }

    /// The number of ended groups that wait to be written back.
    pub fn lag(&self) -> usize {
        self.groups.waiting()
    }

    /// Writes all ended groups back, of all threads, and calls the actions of groups that are durable.
    ///
    /// # Errors
    /// When the fence fails. The groups go on waiting.
    ///
    /// # Durability
    /// When this returns, every group that had ended before the call is durable. Costs the lines of the groups, each once, and one fence; nothing if none
    /// waits.
    pub fn write_back(&self) -> Result<(), FenceError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Taken { of: &self.groups, groups: self.groups.take() };
        self.groups.check()?;
        if !taken.groups.is_empty() {
            let mut lines: Vec<u64> = taken.groups.iter().flat_map(|ended| &ended.lines).copied().collect();
            lines.sort_unstable();
            lines.dedup();
            for run in lines.chunk_by(|line, next| line + 1 == *next) {
                let start = run[0] * LINE_BYTES;
                let end = (start + run.len() as u64 * LINE_BYTES).min(self.inner.len_bytes());
                self.inner.flush(start, end - start);
            }
            // DURABILITY POINT
            self.inner.fence()?;
            for ended in &taken.groups {
                let Some(counter) = ended.group.counter else { continue };
                for line in &ended.lines {
                    // The counter's next group must not find its tag. Another group may have stored to the line meanwhile.
                    let tag = &self.tags[index(*line)];
                    tag.compare_exchange(counter + 1, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
                }
            }
            self.groups.complete(&core::mem::take(&mut taken.groups));
        }
        drop(taken);
        drop(writer);
        self.poll();
        Ok(())
    }

    /// Writes ended groups back every `interval`, until `is_stopped`, and once more then: for a thread of the program's own, which bounds the time for which
    /// groups wait.
    ///
    /// # Errors
    /// As for [`write_back`](Self::write_back).
    ///
    /// # Durability
    /// As for [`write_back`](Self::write_back).
    pub fn write_back_every(&self, interval: Duration, is_stopped: &AtomicBool) -> Result<(), FenceError> {
        while !is_stopped.load(Ordering::Acquire) {
            std::thread::sleep(interval);
            self.write_back()?;
        }
        self.write_back()
    }

    /// Calls `action` when the group is durable: now, or in a later [`sgroup`](Self::sgroup), [`write_back`](Self::write_back) or [`poll`](Self::poll) of any
    /// thread. An action may store: its stores belong to the current group of the thread that calls it.
    pub fn on_durable(&self, group: Group, action: impl FnOnce() + Send + 'static) {
        self.actions.push(group, Box::new(action));
        // It may have become durable just now.
        if self.scheck(group) == 0 {
            self.poll();
        }
    }

    /// Calls the actions of groups that are durable, in the order in which they were added. Returns their number.
    pub fn poll(&self) -> usize {
        self.actions.run(|group| self.scheck(group) == 0)
    }

    /// The numbers of the lines of a range. `None` outside the region, where the wrapped implementation refuses the call.
    fn lines_of(&self, offset: u64, len_bytes: u64) -> Option<Range<u64>> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.inner.len_bytes())?;
        Some(if len_bytes == 0 { 0..0 } else { offset / LINE_BYTES..end.div_ceil(LINE_BYTES) })
    }

    /// Notes a store to a range by this thread's group. Returns whether a counter makes it durable: else it is to be written back at once.
    fn note(&self, offset: u64, len_bytes: u64) -> bool {
        let Some(lines) = self.lines_of(offset, len_bytes) else { return true };
        Current::with(&self.groups, |current| self.note_lines(current, lines))
    }

    fn note_lines(&self, current: &mut Current, lines: Range<u64>) -> bool {
        if !current.has_begun {
            current.has_begun = true;
            current.counter = self.groups.take_counter();
        }
        let Some(counter) = current.counter else {
            return false;
        };
        let tag = counter + 1;
        let is_new = |line: &u64| self.tags[index(*line)].load(Ordering::Relaxed) != tag;
        let new = lines.clone().filter(is_new).count();
        if current.len() + new > self.options.lines_max as usize {
            return false;
        }
        if new > 0 {
            for line in lines.filter(is_new) {
                current.dirty.push(line);
                self.tags[index(line)].store(tag, Ordering::Relaxed);
            }
        }
        true
    }

    /// Notes a flush of a range by this thread.
    fn note_flush(&self, offset: u64, len_bytes: u64) {
        Current::with(&self.groups, |current| {
            let Some(counter) = current.counter else { return };
            for line in self.lines_of(offset, len_bytes).into_iter().flatten() {
                let tag = &self.tags[index(line)];
                if tag.load(Ordering::Relaxed) == counter + 1 {
                    tag.store(0, Ordering::Relaxed);
                    current.flush(line);
                }
            }
        });
    }

    /// Makes a store. If no counter makes it durable, it is written back at once. Not around the cache: other threads may rely on the order of stores.
    fn store_with<R>(&self, offset: u64, len_bytes: u64, store: impl FnOnce(&P) -> R) -> R {
        let is_counted = self.note(offset, len_bytes);
        let result = store(&*self.inner);
        if !is_counted {
            self.inner.flush(offset, len_bytes);
            Current::with(&self.groups, |current| current.needs_fence = true);
        }
        result
    }
}

impl<P: Pmem> Pmem for LineCounters<P> {
    forward_pmem!(|this| this.inner => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data, load, lend);
    forward_pmem!(|this| this.inner => try_load, load_u64, load_words, prefetch, prefetch_read, populate);

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.store_with(offset, bytes.len() as u64, |pmem| pmem.store(offset, bytes));
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.inner.store_nt(offset, bytes);
        Current::with(&self.groups, |current| current.needs_fence = true);
    }
    fn try_store(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.store_with(offset, bytes.len() as u64, |pmem| pmem.try_store(offset, bytes))
    }
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        let stored = self.inner.try_store_nt(offset, bytes);
        // A part may have been stored before a fault.
        Current::with(&self.groups, |current| current.needs_fence = true);
        stored
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.store_with(offset, 8, |pmem| pmem.store_u64(offset, value));
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.store_with(offset, 16, |pmem| pmem.store_u128(offset, value));
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.store_with(offset, 8, |pmem| pmem.compare_exchange_u64(offset, current, new))
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.inner.flush(offset, len_bytes);
        self.note_flush(offset, len_bytes);
    }
    fn try_flush(&self, offset: u64, len_bytes: u64) -> Result<(), MediumFault> {
        self.inner.try_flush(offset, len_bytes)?;
        self.note_flush(offset, len_bytes);
        Ok(())
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.inner.fence()?;
        Current::with(&self.groups, |current| {
            current.needs_fence = false;
            current.flushed.clear();
        });
        Ok(())
    }
}

fn index(line: u64) -> usize {
    usize::try_from(line).expect("a region is in memory")
}

/// Groups that are being written back. They wait again if that fails, by an error or a panic.
struct Taken<'g> {
    of: &'g Groups,
    groups: VecDeque<Ended>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.groups.is_empty() {
            self.of.put_back(core::mem::take(&mut self.groups));
        }
    }
}
