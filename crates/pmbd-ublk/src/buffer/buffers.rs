//! All buffers of a device.

use super::error::BufferError;
use super::format::{BLOCK, BLOCK_BYTES};
use super::options::BufferOptions;
use super::queue::{Drained, Queue};
use super::slots::Slots;
use pm_core::fault::MediumFault;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The length from which a write need not wait for others to share a window and a fence.
const PASSING_BYTES: usize = 32 << 10;

/// What buffers do to their device.
pub(crate) trait Device {
    /// The error of a fence.
    type Error;
    /// Why a block cannot be stored.
    type Fault: Clone + From<MediumFault>;

    /// Loads from `offset_bytes` on the device.
    fn load(&self, offset_bytes: u64, out: &mut [u8]) -> Result<(), MediumFault>;

    /// Stores at `offset_bytes` on the device; durable at the next fence.
    fn store(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), Self::Fault>;

    /// Makes stores durable.
    fn fence(&self) -> Result<(), Self::Error>;

    /// Lets a fence of any thread make the stores of this one durable.
    fn release_stores(&self) -> Result<(), Self::Error>;

    /// Stores the generation of the device.
    fn set_generation(&self, generation: u64);
}

/// The buffers of a device, which any number of threads use at once.
///
/// A block lies in at most one buffer, whose lock is held while the block is copied in or out or stored to the device. No thread holds two locks.
#[derive(Debug)]
pub(crate) struct Buffers {
    options: BufferOptions,
    capacity_bytes: u64,
    slots: Slots,
    /// The generation of the device.
    generation: Mutex<u64>,
    /// Whether the next server would not find the slots: then every write is stored on the device before it completes.
    has_lost_slots: AtomicBool,
    queues: Box<[Buffer]>,
}

#[derive(Debug)]
struct Buffer {
    /// The number of blocks, for readers: if it is zero, the device has the newest bytes.
    len: AtomicUsize,
    queue: Mutex<Queue>,
}

impl Buffer {
    /// A panic under the lock is a bug of this module.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffers {
    /// Buffers with these slots, all of them free, for a device of this generation.
    pub(crate) fn new(options: BufferOptions, capacity_bytes: u64, slots: Slots, generation: u64) -> Self {
        let each = options.slots_each();
        let buffer = |index: u64| Buffer {
            len: AtomicUsize::new(0),
            queue: Mutex::new(Queue::new(index * each, each)),
        };
        let queues = (0..options.buffer_count).map(buffer).collect();
        let (generation, has_lost_slots) = (Mutex::new(generation), AtomicBool::new(false));
        Self { options, capacity_bytes, slots, generation, has_lost_slots, queues }
    }

    /// Gives the device another generation, before anything is stored to it: a copy that was made before does not belong to the slots any more.
    fn begin_stores<D: Device>(&self, device: &D) {
        // A panic under the lock is a bug of this module.
        let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        *generation = generation.wrapping_add(1);
        self.slots.announce_generation(*generation);
        device.set_generation(*generation);
        self.slots.note_generation(*generation);
    }

    /// Stores the newest bytes of each block of a killed server's slots to the device, and fences. Can be repeated until the slots are gone.
    pub(crate) fn replay<D: Device>(
        slots: &Slots,
        capacity_bytes: u64,
        device: &D,
    ) -> Result<u64, BufferError>
    where
        BufferError: From<D::Error> + From<D::Fault>,
    {
        let mut block_count = 0;
        let filled = slots.filled()?;
        let mut bytes = [0; BLOCK];
        for (at, &(block, _, slot)) in filled.iter().enumerate() {
            let offset = block.checked_mul(BLOCK_BYTES).filter(|offset| *offset < capacity_bytes);
            let offset = offset.ok_or(BufferError::OutOfRange { slot, block })?;
            if filled.get(at + 1).is_some_and(|(next, ..)| *next == block) {
                continue;
            }
            let bytes = &mut bytes[..slots.block_len(slot).min(index(capacity_bytes - offset))];
            slots.load(slot, 0, bytes);
            device.store(offset, bytes)?;
            block_count += 1;
        }
        device.fence()?;
        Ok(block_count)
    }

