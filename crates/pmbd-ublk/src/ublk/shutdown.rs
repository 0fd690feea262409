//! Requests to end a server.

use std::sync::mpsc::{Receiver, Sender, channel};

/// How to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// Remove the device, unless it is in use: then report that and go on serving.
    Remove,
    /// Remove the device even from under a mounted file system, which then fails as if its disk were pulled.
    RemoveForced,
    /// End, and leave the device to the next server of the same pool, in another process. Requests wait for it. The driver releases the
    /// device when this server's process has ended.
    HandOver,
}

/// An event that wakes the serving thread.
#[derive(Debug)]
pub(super) enum Message {
    /// A request to end.
    Shutdown(Shutdown),
    /// A queue's thread of this attempt to serve has ended, in order or not.
    QueueEnded(u32),
}

/// Requests the end of a server. Can be cloned and used from any thread.
#[derive(Clone, Debug)]
pub struct ShutdownHandle(Sender<Message>);

impl ShutdownHandle {
    /// Sends the request. Returns whether the server is still there to receive it.
    pub fn request(&self, how: Shutdown) -> bool {
        self.0.send(Message::Shutdown(how)).is_ok()
    }
}

/// The server's end of the channel.
#[derive(Debug)]
pub struct ShutdownSignal {
    sender: Sender<Message>,
    receiver: Receiver<Message>,
}

impl ShutdownSignal {
    /// A new channel.
    #[must_use]
    pub fn new() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }

    /// The other end.
    #[must_use]
    pub fn handle(&self) -> ShutdownHandle {
        ShutdownHandle(self.sender.clone())
    }

    pub(super) fn sender(&self) -> Sender<Message> {
        self.sender.clone()
    }

    /// Waits for the next message. This end has a sender too, so the channel is never closed.
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
    fn requests_arrive_in_order_until_receiver_is_dropped() {
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
