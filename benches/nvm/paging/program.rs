//! A program that pages. The kernel now and then kills one whose pages it cannot write in time; then it is started again.

use miette::Result;
use pm_bench::Conversation;

const ATTEMPTS: usize = 5;

/// The program, as far as it runs.
pub(super) struct Program<'a> {
    start: Box<dyn Fn() -> Result<Conversation> + 'a>,
    running: Option<Conversation>,
    killed: &'a mut usize,
}

impl<'a> Program<'a> {
    /// One that runs when it is first needed. `killed` counts how often the kernel kills it.
    pub(super) fn new(start: impl Fn() -> Result<Conversation> + 'a, killed: &'a mut usize) -> Self {
        Self { start: Box::new(start), running: None, killed }
    }

    /// Lets it do something. `None`: the kernel has killed it each time.
    pub(super) fn attempt<T>(&mut self, act: impl Fn(&mut Conversation) -> Result<T>) -> Result<Option<T>> {
        for _ in 0..ATTEMPTS {
            let running = match self.running.take() {
                Some(running) => Ok(running),
                None => (self.start)(),
            };
            let done = running.and_then(|mut running| Ok((act(&mut running)?, running)));
            match done {
                Ok((result, running)) => {
                    self.running = Some(running);
                    return Ok(Some(result));
                }
                Err(error) if is_kill(&error) => *self.killed += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Ends it, after it has checked its results.
    pub(super) fn finish(&mut self) -> Result<()> {
        match self.running.take().map_or(Ok(()), Conversation::finish) {
            Err(error) if is_kill(&error) => *self.killed += 1,
            finished => return finished,
        }
        Ok(())
    }
}

fn is_kill(error: &miette::Report) -> bool {
    error.to_string().contains("signal: 9")
}
