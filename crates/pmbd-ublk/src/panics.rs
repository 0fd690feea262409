//! The end of the process by a panic in a thread that serves requests.

/// Ends the process when a panic unwinds over it, by an abort. The panic's message is written before.
///
/// A thread that ends alone would leave its requests without an answer for ever, and its tags with the driver: a device would hang, and not be taken
/// over by the next server. What a thread of a killed process has left is what the next server is made for.
#[derive(Debug)]
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
