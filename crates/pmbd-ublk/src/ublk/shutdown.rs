//! How a server is asked to end.

use std::sync::mpsc::{Receiver, Sender, channel};

/// How to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// Remove the device, unless it is in use: then go on serving and say so.
    Remove,
    /// Remove the device even from under a mounted file system, which then fails as if its disk were pulled.
    RemoveForced,
    /// End, and leave the device to the next server of the same pool, in another process. Requests wait for
    /// it. The driver lets go of this server when its process has ended.
    HandOver,
}

/// What the serving thread wakes up for.
#[derive(Debug)]
pub(super) enum Message {
    /// Somebody asked for the end.
    Shutdown(Shutdown),
    /// A queue's thread of this attempt to serve has ended, in order or not.
    QueueEnded(u32),
}

/// Asks a server to end. Can be cloned and used from any thread.
#[derive(Clone, Debug)]
pub struct ShutdownHandle(Sender<Message>);

impl ShutdownHandle {
    /// Asks. Returns whether there is still a server to hear it.
    pub fn request(&self, how: Shutdown) -> bool {
        self.0.send(Message::Shutdown(how)).is_ok()
    }
}

/// The server's end of the wire.
#[derive(Debug)]
pub struct ShutdownSignal {
    sender: Sender<Message>,
    receiver: Receiver<Message>,
}

impl ShutdownSignal {
    /// A new wire.
    #[must_use]
    pub fn new() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }

    /// What to ask with.
    #[must_use]
    pub fn handle(&self) -> ShutdownHandle {
        ShutdownHandle(self.sender.clone())
    }

    pub(super) fn sender(&self) -> Sender<Message> {
        self.sender.clone()
    }

    /// Waits for the next message. This end holds a sender too, so there always is one to come.
    pub(super) fn wait(&self) -> Message {
        self.receiver.recv().unwrap_or(Message::Shutdown(Shutdown::HandOver))
    }
}

impl Default for ShutdownSignal {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_arrive_in_order_and_the_dead_do_not_hear() {
        let signal = ShutdownSignal::new();
        let handle = signal.handle();
        assert!(handle.request(Shutdown::Remove));
        assert!(handle.clone().request(Shutdown::RemoveForced));
        assert!(matches!(signal.wait(), Message::Shutdown(Shutdown::Remove)));
        assert!(matches!(signal.wait(), Message::Shutdown(Shutdown::RemoveForced)));
        drop(signal);
        assert!(!handle.request(Shutdown::Remove));
    }
}
