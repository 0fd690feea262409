//! What two nodes know of each other's files, by which a node recognizes an old copy of the other's.

use super::wire::{Introduction, Open};
use serde::{Deserialize, Serialize};

/// What a node has noted of another one.
///
/// An open of a file has a random number of its own, so that opens of copies differ. A node introduces itself with this open, and with those that the other
/// may have met before. An old copy does not know the opens that came after it: a node that has met one of them refuses the copy, however often it was opened.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    met: Option<Met>,
    /// The opens of this node's file that the other one may have met, the oldest first.
    told: Vec<Open>,
}

/// The file of a node, and the last of its opens that was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Met {
    file: [u8; 16],
    open: Open,
}

impl Known {
    /// The identity of the node's file, if it was met.
    pub(super) fn file(&self) -> Option<[u8; 16]> {
        self.met.as_ref().map(|met| met.file)
    }

    /// The number of the last open of the node's file that was met.
    pub(super) fn met(&self) -> u64 {
        self.met.as_ref().map_or(0, |met| met.open.number)
    }

    /// The opens of this node's file that the other one may have met.
    pub(super) fn told(&self) -> &[Open] {
        &self.told
    }

    /// Adds this open of this node's file to those that the other one may meet. Returns whether that is new, and must be durable before the other one
    /// is told.
    pub(super) fn tell(&mut self, own: Open) -> bool {
        if self.told.last() == Some(&own) {
            return false;
        }
        self.told.push(own);
        true
    }

    /// Compares the node with what is known of it, and remembers it. Returns whether there is something new, which must be durable before the node is
    /// heard.
    pub(super) fn meet(&mut self, other: &Introduction) -> Result<bool, String> {
        let id = other.id;
        let advice = "an id is never used twice: remove the node from the cluster, and add it with a new id";
        if let Some(Met { file, open }) = &self.met {
            if *file != other.file {
                return Err(format!("node {id} had another file: {advice}"));
            }
            if other.open.number < open.number {
                return Err(format!(
                    "the file of node {id} was opened {} times, and before {} times: it is an old copy; {advice}",
                    other.open.number, open.number
                ));
            }
            if other.open.number == open.number && other.open != *open {
                return Err(format!("the file of node {id} is open as two copies; {advice}"));
            }
            if !other.told.contains(open) {
                return Err(format!(
                    "the file of node {id} is not the one that was opened as number {}: it is an old copy, or this node's file is; {advice}",
                    open.number
                ));
            }
        }
        let met = Some(Met { file: other.file, open: other.open });
        // It never forgets the last one that it has met, and meets no earlier one.
        let forgotten = self.told.partition_point(|open| open.number < other.met);
        let is_new = self.met != met || forgotten > 0;
        self.met = met;
        self.told.drain(..forgotten);
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A node's file: its opens, and what it knows of the one other node.
    #[derive(Clone, Debug)]
    struct File {
        opens: u64,
        open: Open,
        known: Known,
        /// All opens that have led to this state: the truth that the notes stand for.
        history: Vec<Open>,
    }

    impl Clone for Known {
        fn clone(&self) -> Self {
            postcard::from_bytes(&postcard::to_stdvec(self).unwrap()).unwrap()
        }
    }

    impl File {
        fn new(nonce: u64) -> Self {
            let known = Known::default();
            let mut file = Self { opens: 0, open: Open { number: 0, nonce }, known, history: Vec::new() };
            file.reopen(nonce);
            file
        }

        fn reopen(&mut self, nonce: u64) {
            self.opens += 1;
            self.open = Open { number: self.opens, nonce };
            self.history.push(self.open);
        }

        fn introduction(&mut self, id: u64) -> Introduction {
            self.known.tell(self.open);
            Introduction {
                id,
                file: [u8::try_from(id).unwrap(); 16],
                open: self.open,
                told: self.known.told().to_vec(),
                met: self.known.met(),
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A node is opened again.
        Reopen(usize),
        /// A node introduces itself, and the message is on its way.
        Send(usize),
        /// A message on its way to a node of which the sender may have been reopened in the meantime arrives; others stay.
        Receive(usize, usize),
        /// The node is opened again, and before that, a copy of its file is made.
        Copy(usize),
        /// The node's file is set back to the copy, and opened so many times.
        Restore(usize, u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..2_usize).prop_map(Step::Reopen),
            6 => (0..2_usize).prop_map(Step::Send),
            6 => (0..2_usize, 0..4_usize).prop_map(|(node, place)| Step::Receive(node, place)),
            1 => (0..2_usize).prop_map(Step::Copy),
            1 => (0..2_usize, 1..6_u8).prop_map(|(node, opens)| Step::Restore(node, opens)),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        /// A node is refused exactly if its file does not have an open that the other one has met, or if the message is older than one that has arrived.
        /// A node with an old copy may refuse more.
        #[test]
        fn copies_are_refused_and_files_are_not(steps in steps()) {
            let mut nonce = 0;
            let mut fresh = || { nonce += 1; nonce };
            let mut files = [File::new(fresh()), File::new(fresh())];
            let mut copies: [Option<File>; 2] = [None, None];
            let mut is_copy = [false; 2];
            // With the open of the receiver to which it is sent: a connection ends with the process.
            let mut sent: [Vec<(Introduction, Vec<Open>, Open)>; 2] = [Vec::new(), Vec::new()];
            for step in steps {
                match step {
                    Step::Reopen(node) => files[node].reopen(fresh()),
                    Step::Send(node) => {
                        let introduction = files[node].introduction(node as u64 + 1);
                        let history = files[node].history.clone();
                        let to = files[1 - node].open;
                        sent[1 - node].push((introduction, history, to));
                    }
                    Step::Receive(node, place) => {
                        if place >= sent[node].len() {
                            continue;
                        }
                        let (introduction, history, to) = sent[node].remove(place);
                        if to != files[node].open {
                            continue;
                        }
                        let met = files[node].known.met.clone();
                        let is_right = met.is_none_or(|met| {
                            history.contains(&met.open) && met.open.number <= introduction.open.number
                        });
                        let result = files[node].known.meet(&introduction);
                        if is_right && is_copy[node] {
                            continue;
                        }
                        prop_assert_eq!(result.is_ok(), is_right, "{:?}", result);
                    }
                    Step::Copy(node) => {
                        copies[node] = Some(files[node].clone());
                        files[node].reopen(fresh());
                    }
                    Step::Restore(node, opens) => {
                        if let Some(copy) = &copies[node] {
                            files[node] = copy.clone();
                            is_copy[node] = true;
                            (0..opens).for_each(|_| files[node].reopen(fresh()));
                        }
                    }
                }
            }
        }
    }

    /// What is told does not grow with the opens, once the other one answers.
    #[test]
    fn opens_that_the_other_one_has_met_are_forgotten() {
        let mut files = [File::new(0), File::new(1)];
        for nonce in 2..100 {
            files[0].reopen(nonce);
            for node in [0, 1] {
                let introduction = files[node].introduction(node as u64 + 1);
                files[1 - node].known.meet(&introduction).unwrap();
            }
            assert!(files[0].known.told().len() <= 2, "{:?}", files[0].known);
        }
    }
}
