//! Children of a process that the heap serves.
//!
//! A child expects a copy of its parent's memory at the `fork`. But the file is a shared mapping. So the child gets a file of its own, with a
//! copy of the allocated blocks, mapped at the address of its parent's. Its parent waits for that, and holds all locks of the heap, so that no
//! block is being allocated or freed. The child's file has no name, and so ends with the child, unless the child outlives its parent.
//!
//! This costs a copy of the allocated blocks for each `fork`, and nothing for `vfork` and `posix_spawn`, whose children only start another program.
//!
//! A child that is made without fork handlers (`_Fork`, or `clone` without `CLONE_VM`) shares its parent's mapping: it allocates from glibc,
//! and its parent's blocks that it frees stay allocated. Only its stores cannot be hidden from its parent.
//!
//! The same holds for a child that a signal handler makes, if the signal interrupted an allocation or a free of its thread: that thread may
//! hold locks of the heap, and would deadlock. But such a child may continue the interrupted call, so its mapping is made private.
//!
//! Meanwhile, in other fork handlers, the forking thread allocates from glibc, and its frees are deferred until the fork is over, or until the
//! next one.

use crate::glibc::{errno, set_errno};
use crate::heap_file;
use crate::serving::{self, Serving};
use crate::{say, thread};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use pm_alloc::{FrozenHeap, Heap, HeapError};
use pm_core::{Pmem as _, Region};
use std::os::fd::AsRawFd as _;

/// Whether a thread is between the two sides of a `fork`.
static FORKING: AtomicBool = AtomicBool::new(false);

/// The state of that thread's `fork`.
static HELD: AtomicPtr<Held> = AtomicPtr::new(null_mut());

/// A pipe: the child writes to it when it has its copy, and closes it, also by ending.
static PIPE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

/// Whether this process has its parent's heap as a private mapping.
static IS_PRIVATE: AtomicBool = AtomicBool::new(false);

/// The state of a `fork`, from the handler before it to that after it.
struct Held {
    heap: FrozenHeap<'static>,
    /// The signals that were blocked before: no signal handler may run before the child has its copy.
    signals: libc::sigset_t,
    process: i32,
}

/// Installs the fork handlers.
pub(crate) fn watch() {
    // SAFETY: the three functions may be called at any time, and are never unloaded, as libraries with handlers are not.
    let failed = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    if failed != 0 {
        say(&"children of this process will share its memory: there is no room for a handler");
    }
}

extern "C" fn before() {
    let Some(serving) = serving::serving() else {
        if !serving::is_forking() {
            // A child made without the handlers, perhaps while another thread of its parent was here: that thread's locks belong to the
            // parent's heap, and this process must not use them.
            HELD.store(null_mut(), Ordering::Relaxed);
        }
        return;
    };
    if thread::may_hold_locks() {
        return;
    }
    // First, so that no signal handler of this thread spins on `FORKING`.
    let signals = block_signals();
    while FORKING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    for (end, descriptor) in PIPE.iter().zip(new_pipe()) {
        end.store(descriptor, Ordering::Relaxed);
    }
    let heap = serving.heap.freeze();
    let held = Held { heap, signals, process: std::process::id().cast_signed() };
    HELD.store(Box::into_raw(Box::new(held)), Ordering::Relaxed);
    thread::set_forking(true);
    serving::set_forking(true);
}

extern "C" fn parent() {
    let Some(held) = take_held() else { return };
    close(&PIPE[1]);
    let reading = PIPE[0].load(Ordering::Relaxed);
    let mut byte = 0_u8;
    loop {
        // SAFETY: one byte fits. With a pipe, it returns when the child has written the byte or has ended. The end of the pipe alone would
        // not suffice: children that other threads made meanwhile have it open too.
        let read = unsafe { libc::read(reading, (&raw mut byte).cast(), 1) };
        if read >= 0 || errno() != libc::EINTR {
            break;
        }
    }
    close(&PIPE[0]);
    let signals = held.signals;
    drop(held);
    leave(&signals);
}

extern "C" fn child() {
    let Some(held) = take_held() else {
        if thread::may_hold_locks() {
            leave_to_parent();
        }
        return;
    };
    let Some(serving) = serving::current() else { return };
    let standard = heap_file::hold_standard_descriptors();
    match own_heap(serving, &held) {
        Ok(own) => serving::install(own),
        Err(error) => {
            // It would store to its parent's memory.
            say(&format_args!("no memory for the copy that a forked child needs: {error}"));
            let_parent_go_on();
            std::process::abort();
        }
    }
    drop(standard);
    let signals = held.signals;
    // Its locks belong to the parent's heap, which this process no longer has.
    core::mem::forget(held);
    leave(&signals);
}

/// In a child that may have interrupted an allocation or a free: hides its stores from its parent, and makes glibc serve it. Calls only
/// functions that are safe in a signal handler.
fn leave_to_parent() {
    serving::set_plain();
    let Some(serving) = serving::current() else { return };
    // A second mapping would lose the stores of this process.
    if IS_PRIVATE.swap(true, Ordering::Relaxed) || !serving.has_file() {
        return;
    }
    let region = serving.region();
    let len = usize::try_from(region.len_bytes()).expect("the region is mapped");
    let (protection, start) = (libc::PROT_READ | libc::PROT_WRITE, region.base_ptr().as_ptr());
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // If it fails, this child is like one made without the handlers.
    // SAFETY: it has the bytes of the mapping that it replaces, and no other thread is in this process.
    unsafe { libc::mmap(start.cast(), len, protection, flags, region.file().as_raw_fd(), 0) };
}

