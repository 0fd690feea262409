//! A sequence killed everywhere, and a second process that goes on with it.

use super::case::Case;
use super::subject::Subject;
use crate::{Coverage, Crash, Explorer, Failure, Image, Run};

/// What a process of the sequence had done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// An operation of the first process returned.
    Returned,
    /// A process after a kill opened the structure, and found it as after that many operations.
    Found(usize),
    /// An operation of that process returned.
    WentOn,
}

/// How far the processes had come: how many operations of the first one had returned, and of the last one what it found and how
/// many operations since.
fn progress(acked: &[Step]) -> (usize, Option<(usize, usize)>) {
    let returned = acked.iter().take_while(|step| **step == Step::Returned).count();
    let found =
        acked.iter().rev().find_map(|step| if let Step::Found(prefix) = step { Some(*prefix) } else { None });
    let went_on = acked.iter().rev().take_while(|step| **step == Step::WentOn).count();
    (returned, found.map(|prefix| (prefix, went_on)))
}

impl<S: Subject> Case<'_, S> {
    /// Kills the sequence everywhere; the next process opens the structure, finds what is allowed, and carries out operations that
    /// are crashed everywhere. What it found, and what it did, must be there then.
    pub(super) fn explore_restarted(
        &self,
        explorer: &Explorer,
        image: &Image,
    ) -> Result<Coverage, Box<Failure>> {
        let first = |run: &Run<Step>| self.run(run, Step::Returned);
        let second = |run: &Run<Step>| -> Result<(), String> {
            let (returned, _) = progress(&run.acked());
            let told = |problem: String| self.tell(returned, &problem);
            let mut store = self.open(run.pmem()).map_err(told)?;
            let prefix = self.prefix(returned, &self.observe(&store).map_err(told)?).map_err(told)?;
            run.ack(Step::Found(prefix));
            for op in self.onward_ops(prefix) {
                self.apply(&mut store, &op).map_err(told)?;
                run.ack(Step::WentOn);
            }
            Ok(())
        };
        let check = |crash: &Crash<'_, Step>| -> Result<(), String> {
            let (returned, since) = progress(crash.acked());
            let told = |problem: String| self.tell(returned, &problem);
            let store = self.open(crash.pmem()).map_err(told)?;
            let found = self.observe(&store).map_err(told)?;
            match since {
                None => self.prefix(returned, &found).map(|_| ()),
                Some((prefix, done)) => {
                    self.is_allowed_onward(&found, prefix, &self.onward_ops(prefix), done)
                }
            }
            .map_err(told)
        };
        explorer.clone().kills(1).crashes(1).explore_restarted(image, first, second, check)
    }
}
