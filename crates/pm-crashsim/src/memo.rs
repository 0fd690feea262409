//! What recoveries read, and where that led: a decision tree over the contents of lines.
//!
//! A recovery is a function of the bytes that it reads. The tree has a node for each line that one read, in order, and
//! a branch for each content that was found there; at its leaves are the runs. Two images that lead to one leaf are
//! recovered from alike, whatever else they hold.

use crate::image::{Image, Line};
use crate::line::{LineHasher, LineSet, PrintMap};
use crate::splitmix::fingerprint;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// A node of one [`Memo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(usize);

/// What is known at a node.
pub(crate) enum Known {
    /// The next line that is read.
    Reads(u64),
    /// A run ended here.
    Ran(Ran),
    /// No run came here yet.
    Nothing,
}

/// What is known of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    /// How many more crashes were tried inside.
    pub(crate) inside: usize,
    /// The visit of a point on which that depends, if some of them were not tried because the visit tries the same images
    /// anyway: it holds in the visit, and ever after once the visit has done so.
    pub(crate) only_in: Option<u64>,
}

enum Node {
    /// Most lines have one content wherever they are read here: that child is kept in place, others in a table.
    Read {
        line: u64,
        first: Option<(Line, NodeId)>,
    },
    Ran(Ran),
    Unknown,
}

impl Ran {
    /// Whether it says all that a visit wants to know.
    pub(crate) fn suffices(&self, inside: usize, visit: u64, visits: &Visits) -> bool {
        self.inside >= inside && self.only_in.is_none_or(|only| only == visit || visits.is_done(only))
    }
}

/// The visits of points, and which of them have tried all that they were to try.
#[derive(Default)]
pub(crate) struct Visits {
    last: u64,
    done: HashSet<u64, BuildHasherDefault<LineHasher>>,
    /// Done as well, as soon as an earlier one is in which they are, and of which some of what they skipped depends.
    depending: Vec<u64>,
}

impl Visits {
    /// A number for the next one, which no other has.
    pub(crate) const fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Says that a visit has tried everything, or skipped it because a visit that it is inside of tries it.
    pub(crate) fn all_tried(&mut self, visit: u64, is_inside_another: bool) {
        self.depending.push(visit);
        if !is_inside_another {
            let inside = self.depending.iter().position(|&depending| depending >= visit);
            self.done.extend(self.depending.drain(inside.unwrap_or(0)..));
        }
    }

    /// Says that a visit only tried some of it, so that nothing can depend on it.
    pub(crate) fn some_tried(&mut self, visit: u64) {
        self.depending.retain(|&depending| depending < visit);
    }

    fn is_done(&self, visit: u64) -> bool {
        self.done.contains(&visit)
    }
}

/// How many nodes a tree may have.
const MAX_NODES: usize = 1 << 21;

/// The decision trees of one depth of crashes: one for each history of acknowledgements.
#[derive(Default)]
pub(crate) struct Memo {
    /// Lines that differ between images. Others are the same in all, so reading them decides nothing.
    watched: Arc<LineSet>,
    nodes: Vec<Node>,
    /// The children that are not the first of their parents, by the fingerprint of parent and content.
    others: PrintMap<NodeId>,
    roots: HashMap<u64, NodeId>,
}

impl Memo {
    /// The lines whose reading is to be recorded.
    pub(crate) const fn watched(&self) -> &Arc<LineSet> {
        &self.watched
    }

    /// Says that these lines differ between images, too. What was learnt before without them is forgotten.
    pub(crate) fn watch(&mut self, lines: impl Iterator<Item = u64>) {
        let mut new = lines.filter(|line| !self.watched.contains(line)).peekable();
        if new.peek().is_some() {
            let added: Vec<u64> = new.collect();
            Arc::make_mut(&mut self.watched).extend(added);
            self.nodes.clear();
            self.others.clear();
            self.roots.clear();
        }
    }

    /// Whether so much was learnt that no more is to be: 200 MB, or a few more for a run that reads very many lines.
    pub(crate) const fn is_full(&self) -> bool {
        self.nodes.len() >= MAX_NODES
    }

    /// Where runs begin that follow that history.
    pub(crate) fn root(&mut self, history: u64) -> NodeId {
        *self.roots.entry(history).or_insert_with(|| push(&mut self.nodes))
    }

    pub(crate) fn known(&self, node: NodeId) -> Known {
        match &self.nodes[node.0] {
            Node::Read { line, .. } => Known::Reads(*line),
            Node::Ran(ran) => Known::Ran(*ran),
            Node::Unknown => Known::Nothing,
        }
    }

    /// Where a run goes on that read this content at a node that reads.
    pub(crate) fn child(&mut self, node: NodeId, content: &Line) -> NodeId {
        let next = NodeId(self.nodes.len());
        let Node::Read { first, .. } = &mut self.nodes[node.0] else {
            return node;
        };
        let child = match first {
            None => first.insert((*content, next)).1,
            Some((known, child)) if known == content => *child,
            Some(_) => *self.others.entry(fingerprint(node.0 as u64, content)).or_insert(next),
        };
        if child == next {
            push(&mut self.nodes);
        }
        child
    }

    /// Records a run on `image` from a node on, to which reading the lines of `path` led: it read `lines`.
    pub(crate) fn insert(&mut self, mut node: NodeId, path: &[u64], lines: &[u64], image: &Image, ran: Ran) {
        let mut read = |line: u64| {
            self.nodes[node.0] = Node::Read { line, first: None };
            node = self.child(node, image.line(line));
        };
        match lines.strip_prefix(path) {
            Some(beyond) => beyond.iter().copied().for_each(read),
            // What was read inside of this run's crashes is behind what another run to here read in its own.
            None => {
                let before: LineSet = path.iter().copied().collect();
                lines.iter().copied().filter(|line| !before.contains(line)).for_each(&mut read);
            }
        }
        self.nodes[node.0] = Node::Ran(ran);
    }
}

fn push(nodes: &mut Vec<Node>) -> NodeId {
    nodes.push(Node::Unknown);
    NodeId(nodes.len() - 1)
}