/// Ends the wait of the parent, once.
fn let_parent_go_on() {
    let writing = PIPE[1].load(Ordering::Relaxed);
    // Without a pipe nothing waits.
    // SAFETY: one byte is read from the constant. If the parent has ended there is no SIGPIPE, as this process has the reading end too.
    if writing >= 0 && unsafe { libc::write(writing, [0_u8].as_ptr().cast(), 1) } != 1 {
        say(&"a forked child cannot tell its parent that it has its copy");
    }
    PIPE.iter().for_each(close);
}

/// The state that `before` left for this thread. `None` if there is none, also while another thread forks.
fn take_held() -> Option<Box<Held>> {
    if !thread::is_forking() {
        return None;
    }
    let held = HELD.swap(null_mut(), Ordering::Relaxed);
    // SAFETY: from `Box::into_raw`, and it is taken only here.
    (!held.is_null()).then(|| unsafe { Box::from_raw(held) })
}

/// Ends what `before` began.
fn leave(signals: &libc::sigset_t) {
    thread::set_forking(false);
    serving::set_forking(false);
    let freed = thread::take_freed();
    if let Some(serving) = serving::current() {
        freed.into_iter().for_each(|offset| serving.free(offset));
    }
    FORKING.store(false, Ordering::Release);
    // SAFETY: the set is valid, and a null pointer ignores the old one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals, null_mut()) };
}

/// Makes the child's file, and maps it over its parent's.
fn own_heap(serving: &'static Serving, held: &Held) -> Result<Serving, HeapError> {
    let settings = serving.settings.clone();
    let region = serving.region();
    let has_file = serving.has_file();
    let from = |offset, buffer: &mut [u8]| {
        if !has_file || !heap_file::read_exactly(region.file(), offset, buffer) {
            read(region, offset, buffer);
        }
    };
    let copied = heap_file::for_child(&settings.file, region.len_bytes(), &held.heap, &from);
    let file = copied.map_err(|errno| {
        HeapError::from(pm_core::OpenError::Io { path: settings.file.clone(), operation: "copying", errno })
    })?;
    let options = heap_file::region_options(&settings).sparse(true);
    // SAFETY: the parent's region is mapped there, which this process no longer uses; and the program's pointers find the bytes of their
    // blocks.
    let options = unsafe { options.at_address(region.base_ptr().addr().get()) };
    let own = options.open_file(file, &settings.file)?;
    // The parent's memory is no longer read.
    let_parent_go_on();
    // The lock of the parent's file must end with the parent.
    if has_file {
        // SAFETY: it belongs to the parent's region, which is never dropped.
        unsafe { libc::close(region.file().as_raw_fd()) };
    }
    Ok(Serving::new(Heap::attach(own, &heap_file::options(&settings))?, settings, held.process))
}

/// A pipe, or no descriptors and a message. Neither end gets the number of a standard descriptor: other threads of the parent may write to it
/// although it is closed, and their output must not be taken for the child's byte.
fn new_pipe() -> [c_int; 2] {
    let mut ends: [c_int; 2] = [-1; 2];
    let standard = heap_file::hold_standard_descriptors();
    // SAFETY: two descriptors fit.
    let is_made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
    drop(standard);
    // Without `/dev/null`, as in a chroot, no number was held, and the ends are moved now.
    if is_made && ends.iter_mut().all(raise) {
        return ends;
    }
    say(&"no pipe for a fork: the child may see what its parent writes right after it");
    for end in ends {
        close(&AtomicI32::new(end));
    }
    [-1; 2]
}

/// Moves a descriptor with the number of a standard one to a higher number, if one is free.
fn raise(descriptor: &mut c_int) -> bool {
    if *descriptor > libc::STDERR_FILENO {
        return true;
    }
    // SAFETY: a number is the argument of this command.
    let raised = unsafe { libc::fcntl(*descriptor, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    if raised >= 0 {
        close(&AtomicI32::new(core::mem::replace(descriptor, raised)));
    }
    raised >= 0
}

/// Copies from a region whose file cannot be read: a device, or a file that the program closed. The parent's other threads may be storing
/// there; a child cannot rely on such stores at a `fork`.
fn read(region: &Region, offset: u64, buffer: &mut [u8]) {
    let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= region.len_bytes());
    let start = end.and_then(|_| usize::try_from(offset).ok()).expect("pieces of a copy lie in the heap");
    // SAFETY: `start` is inside the region.
    let from = unsafe { region.base_ptr().add(start) };
    // SAFETY: so many bytes are mapped there, and the buffer is this process's own.
    unsafe { from.as_ptr().copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len()) };
}

/// Blocks all signals of this thread. Returns those that were blocked before.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
    // SAFETY: there is room for a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first is a set now, and there is room for the other.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: written by the above, or zeroes, which are the empty set.
    unsafe { before.assume_init() }
}

fn close(descriptor: &AtomicI32) {
    let descriptor = descriptor.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        let errno = errno();
        // SAFETY: it belongs to this module, and has no other user.
        unsafe { libc::close(descriptor) };
        set_errno(errno);
    }
}
