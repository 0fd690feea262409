//! A mailbox of one message, with a bug in it. `cargo run -p pm-crashsim --example missing_fence` shows the crash that
//! loses the message, and what would repair it.

use pm_core::{FenceError, Pmem};
use pm_crashsim::{Crash, Explorer, Image, Run};

const FULL: u64 = 0; // 1 when there is a message.
const TEXT: u64 = 64;

fn send(pmem: &impl Pmem, text: [u8; 16]) -> Result<(), FenceError> {
    pmem.store(TEXT, &text);
    pmem.flush(TEXT, 16);
    // The bug: nothing waits for the flush before the mailbox is said to be full.
    pmem.store_u64(FULL, 1);
    pmem.persist(FULL, 8)
}

fn receive(pmem: &impl Pmem) -> Option<String> {
    let mut text = [0; 16];
    pmem.load(TEXT, &mut text);
    (pmem.load_u64(FULL) == 1).then(|| String::from_utf8_lossy(&text).into_owned())
}

fn main() {
    let operation = |run: &Run<()>| {
        send(run.pmem(), *b"meet me at noon.")?;
        run.ack(()); // `send` has returned: from here on, the message must survive.
        Ok::<(), FenceError>(())
    };
    let check = |crash: &Crash<()>| {
        let sent = Some("meet me at noon.".to_owned());
        let allowed = if crash.acked().is_empty() { vec![None, sent] } else { vec![sent] };
        crash.expect(receive(crash.pmem()), allowed)
    };
    match Explorer::default().explore(&Image::zeroed(4096), operation, check) {
        Ok(coverage) => println!("Every crash is survived. {coverage}"),
        Err(failure) => println!("{failure}"),
    }
}