    /// Puts bytes into the buffers. A full one is drained first.
    pub(crate) fn store<D: Device>(
        &self,
        device: &D,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<Result<(), D::Fault>, D::Error> {
        let mut rest = bytes;
        let mut at = offset_bytes;
        while !rest.is_empty() {
            let len = index(self.stride_end(at) - at).min(rest.len());
            let (part, after) = rest.split_at(len);
            let buffer = self.buffer(at);
            let mut queue = buffer.lock();
            let stored = if self.passes(at, part.len()) {
                self.store_past(device, &mut queue, at, part)
            } else {
                self.store_locked(device, &mut queue, at, part)
            };
            let stored = match stored {
                Ok(Ok(())) if self.has_lost_slots.load(Ordering::Relaxed) => {
                    self.drain_locked(device, &mut queue).map(|drained| drained.map_err(|(_, fault)| fault))
                }
                stored => stored,
            };
            // An exchange, so that a reader that begins after this write was acknowledged finds it.
            buffer.len.swap(queue.len(), Ordering::AcqRel);
            if let Err(fault) = stored? {
                return Ok(Err(fault));
            }
            (at, rest) = (at + len as u64, after);
        }
        Ok(Ok(()))
    }

    /// Whether a write goes to the device at once: it is as long as a good batch, and has whole blocks only.
    fn passes(&self, at: u64, len: usize) -> bool {
        let end = at + len as u64;
        self.options.is_batched
            && len >= PASSING_BYTES
            && at.is_multiple_of(BLOCK_BYTES)
            && (end.is_multiple_of(BLOCK_BYTES) || end == self.capacity_bytes)
    }

    /// Stores whole blocks on the device, past the buffer, and drops what the buffer has of them. A server that is killed before that has not completed the write, so the
    /// older bytes that the next one may store are right too.
    fn store_past<D: Device>(
        &self,
        device: &D,
        queue: &mut Queue,
        at: u64,
        bytes: &[u8],
    ) -> Result<Result<(), D::Fault>, D::Error> {
        self.begin_stores(device);
        let stored = device.store(at, bytes);
        if stored.is_ok() {
            // The buffer has nothing for which a Flush by another thread would wait.
            device.release_stores()?;
            queue.forget(&self.slots, at / BLOCK_BYTES..(at + bytes.len() as u64).div_ceil(BLOCK_BYTES));
        }
        Ok(stored)
    }

    /// Puts bytes of one stride into its buffer.
    fn store_locked<D: Device>(
        &self,
        device: &D,
        queue: &mut Queue,
        mut at: u64,
        mut bytes: &[u8],
    ) -> Result<Result<(), D::Fault>, D::Error> {
        let mut whole = [0; BLOCK];
        while !bytes.is_empty() {
            let (block, within) = (at / BLOCK_BYTES, index(at % BLOCK_BYTES));
            let block_len = index((self.capacity_bytes - block * BLOCK_BYTES).min(BLOCK_BYTES));
            let (part, rest) = bytes.split_at((block_len - within).min(bytes.len()));
            if queue.is_full()
                && let Err((_, fault)) = self.drain_locked(device, queue)?
                && queue.is_full()
            {
                return Ok(Err(fault));
            }
            if part.len() == block_len {
                queue.put(&self.slots, block, part);
            } else {
                let whole = &mut whole[..block_len];
                if let Err(fault) = self.load_block(device, queue, block * BLOCK_BYTES, whole) {
                    return Ok(Err(fault.into()));
                }
                whole[within..within + part.len()].copy_from_slice(part);
                queue.put(&self.slots, block, whole);
            }
            at += part.len() as u64;
            bytes = rest;
        }
        Ok(Ok(()))
    }

    /// Loads the newest bytes: from a buffer, or from the device.
    pub(crate) fn load<D: Device>(
        &self,
        device: &D,
        offset_bytes: u64,
        mut out: &mut [u8],
    ) -> Result<(), MediumFault> {
        let mut at = offset_bytes;
        while !out.is_empty() {
            let len = index(self.stride_end(at) - at).min(out.len());
            let (mut part, rest) = out.split_at_mut(len);
            let buffer = self.buffer(at);
            if buffer.len.load(Ordering::Acquire) == 0 {
                device.load(at, part)?;
            } else {
                let queue = buffer.lock();
                let mut from = at;
                while !part.is_empty() {
                    let len = index(BLOCK_BYTES - from % BLOCK_BYTES).min(part.len());
                    let (piece, rest) = part.split_at_mut(len);
                    self.load_block(device, &queue, from, piece)?;
                    (from, part) = (from + len as u64, rest);
                }
            }
            (at, out) = (at + len as u64, rest);
        }
        Ok(())
    }

    /// Loads bytes of one block.
    fn load_block<D: Device>(
        &self,
        device: &D,
        queue: &Queue,
        at: u64,
        out: &mut [u8],
    ) -> Result<(), MediumFault> {
        match queue.slot(at / BLOCK_BYTES) {
            Some(slot) => {
                self.slots.load(slot, index(at % BLOCK_BYTES), out);
                Ok(())
            }
            None => device.load(at, out),
        }
    }

    /// The slots, to discard them when they are empty.
    pub(crate) const fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    /// Stores every block to the device, and fences. Returns the first block that could not be stored, as an offset; such blocks stay in their buffers.
    pub(crate) fn drain<D: Device>(&self, device: &D) -> Result<Drained<D::Fault>, D::Error> {
        let mut result = Ok(());
        for buffer in &self.queues {
            let mut queue = buffer.lock();
            // A drain by another thread has fenced before it released the lock.
            if queue.len() != 0 {
                let drained = self.drain_locked(device, &mut queue)?;
                buffer.len.store(queue.len(), Ordering::Release);
                result = result.and(drained);
            }
        }
        Ok(result)
    }

    /// Notices slots that a kill would lose, such as those whose file was removed. A call costs a system call.
    fn watch_slots(&self) {
        if !self.has_lost_slots.load(Ordering::Relaxed) && !self.slots.is_found() {
            self.has_lost_slots.store(true, Ordering::Relaxed);
            tracing::error!("the file of the buffers has vanished; writes are not buffered any more");
        }
    }

    fn drain_locked<D: Device>(&self, device: &D, queue: &mut Queue) -> Result<Drained<D::Fault>, D::Error> {
        self.watch_slots();
        self.begin_stores(device);
        let store = |block: u64, bytes: &[u8]| device.store(block * BLOCK_BYTES, bytes);
        let drained = queue.drain(&self.slots, self.options.is_batched, store, || device.fence())?;
        Ok(drained.map_err(|(block, fault)| (block * BLOCK_BYTES, fault)))
    }

    /// The buffer of a byte.
    fn buffer(&self, offset_bytes: u64) -> &Buffer {
        &self.queues[index(offset_bytes / self.options.stride_bytes % self.options.buffer_count)]
    }

    /// The end of the stride of a byte.
    const fn stride_end(&self, offset_bytes: u64) -> u64 {
        (offset_bytes / self.options.stride_bytes + 1) * self.options.stride_bytes
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a device is in memory")
}
